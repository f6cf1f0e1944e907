// SPDX-License-Identifier: Apache-2.0
//
// What has to be done around the making of a process with memory of its own. fork() does it by
// itself; a program that asks the kernel in another way gets it from the hooks.
#pragma once

namespace farcall::preload {

struct ForkHandlers {
  void (*before)() noexcept;
  void (*in_parent)() noexcept;
  void (*in_child)() noexcept;
};

// As pthread_atfork().
void at_fork(const ForkHandlers& handlers) noexcept;

// Around a call that forks, but does not call the handlers.
void before_bare_fork() noexcept;
void after_bare_fork_in_parent() noexcept;
void after_bare_fork_in_child() noexcept;

// The result of `make`: 0 in the child.
template <class Make>
long fork_by(Make make) noexcept {
  before_bare_fork();
  const long child = make();
  if (child == 0)
    after_bare_fork_in_child();
  else
    after_bare_fork_in_parent();
  return child;
}

}  // namespace farcall::preload
