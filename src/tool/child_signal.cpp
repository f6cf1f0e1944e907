// SPDX-License-Identifier: Apache-2.0
#include "tool/child_signal.hpp"

#include <signal.h>

namespace farcall::tool {
namespace {

bool was_ignored = false;

}  // namespace

void expect_children() noexcept { was_ignored = ::signal(SIGCHLD, SIG_DFL) == SIG_IGN; }

void restore_child_signal() noexcept {
  if (was_ignored) ::signal(SIGCHLD, SIG_IGN);
}

}  // namespace farcall::tool
