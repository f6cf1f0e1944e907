// SPDX-License-Identifier: Apache-2.0
//
// Hooks: syscall(2).
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>

#include "preload/address.hpp"
#include "preload/handback.hpp"
#include "preload/hooked_call.hpp"
#include "preload/privilege.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/uring.hpp"
#include "preload/wait_by_number.hpp"

namespace farcall::preload {
namespace {

// Requests of the kernel's own asynchronous calls, which it carries out.
void leave_to_aio(long count, long requests) noexcept {
  const auto* const all = reinterpret_cast<const iocb* const*>(requests);
  for (long i = 0; i < count && !is_no_address(all); ++i)
    if (!is_no_address(all[i])) leave_socket(static_cast<int>(all[i]->aio_fildes));
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

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
    case SYS_socket: return socket(fd, second, third);
    case SYS_socketpair: return socketpair(fd, second, third, reinterpret_cast<int*>(a[3]));
    case SYS_accept:
      return accept(fd, static_cast<sockaddr*>(buffer), reinterpret_cast<socklen_t*>(a[2]));
    case SYS_accept4:
      return accept4(fd, static_cast<sockaddr*>(buffer), reinterpret_cast<socklen_t*>(a[2]),
                     static_cast<int>(a[3]));
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
