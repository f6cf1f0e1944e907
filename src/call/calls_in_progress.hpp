// SPDX-License-Identifier: Apache-2.0
//
// The sessions with which a thread has calls in progress: one, or more where signal handlers call
// as well. A handler may also leave a call by siglongjmp(3), and never come back to it: its session
// is found here by the next call, and closed.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "call/client_session.hpp"

namespace farcall::call {

class CallInProgress {
 public:
  // For the calling thread; `session` is whose this is in the end. Closes those of calls that have
  // been left.
  explicit CallInProgress(ClientSession& session) noexcept {
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    if (calls.generation != generation())
      calls = {.generation = generation(), .own_stack = own_stack(), .depth = 0, .all = {}};
    while (calls.depth > 0 && left(calls.all[calls.depth - 1].frame, here))
      delete calls.all[--calls.depth].session;
    if (calls.depth == kMost) return;
    calls.all[calls.depth++] = {.session = &session, .frame = here};
    counted_ = true;
  }
  ~CallInProgress() {
    if (counted_ && calls.depth > 0) --calls.depth;
  }
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;

 private:
  static constexpr std::size_t kMost = 8;
  struct Stack {
    std::uintptr_t begin;
    std::size_t size;
    [[nodiscard]] bool has(std::uintptr_t address) const noexcept { return address - begin < size; }
  };
  struct One {
    ClientSession* session;
    std::uintptr_t frame;
  };
  struct All {
    std::uint64_t generation;
    Stack own_stack;
    std::size_t depth;
    std::array<One, kMost> all;
  };

  // Whether a call with that frame cannot be in progress any more: this one's is not deeper on the
  // same stack. (Stacks grow downwards.) Of stacks that are neither the thread's own nor its known
  // alternate one nothing is said: the kernel hides one with SS_AUTODISARM from its handler, and
  // programs switch stacks of their own.
  static bool left(std::uintptr_t frame, std::uintptr_t here) noexcept {
    stack_t other{};
    if (::sigaltstack(nullptr, &other) != 0) return false;
    const Stack alternate{.begin = reinterpret_cast<std::uintptr_t>(other.ss_sp),
                          .size = (other.ss_flags & SS_DISABLE) != 0 ? 0 : other.ss_size};
    const bool inside = alternate.has(here);
    if (alternate.has(frame)) return inside ? here >= frame : calls.own_stack.has(here);
    return !inside && here >= frame && calls.own_stack.has(here) && calls.own_stack.has(frame);
  }

  static Stack own_stack() noexcept {
    Stack stack{};
    pthread_attr_t attributes;
    if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return stack;
    void* begin = nullptr;
    if (::pthread_attr_getstack(&attributes, &begin, &stack.size) == 0)
      stack.begin = reinterpret_cast<std::uintptr_t>(begin);
    ::pthread_attr_destroy(&attributes);
    return stack;
  }

  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local All calls{};
  bool counted_ = false;
};

}  // namespace farcall::call
