// SPDX-License-Identifier: Apache-2.0
//
// Hooks: processes that are made, execute another program, or end. What a program inherits that is
// executed must be the kernel's before.
#include "preload/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdlib>

#include "preload/epoll/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/hooked_call.hpp"
#include "preload/opened.hpp"
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"
#include "preload/uring.hpp"

namespace farcall::preload {

void hand_back_inherited() noexcept {
  forget_all_opened();
  const int highest = highest_descriptor();
  for (int fd = 0; fd <= highest; ++fd) {
    Side* const side = find_side(fd);
    if (side == nullptr) continue;
    const long flags = kernel(SYS_fcntl, fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) hand_back(*side, fd, Reason::passed);
  }
  const int highest_udp = udp_highest();
  for (int fd = 0; fd <= highest_udp; ++fd) {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) continue;
    const long flags = kernel(SYS_fcntl, fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) udp_leave(*udp);
  }
  leave_inherited_to_kernel();
}

namespace {

// clone() on a stack of its own: the handlers run there before the program's function does.
struct CloneStart {
  int (*function)(void*);
  void* argument;
  unsigned long flags;
};

int begin_clone(void* pointer) {
  const CloneStart start = *static_cast<CloneStart*>(pointer);
  after_bare_fork_in_child();
  forget_for_flags(start.flags);
  const int status = start.function(start.argument);
  leave_and_be_read(Leaving::ends);
  return status;
}

// The arguments of execl and its kin, up to the null pointer.
constexpr std::size_t kMostArguments = 4096;

std::size_t count_arguments(va_list arguments) {
  std::size_t count = 1;
  while (count < kMostArguments && va_arg(arguments, const char*) != nullptr) ++count;
  return count;
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

// Collects `first` and what follows into the array `list`, which ends with a null pointer.
#define FARCALL_COLLECT(list, first, arguments)                                                  \
  va_list arguments;                                                                             \
  va_start(arguments, first);                                                                    \
  const std::size_t list##_count = count_arguments(arguments);                                   \
  va_end(arguments);                                                                             \
  auto** const list = static_cast<char**>(__builtin_alloca((list##_count + 1) * sizeof(char*))); \
  va_start(arguments, first);                                                                    \
  for (std::size_t i = 0; i < list##_count; ++i)                                                 \
    list[i] = i == 0 ? const_cast<char*>(first) : va_arg(arguments, char*);                      \
  list[list##_count] = nullptr

extern "C" {

int execve(const char* path, char* const* arguments, char* const* environment) {
  using Execve = int(const char*, char* const*, char* const*);
  return execute([&] { return real::next<"execve", Execve>()(path, arguments, environment); });
}

int execv(const char* path, char* const* arguments) {
  using Execv = int(const char*, char* const*);
  return execute([&] { return real::next<"execv", Execv>()(path, arguments); });
}

int execvp(const char* file, char* const* arguments) {
  using Execv = int(const char*, char* const*);
  return execute([&] { return real::next<"execvp", Execv>()(file, arguments); });
}

int execvpe(const char* file, char* const* arguments, char* const* environment) {
  using Execve = int(const char*, char* const*, char* const*);
  return execute([&] { return real::next<"execvpe", Execve>()(file, arguments, environment); });
}

int fexecve(int fd, char* const* arguments, char* const* environment) {
  using Fexecve = int(int, char* const*, char* const*);
  return execute([&] { return real::next<"fexecve", Fexecve>()(fd, arguments, environment); });
}

int execveat(int directory, const char* path, char* const* arguments, char* const* environment,
             int flags) {
  using Execveat = int(int, const char*, char* const*, char* const*, int);
  return execute([&] {
    return real::next<"execveat", Execveat>()(directory, path, arguments, environment, flags);
  });
}

int execl(const char* path, const char* first, ...) {
  FARCALL_COLLECT(list, first, arguments);
  va_end(arguments);
  return execv(path, list);
}

int execlp(const char* file, const char* first, ...) {
  FARCALL_COLLECT(list, first, arguments);
  va_end(arguments);
  return execvp(file, list);
}

int execle(const char* path, const char* first, ...) {
  FARCALL_COLLECT(list, first, arguments);
  (void)va_arg(arguments, char*);  // the null pointer
  char* const* const environment = va_arg(arguments, char* const*);
  va_end(arguments);
  return execve(path, list, environment);
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments,
                char* const* environment) {
  using Spawn = decltype(posix_spawn);
  hand_back_inherited();
  return real::next<"posix_spawn", Spawn>()(pid, path, actions, attributes, arguments, environment);
}

int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const* arguments,
                 char* const* environment) {
  using Spawn = decltype(posix_spawnp);
  hand_back_inherited();
  return real::next<"posix_spawnp", Spawn>()(pid, file, actions, attributes, arguments,
                                             environment);
}

// Of a newer C library than this one may have been built with.
int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments,
                char* const* environment) {
  using Spawn = int(int*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                    char* const*, char* const*);
  Spawn* const next = real::next<"pidfd_spawn", Spawn>();
  if (next == nullptr) return ENOSYS;
  hand_back_inherited();
  return next(pidfd, path, actions, attributes, arguments, environment);
}

int pidfd_spawnp(int* pidfd, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const* arguments,
                 char* const* environment) {
  using Spawn = int(int*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                    char* const*, char* const*);
  Spawn* const next = real::next<"pidfd_spawnp", Spawn>();
  if (next == nullptr) return ENOSYS;
  hand_back_inherited();
  return next(pidfd, file, actions, attributes, arguments, environment);
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int from, int to) {
  leave_socket(from);
  using Add = decltype(posix_spawn_file_actions_adddup2);
  return real::next<"posix_spawn_file_actions_adddup2", Add>()(actions, from, to);
}

int system(const char* command) {
  hand_back_inherited();
  return real::next<"system", int(const char*)>()(command);
}

FILE* popen(const char* command, const char* mode) {
  hand_back_inherited();
  return real::next<"popen", FILE*(const char*, const char*)>()(command, mode);
}

[[noreturn]] void _exit(int status) {
  leave_and_be_read(Leaving::ends);
  for (;;) kernel(SYS_exit_group, status);
}
[[noreturn]] void _Exit(int status) { _exit(status); }

// fork() without the handlers of the program and of other libraries; ours are needed all the same.
pid_t _Fork() {
  return static_cast<pid_t>(fork_by([] { return real::next<"_Fork", pid_t()>()(); }));
}

int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) {
  using Clone = int(int (*)(void*), void*, int, void*, ...);
  va_list list;
  va_start(list, argument);
  void* rest[3];
  for (void*& one : rest) one = va_arg(list, void*);
  va_end(list);
  Clone* const next = real::next<"clone", Clone>();
  const auto asked = static_cast<unsigned long>(static_cast<unsigned>(flags));
  leave_for_flags(flags_to_leave_for(asked));
  if ((asked & kSharesMemory) != 0 || function == nullptr || stack == nullptr)
    return next(function, stack, flags, argument, rest[0], rest[1], rest[2]);
  CloneStart start{.function = function, .argument = argument, .flags = asked};
  before_bare_fork();
  const int child = next(begin_clone, stack, flags, &start, rest[0], rest[1], rest[2]);
  const int error = errno;
  after_bare_fork_in_parent();
  errno = error;
  return child;
}

}  // extern "C"
