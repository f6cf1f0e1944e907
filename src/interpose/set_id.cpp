// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions that change who this process is. What serves sessions is told who has
// opened them: those that were opened before are used no more.
//
// Not seen are system calls of the program's own, also those that change one thread alone. Seen is
// what other libraries call.
#include <dlfcn.h>
#include <grp.h>
#include <unistd.h>

#include "interpose/next.hpp"
#include "process/process.hpp"

extern "C" {
// Our own, whatever is in front of it.
int farcall_own_setresuid(uid_t real, uid_t effective, uid_t saved) noexcept
    __attribute__((visibility("hidden")));
// What stands behind that of the first library of ours.
void* farcall_next_setresuid() noexcept;
}

namespace farcall::interpose {
namespace {

// Whether that is where the program's calls come to. Another library may come before this one, also
// one of ours, which passes them on; and this one may have been loaded for one object alone.
bool is_seen() noexcept {
  void* const own = reinterpret_cast<void*>(farcall_own_setresuid);
  void* const first = ::dlsym(RTLD_DEFAULT, "setresuid");
  if (first == own) return true;
  void* const next_of_first = ::dlsym(RTLD_DEFAULT, "farcall_next_setresuid");
  Dl_info of_first{};
  Dl_info of_ours{};
  return next_of_first != nullptr && ::dladdr(first, &of_first) != 0 &&
         ::dladdr(next_of_first, &of_ours) != 0 && of_first.dli_fbase == of_ours.dli_fbase &&
         reinterpret_cast<void* (*)()>(next_of_first)() == own;
}

[[maybe_unused]] const bool kSeen = [] {
  if (is_seen()) process::tell_of_changed_credentials();
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

// dlsym() is not for children of vfork(2) and handlers, which may become somebody else.
[[maybe_unused]] const bool kLookedUp = [] {
  (void)next<"setuid", int(uid_t)>();
  (void)next<"seteuid", int(uid_t)>();
  (void)next<"setreuid", int(uid_t, uid_t)>();
  (void)next<"setresuid", int(uid_t, uid_t, uid_t)>();
  (void)next<"setgid", int(gid_t)>();
  (void)next<"setegid", int(gid_t)>();
  (void)next<"setregid", int(gid_t, gid_t)>();
  (void)next<"setresgid", int(gid_t, gid_t, gid_t)>();
  (void)next<"setgroups", int(size_t, const gid_t*)>();
  (void)next<"initgroups", int(const char*, gid_t)>();
  return true;
}();

}  // namespace
}  // namespace farcall::interpose

using namespace farcall::interpose;  // what follows is C's

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
void* farcall_next_setresuid() noexcept { return look_up_next("setresuid"); }
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

FARCALL_WITHOUT_VERSION(setuid);
FARCALL_WITHOUT_VERSION(seteuid);
FARCALL_WITHOUT_VERSION(setreuid);
FARCALL_WITHOUT_VERSION(setresuid);
FARCALL_WITHOUT_VERSION(setgid);
FARCALL_WITHOUT_VERSION(setegid);
FARCALL_WITHOUT_VERSION(setregid);
FARCALL_WITHOUT_VERSION(setresgid);
FARCALL_WITHOUT_VERSION(setgroups);
FARCALL_WITHOUT_VERSION(initgroups);

}  // extern "C"
