// SPDX-License-Identifier: Apache-2.0
//
// What the transports of a server have in common.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "farcall/message.hpp"
#include "process/ledger.hpp"

namespace farcall::thrift {

// A client that has gone is told of by a pulse; one that cannot have this answer learns why.
void answer(ReceivedMessage& message, std::span<const std::byte> data, int status) noexcept;

// What a client of another user's makes this process hold, of as much as farcall_limits_set(3) says
// that one user may; of this process's own user and of root nothing is counted. Empty: too much.
process::Charge charged(process::Resource resource, uid_t user, std::size_t amount) noexcept;

}  // namespace farcall::thrift
