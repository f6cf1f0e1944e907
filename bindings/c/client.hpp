// SPDX-License-Identifier: Apache-2.0
//
// What those who call have in common.
#pragma once

#include <cerrno>

#include "call/client_session.hpp"
#include "farcall/error.hpp"
#include "farcall/farcall.h"

namespace farcall::c {

// The descriptor of the door that a client calls.
int door_of(const farcall_client* client) noexcept;

// What door_call(3) says, in the words of this interface.
inline int refusal(int error) noexcept {
  switch (error) {
    case EBADF: return -EPIPE;
    case ENOBUFS: return -EMSGSIZE;
    case EOVERFLOW: return -ENOMEM;
    default: return -error;
  }
}

// The same where no session is to be had. -EAGAIN is for what goes on. What a server that has seen
// the request refuses it with says neither that it has not, nor that the call goes on.
inline int refusal(const SystemError& error) noexcept {
  const int value = error.code().value();
  const bool would_mislead = value == EPIPE || value == EBADF || value == EINTR;
  if (would_mislead && dynamic_cast<const call::RefusedRequest*>(&error) != nullptr)
    return -ECONNABORTED;
  return value == EAGAIN ? -EUSERS : refusal(value);
}

}  // namespace farcall::c
