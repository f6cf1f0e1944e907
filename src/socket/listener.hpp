// SPDX-License-Identifier: Apache-2.0
//
// Who listens at a name, for those who cannot get through to it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace farcall {

// The user whose socket of that type (SOCK_STREAM, SOCK_SEQPACKET) listens at an abstract name, as
// the kernel says (sock_diag). Nothing where there is none, or the kernel does not tell.
std::optional<uid_t> owner_of_listener(std::string_view name, int type) noexcept;

}  // namespace farcall
