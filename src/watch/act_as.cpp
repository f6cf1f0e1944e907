// SPDX-License-Identifier: Apache-2.0
#include "watch/act_as.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace farcall::watch {
namespace {

// Of this thread alone: the C library would change all.
bool set_groups_and_user(gid_t group, uid_t user) noexcept {
  return ::syscall(SYS_setresgid, group, group, gid_t(-1)) == 0 &&
         ::syscall(SYS_setresuid, user, user, uid_t(-1)) == 0;
}

}  // namespace

ActAs::ActAs(uid_t user, gid_t group) noexcept : group_(::getegid()) {
  if (::geteuid() != 0 || user == 0) return;
  changed_ = true;
  fits_ = set_groups_and_user(group, user);
}

ActAs::~ActAs() {
  if (!changed_) return;
  // The saved ids are root's still. Whoever cannot go back must not go on as somebody else.
  if (::syscall(SYS_setresuid, 0, 0, uid_t(-1)) != 0 ||
      ::syscall(SYS_setresgid, group_, group_, gid_t(-1)) != 0)
    std::abort();
}

}  // namespace farcall::watch
