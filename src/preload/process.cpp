// SPDX-License-Identifier: Apache-2.0
//
// Hooks: other programs, and ways round the library. What a program inherits that is executed, and
// what the C library reads and writes inside itself, must be the kernel's before.
#include <aio.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdarg>
#include <cstddef>
#include <cstdlib>

#include "preload/address.hpp"
#include "preload/epoll.hpp"
#include "preload/epoll_set.hpp"
#include "preload/fork.hpp"
#include "preload/handback.hpp"
#include "preload/hooked_call.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/udp.hpp"
#include "preload/upgrade.hpp"
#include "preload/uring.hpp"
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
  if (own) leave_process(Leaving::executes);
  const int result = call();
  const int error = errno;
  if (own) stay_in_process();
  errno = error;
  return result;
}

// A descriptor that the C library, or a thread of it, reads and writes without being seen.
// Requests of the kernel's own asynchronous calls, which it carries out.
void leave_to_aio(long count, long requests) noexcept {
  const auto* const all = reinterpret_cast<const iocb* const*>(requests);
  for (long i = 0; i < count && !is_no_address(all); ++i)
    if (!is_no_address(all[i])) leave_socket(static_cast<int>(all[i]->aio_fildes));
}

// Where the new process has memory and a number of its own.
constexpr unsigned long kSharesMemory = CLONE_VM | CLONE_VFORK;

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
  leave_process(Leaving::ends);
  return status;
}

// The same by a bare call, of which the child goes on where its parent does.
template <class Make>
long clone_by(unsigned long flags, Make make) noexcept {
  const long child = fork_by(make);
  if (child == 0) forget_for_flags(flags);
  return child;
}

// Threads share the descriptors of their process, and so does this library's table.
unsigned long flags_to_leave_for(unsigned long flags) noexcept {
  return (flags & CLONE_VM) != 0 ? flags & ~static_cast<unsigned long>(CLONE_FILES) : flags;
}

// A library that the program has opened for itself is not behind this one; but it is loaded.
template <real::Symbol kSymbol, class Function>
Function* of_uring() noexcept {
  if (Function* const known = real::next<kSymbol, Function>()) return known;
  for (const char* const name : {"liburing.so.2", "liburing.so.1"})
    if (void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
      void* const found = ::dlsym(library, kSymbol.name);
      ::dlclose(library);
      if (found != nullptr) return reinterpret_cast<Function*>(found);
    }
  return nullptr;
}

// What goes through such a ring is not seen here, see uring.hpp. liburing asks the kernel for it
// without the C library, but is itself called by the program. Its functions return the negative
// errno.
template <class Function, class... Arguments>
int set_up_uring(Function* function, Arguments... arguments) {
  if (function == nullptr) return -ENOSYS;
  const int result = function(arguments...);
  if (result >= 0) leave_for_good();
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

// Streams are read, written and closed inside the C library; the number may be that of another file
// afterwards.
FILE* fdopen(int fd, const char* mode) {
  leave_socket(fd);
  FILE* const stream = real::next<"fdopen", FILE*(int, const char*)>()(fd, mode);
  if (stream != nullptr && in_own_process()) {
    const int error = errno;
    release(forget(fd));
    udp_forget(fd);
    errno = error;
  }
  return stream;
}

// Read and written by threads of the C library.
int aio_read(aiocb* request) {
  if (!is_no_address(request)) leave_socket(request->aio_fildes);
  return real::next<"aio_read", int(aiocb*)>()(request);
}
int aio_read64(aiocb64* request) { return aio_read(reinterpret_cast<aiocb*>(request)); }
int aio_write(aiocb* request) {
  if (!is_no_address(request)) leave_socket(request->aio_fildes);
  return real::next<"aio_write", int(aiocb*)>()(request);
}
int aio_write64(aiocb64* request) { return aio_write(reinterpret_cast<aiocb*>(request)); }
int lio_listio(int mode, aiocb* const* requests, int count, sigevent* event) {
  for (int i = 0; i < count && !is_no_address(requests); ++i)
    if (!is_no_address(requests[i])) leave_socket(requests[i]->aio_fildes);
  using List = int(int, aiocb* const*, int, sigevent*);
  return real::next<"lio_listio", List>()(mode, requests, count, event);
}
int lio_listio64(int mode, aiocb64* const* requests, int count, sigevent* event) {
  return lio_listio(mode, reinterpret_cast<aiocb* const*>(requests), count, event);
}
static_assert(sizeof(aiocb) == sizeof(aiocb64));

// Of liburing; the types are its own, and only passed on.
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  using Init = int(unsigned, void*, unsigned);
  return set_up_uring(of_uring<"io_uring_queue_init", Init>(), entries, ring, flags);
}
int io_uring_queue_init_params(unsigned entries, void* ring, void* parameters) {
  using Init = int(unsigned, void*, void*);
  return set_up_uring(of_uring<"io_uring_queue_init_params", Init>(), entries, ring, parameters);
}
int io_uring_queue_init_mem(unsigned entries, void* ring, void* parameters, void* memory,
                            size_t size) {
  using Init = int(unsigned, void*, void*, void*, size_t);
  return set_up_uring(of_uring<"io_uring_queue_init_mem", Init>(), entries, ring, parameters,
                      memory, size);
}
int io_uring_setup(unsigned entries, void* parameters) {
  using Setup = int(unsigned, void*);
  return set_up_uring(of_uring<"io_uring_setup", Setup>(), entries, parameters);
}

// Written inside the C library, too.
int vdprintf(int fd, const char* format, va_list arguments) {
  using Print = int(int, const char*, va_list);
  leave_socket(fd);
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
  leave_socket(fd);
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
  leave_process(Leaving::ends);
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

// Calls of the kernel by number, where the library has a say in what they do.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto fd = static_cast<int>(a[0]);
  const auto second = static_cast<int>(a[1]);
  const auto third = static_cast<int>(a[2]);
  const auto size = static_cast<std::size_t>(a[2]);
  auto* const buffer = reinterpret_cast<void*>(a[1]);
  auto* const parts = static_cast<iovec*>(buffer);
  const auto by_kernel = [&] { return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  switch (number) {
    case SYS_read: return read(fd, buffer, size);
    case SYS_write: return write(fd, buffer, size);
    case SYS_readv: return readv(fd, parts, third);
    case SYS_writev: return writev(fd, parts, third);
    // The offset comes in two words, of which these machines use one.
    case SYS_preadv2: return preadv2(fd, parts, third, a[3], static_cast<int>(a[5]));
    case SYS_pwritev2: return pwritev2(fd, parts, third, a[3], static_cast<int>(a[5]));
    case SYS_recvfrom:
      return recvfrom(fd, buffer, size, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                      reinterpret_cast<socklen_t*>(a[5]));
    case SYS_sendto:
      return sendto(fd, buffer, size, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                    static_cast<socklen_t>(a[5]));
    case SYS_recvmsg: return recvmsg(fd, static_cast<msghdr*>(buffer), third);
    case SYS_sendmsg: return sendmsg(fd, static_cast<msghdr*>(buffer), third);
    case SYS_recvmmsg:
      return recvmmsg(fd, static_cast<mmsghdr*>(buffer), static_cast<unsigned>(a[2]),
                      static_cast<int>(a[3]), reinterpret_cast<timespec*>(a[4]));
    case SYS_sendmmsg:
      return sendmmsg(fd, static_cast<mmsghdr*>(buffer), static_cast<unsigned>(a[2]),
                      static_cast<int>(a[3]));
    case SYS_sendfile:
      return sendfile(fd, second, reinterpret_cast<off_t*>(a[2]), static_cast<std::size_t>(a[3]));
    case SYS_splice:
      return splice(fd, reinterpret_cast<off64_t*>(a[1]), third, reinterpret_cast<off64_t*>(a[3]),
                    static_cast<std::size_t>(a[4]), static_cast<unsigned>(a[5]));
    case SYS_bind: return bind(fd, static_cast<sockaddr*>(buffer), static_cast<socklen_t>(size));
    case SYS_connect:
      return connect(fd, static_cast<sockaddr*>(buffer), static_cast<socklen_t>(size));
    case SYS_shutdown: return shutdown(fd, second);
    case SYS_close: return close(fd);
    case SYS_close_range:
      return close_range(static_cast<unsigned>(a[0]), static_cast<unsigned>(a[1]), third);
    case SYS_dup: return dup(fd);
#ifdef SYS_dup2
    case SYS_dup2: return dup2(fd, second);
#endif
    case SYS_dup3: return dup3(fd, second, third);
    case SYS_fcntl: return fcntl(fd, second, a[2]);
    case SYS_ioctl: return ioctl(fd, static_cast<unsigned long>(a[1]), a[2]);
    case SYS_getsockopt:
      return getsockopt(fd, second, third, reinterpret_cast<void*>(a[3]),
                        reinterpret_cast<socklen_t*>(a[4]));
    case SYS_setsockopt:
      return setsockopt(fd, second, third, reinterpret_cast<void*>(a[3]),
                        static_cast<socklen_t>(a[4]));
    case SYS_epoll_ctl: return epoll_ctl(fd, second, third, reinterpret_cast<epoll_event*>(a[3]));
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
    case SYS_io_uring_setup:
      return set_up_ring(static_cast<unsigned>(a[0]), reinterpret_cast<void*>(a[1]));
    case SYS_io_uring_enter: return enter_ring(a);
    case SYS_io_uring_register: return register_with_ring(a);
    case SYS_execve:
    case SYS_execveat: return execute([&] { return static_cast<int>(with_errno(by_kernel())); });
    case SYS_exit_group: leave_process(Leaving::ends); return with_errno(by_kernel());
    case SYS_seccomp:
      if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER) confine();
      return with_errno(by_kernel());
    case SYS_prctl:
      if (a[0] == PR_SET_SECCOMP) confine();
      return with_errno(by_kernel());
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_chroot:
      if (in_own_process()) leave_connections();
      return with_errno(by_kernel());
    case SYS_io_submit: leave_to_aio(a[1], a[2]); return with_errno(by_kernel());
    case SYS_setns: return setns(fd, second);
    case SYS_unshare: return unshare(fd);
#ifdef SYS_fork
    case SYS_fork: return with_errno(fork_by(by_kernel));
#endif
    case SYS_clone: {
      const auto flags = static_cast<unsigned long>(a[0]);
      leave_for_flags(flags_to_leave_for(flags));
      if ((flags & kSharesMemory) == 0) return with_errno(clone_by(flags, by_kernel));
      return with_errno(by_kernel());
    }
    case SYS_clone3: {
      const auto* const asked = reinterpret_cast<const clone_args*>(a[0]);
      if (is_no_address(asked)) return with_errno(by_kernel());
      leave_for_flags(flags_to_leave_for(asked->flags));
      if ((asked->flags & kSharesMemory) == 0 && asked->stack == 0)
        return with_errno(clone_by(asked->flags, by_kernel));
      return with_errno(by_kernel());
    }
    default: return with_errno(by_kernel());
  }
}

}  // extern "C"
