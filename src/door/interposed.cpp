// SPDX-License-Identifier: Apache-2.0
//
// What is behind this library's functions, where it puts them in front of the C library's.
//
// No static here or elsewhere in this library has a guard that a thread could hold while another
// one forks: the child would wait for it for ever.
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <ucontext.h>

#include "door/next.hpp"
#include "door/real.hpp"
#include "process/process.hpp"

// Our own, whatever is in front of it.
extern "C" int farcall_own_close(int fd) __attribute__((visibility("hidden")));

namespace farcall::door::real {

int close(int fd) { return next<"close", int(int)>()(fd); }
int openat(int directory, const char* path, int flags, mode_t mode) {
  return next<"openat", int(int, const char*, int, ...)>()(directory, path, flags, mode);
}
int fstat(int fd, struct stat* status) noexcept {
  return next<"fstat", int(int, struct stat*)>()(fd, status);
}
int fstatat(int directory, const char* path, struct stat* status, int flags) noexcept {
  return next<"fstatat", int(int, const char*, struct stat*, int)>()(directory, path, status,
                                                                     flags);
}
int statx(int directory, const char* path, int flags, unsigned mask,
          struct statx* status) noexcept {
  return next<"statx", int(int, const char*, int, unsigned, struct statx*)>()(directory, path,
                                                                              flags, mask, status);
}

// Another library may come before this one, and this one may have been loaded for one object alone.
const bool detail::sees_all =
    ::dlsym(RTLD_DEFAULT, "close") == reinterpret_cast<void*>(farcall_own_close);

namespace {

// All that is used often, when the library is loaded.
[[maybe_unused]] const bool kLookedUp = [] {
  (void)next<"close", int(int)>();
  (void)next<"openat", int(int, const char*, int, ...)>();
  (void)next<"fstat", int(int, struct stat*)>();
  (void)next<"fstatat", int(int, const char*, struct stat*, int)>();
  (void)next<"statx", int(int, const char*, int, unsigned, struct statx*)>();
  (void)next<"dup", int(int)>();
  (void)next<"dup2", int(int, int)>();
  (void)next<"dup3", int(int, int, int)>();
  (void)next<"fcntl", int(int, int, ...)>();
  return true;
}();

}  // namespace
}  // namespace farcall::door::real

namespace {

struct CloneBody {
  int (*function)(void*);
  void* argument;
};

// On a stack of the library's: the one that the program has given may be just what it needs itself.
// All this memory is the child's alone.
int run_in_clone(void* given) {
  constexpr std::size_t kRoom = 65'536;
  alignas(16) static std::byte room[kRoom];
  static ucontext_t child;
  static ucontext_t leaving;
  const CloneBody body = *static_cast<const CloneBody*>(given);
  ::getcontext(&leaving);
  leaving.uc_stack = {.ss_sp = room, .ss_flags = 0, .ss_size = kRoom};
  leaving.uc_link = &child;
  ::makecontext(
      &leaving, [] { (void)farcall::process::generation(); }, 0);
  ::swapcontext(&child, &leaving);
  return body.function(body.argument);
}

}  // namespace

extern "C" {

// Its children are told nothing by pthread_atfork(3); they must let go of their parent's sockets.
pid_t _Fork() {
  const pid_t child = farcall::interpose::next<"_Fork", pid_t()>()();
  if (child == 0) (void)farcall::process::generation();
  return child;
}

// Nor are those that this makes: not for what shares the memory, or the descriptors, with others.
int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept {
  va_list rest;
  va_start(rest, argument);
  void* const parent_tid = va_arg(rest, void*);
  void* const tls = va_arg(rest, void*);
  void* const child_tid = va_arg(rest, void*);
  va_end(rest);
  auto* const behind =
      farcall::interpose::next<"clone", int(int (*)(void*), void*, int, void*, ...)>();
  CloneBody body{.function = function, .argument = argument};
  const bool wrapped =
      function != nullptr && (flags & (CLONE_VM | CLONE_FILES | CLONE_THREAD)) == 0;
  return behind(wrapped ? run_in_clone : function, stack, flags,
                wrapped ? static_cast<void*>(&body) : argument, parent_tid, tls, child_tid);
}

}  // extern "C"
