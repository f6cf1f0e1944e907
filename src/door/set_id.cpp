// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions that change who this process is, in front of which this library puts
// its own.
#include <grp.h>
#include <unistd.h>

#include "door/next.hpp"
#include "process/process.hpp"

namespace farcall::door {
namespace {

// A function of the C library that changes who this process is. Sessions made before tell servers
// of somebody else.
template <real::Symbol kSymbol, class... Arguments>
int changing_identity(Arguments... arguments) {
  const int result = real::next<kSymbol, int(Arguments...)>()(arguments...);
  process::forget_credentials();
  return result;
}

}  // namespace
}  // namespace farcall::door

using namespace farcall::door;  // NOLINT(google-build-using-namespace): what follows is C's

extern "C" {

int setuid(uid_t uid) noexcept { return changing_identity<"setuid">(uid); }
int seteuid(uid_t uid) noexcept { return changing_identity<"seteuid">(uid); }
int setreuid(uid_t real, uid_t effective) noexcept {
  return changing_identity<"setreuid">(real, effective);
}
int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept {
  return changing_identity<"setresuid">(real, effective, saved);
}
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
