// SPDX-License-Identifier: Apache-2.0
//
// Names, for one process alone: its listener, and its connection to one; and who listens, for those
// who cannot get through.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

#include "farcall/socket.hpp"
#include "process/process.hpp"

namespace farcall {

// As NamedListener, but no child has it, nor the clients: the name is free, and the clients are
// told, when this process goes.
class PrivateListener {
 public:
  explicit PrivateListener(std::string_view name);
  process::PrivateFd accept(Deadline deadline,
                            std::optional<SignalCount> since = std::nullopt) const;

 private:
  process::PrivateFd fd_;
};

// As connect_named(), but no child has the socket, from its first instant on: who listens is told
// when this process goes.
process::PrivateFd connect_privately(std::string_view name, Deadline deadline,
                                     std::optional<SignalCount> since = std::nullopt);

// The user whose socket of that type (SOCK_STREAM, SOCK_SEQPACKET) listens at an abstract name, as
// the kernel says (sock_diag). Nothing where there is none, or the kernel does not tell.
std::optional<uid_t> owner_of_listener(std::string_view name, int type) noexcept;

}  // namespace farcall
