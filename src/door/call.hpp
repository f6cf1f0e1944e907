// SPDX-License-Identifier: Apache-2.0
//
// door_call(3) for who wants to wait in another way than that does.
#pragma once

#include <door.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>

#include "farcall/call.hpp"
#include "farcall/wait.hpp"

namespace farcall::door {

struct CallWait {
  SignalCount since;
  Deadline deadline = Deadline::never();  // kernel doors know none: EOPNOTSUPP
  RetryPolicy* retry_policy = nullptr;
  int no_answer = EINTR;  // the errno where the server has taken the request, and gone
};

// Returns 0 or an errno value: those of door_call(3), ETIMEDOUT, and `no_answer`. EAGAIN and EBADF
// say that no server has taken the request.
int call(int d, door_arg_t* params, const CallWait& wait);

struct Handle;
class Outgoing;

// What a door says to arguments of that size, whether they can be passed or not.
class ArgumentSizes final : public Admission {
 public:
  explicit ArgumentSizes(std::size_t bytes, std::size_t descriptors = 0) noexcept
      : bytes_(bytes), descriptors_(descriptors) {}
  // They are made ready once the door takes them.
  void set_outgoing(Outgoing* outgoing) noexcept { outgoing_ = outgoing; }
  int admit(LiveTerms terms) override;

 private:
  const std::size_t bytes_;
  const std::size_t descriptors_;
  Outgoing* outgoing_ = nullptr;
};

// A call that its thread does not wait in: see farcall::AsyncCall. It does not need the descriptor.
class AsyncCall {
 public:
  // Throws SystemError: EBADF for what is no door, EOPNOTSUPP for one of the kernel's, EFAULT, and
  // what farcall::AsyncCall does.
  AsyncCall(int d, std::span<const std::byte> request);

  [[nodiscard]] farcall::AsyncCall& operator*() noexcept { return call_; }
  [[nodiscard]] const farcall::AsyncCall& operator*() const noexcept { return call_; }

 private:
  const std::shared_ptr<Handle> handle_;
  ArgumentSizes sizes_;
  farcall::AsyncCall call_;
};

// Closes a descriptor of a door, and what is open for its sake at once: where close(2) is the C
// library's own, that is found out only later.
void close(int d) noexcept;

}  // namespace farcall::door
