// SPDX-License-Identifier: Apache-2.0
//
// Hooks: other programs, and ways round the library. What a program inherits that is executed, and
// what the C library reads and writes inside itself, must be the kernel's before.
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdarg>
#include <cstddef>
#include <cstdlib>

#include "preload/epoll.hpp"
#include "preload/epoll_set.hpp"
#include "preload/handback.hpp"
#include "preload/lock.hpp"
#include "preload/log.hpp"
#include "preload/real.hpp"
#include "preload/udp.hpp"
#include "preload/wait_by_number.hpp"

namespace farcall::preload {
namespace {

// Everything that a program would inherit that is about to be executed.
void hand_back_inherited() noexcept {
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

// Around the execution of a program in this process, which returns only if it fails.
template <class Execute>
int execute(Execute call) {
  hand_back_inherited();
  const bool own = in_own_process();
  if (own) leave_process();
  const int result = call();
  const int error = errno;
  if (own) stay_in_process();
  errno = error;
  return result;
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

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int from, int to) {
  if (Side* const side = find_side(from)) hand_back(*side, from, Reason::passed);
  if (UdpSocket* const udp = find_udp(from)) udp_leave(*udp);
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

// Streams are read, written and closed inside the C library.
FILE* fdopen(int fd, const char* mode) {
  if (Side* const side = find_side(fd)) {
    hand_back(*side, fd, Reason::passed);
    if (in_own_process()) release(forget(fd));
  }
  if (UdpSocket* const udp = find_udp(fd)) {
    udp_leave(*udp);
    if (in_own_process()) udp_forget(fd);  // fclose() is not seen
  }
  return real::next<"fdopen", FILE*(int, const char*)>()(fd, mode);
}

// Written inside the C library, too.
int vdprintf(int fd, const char* format, va_list arguments) {
  using Print = int(int, const char*, va_list);
  if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::passed);
  return real::next<"vdprintf", Print>()(fd, format, arguments);
}

int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = vdprintf(fd, format, arguments);
  va_end(arguments);
  return written;
}

int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  using Print = int(int, int, const char*, va_list);
  if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::passed);
  return real::next<"__vdprintf_chk", Print>()(fd, flag, format, arguments);
}

int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = __vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return written;
}

[[noreturn]] void _exit(int status) {
  leave_process();
  for (;;) kernel(SYS_exit_group, status);
}
[[noreturn]] void _Exit(int status) { _exit(status); }

// Calls of the kernel by number, where the library has a say in what they do.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto fd = static_cast<int>(a[0]);
  const auto size = static_cast<std::size_t>(a[2]);
  auto* const buffer = reinterpret_cast<void*>(a[1]);
  switch (number) {
    case SYS_read: return read(fd, buffer, size);
    case SYS_write: return write(fd, buffer, size);
    case SYS_readv: return readv(fd, static_cast<iovec*>(buffer), static_cast<int>(a[2]));
    case SYS_writev: return writev(fd, static_cast<iovec*>(buffer), static_cast<int>(a[2]));
    case SYS_recvfrom:
      return recvfrom(fd, buffer, size, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                      reinterpret_cast<socklen_t*>(a[5]));
    case SYS_sendto:
      return sendto(fd, buffer, size, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                    static_cast<socklen_t>(a[5]));
    case SYS_recvmsg: return recvmsg(fd, static_cast<msghdr*>(buffer), static_cast<int>(a[2]));
    case SYS_sendmsg: return sendmsg(fd, static_cast<msghdr*>(buffer), static_cast<int>(a[2]));
    case SYS_close: return close(fd);
    case SYS_dup: return dup(fd);
#ifdef SYS_dup2
    case SYS_dup2: return dup2(fd, static_cast<int>(a[1]));
#endif
    case SYS_fcntl: return fcntl(fd, static_cast<int>(a[1]), a[2]);
    case SYS_dup3: return dup3(fd, static_cast<int>(a[1]), static_cast<int>(a[2]));
    case SYS_epoll_ctl:
      return epoll_ctl(fd, static_cast<int>(a[1]), static_cast<int>(a[2]),
                       reinterpret_cast<epoll_event*>(a[3]));
    case SYS_epoll_create1: return epoll_create1(fd);
    case SYS_epoll_pwait:
#ifdef SYS_epoll_pwait2
    case SYS_epoll_pwait2:
#endif
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
      return epoll_wait_by_number(number, a);
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll: return poll_by_number(number, a);
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6: return select_by_number(number, a);
#ifdef SYS_epoll_create
    case SYS_epoll_create: return epoll_create(fd);
#endif
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup: {
      // Whatever is done through it is not seen here.
      const long ring = with_errno(kernel(number, a[0], a[1]));
      if (ring >= 0) leave_everything();
      return ring;
    }
#endif
    case SYS_clone: {
      const long child = with_errno(kernel(number, a[0], a[1], a[2], a[3], a[4]));
      // With memory of its own it has a number of its own, too.
      if (child == 0 && (a[0] & CLONE_VM) == 0) {
        known_thread = 0;
        inherit_sets();
      }
      return child;
    }
    default: return with_errno(kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]));
  }
}

}  // extern "C"
