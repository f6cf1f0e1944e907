// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions that change who this process is. What serves sessions is told who has
// opened them: those that were opened before are used no more.
//
// Not seen are system calls of the program's own, also those that change one thread alone.
#include <dlfcn.h>
#include <grp.h>
#include <unistd.h>

#include "interpose/next.hpp"
#include "process/process.hpp"

// Our own, whatever is in front of it.
extern "C" int farcall_own_setresuid(uid_t real, uid_t effective, uid_t saved) noexcept
    __attribute__((visibility("hidden")));

namespace farcall::interpose {
namespace {

// Another library may come before this one, and this one may have been loaded for one object alone.
[[maybe_unused]] const bool kSeen = [] {
  if (::dlsym(RTLD_DEFAULT, "setresuid") == reinterpret_cast<void*>(farcall_own_setresuid))
    process::tell_of_changed_credentials();
  return true;
}();

// A function of the C library that changes who this process is. Sessions made before tell servers
// of somebody else.
template <Symbol kSymbol, class... Arguments>
int changing_identity(Arguments... arguments) {
  const int result = next<kSymbol, int(Arguments...)>()(arguments...);
  process::forget_credentials();
  return result;
}

}  // namespace
}  // namespace farcall::interpose

using namespace farcall::interpose;  // NOLINT(google-build-using-namespace): what follows is C's

extern "C" {

int setuid(uid_t uid) noexcept { return changing_identity<"setuid">(uid); }
int seteuid(uid_t uid) noexcept { return changing_identity<"seteuid">(uid); }
int setreuid(uid_t real, uid_t effective) noexcept {
  return changing_identity<"setreuid">(real, effective);
}
int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept {
  return changing_identity<"setresuid">(real, effective, saved);
}
int farcall_own_setresuid(uid_t real, uid_t effective, uid_t saved) noexcept
    __attribute__((alias("setresuid"), visibility("hidden")));
int setgid(gid_t gid) noexcept { return changing_identity<"setgid">(gid); }
int setegid(gid_t gid) noexcept { return changing_identity<"setegid">(gid); }
int setregid(gid_t real, gid_t effective) noexcept {
  return changing_identity<"setregid">(real, effective);
}
int setresgid(gid_t real, gid_t effective, gid_t saved) noexcept {
  return changing_identity<"setresgid">(real, effective, saved);
}
int setgroups(size_t count, const gid_t* groups) noexcept {
  return changing_identity<"setgroups">(count, groups);
}
int initgroups(const char* user, gid_t group) {
  return changing_identity<"initgroups">(user, group);
}

}  // extern "C"
