// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the life of a socket, and of the descriptors that refer to it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdarg>
#include <cstring>

#include "preload/address.hpp"
#include "preload/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/real.hpp"
#include "preload/transfer.hpp"
#include "preload/udp.hpp"
#include "preload/upgrade.hpp"

#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif

namespace farcall::preload {
namespace {

// The table knows of it, but the number is new: somebody has closed it behind the library's back.
void forget_stale(int fd) noexcept {
  if (fd >= 0 && find_side(fd) != nullptr) release(forget(fd));
  udp_forget(fd);
}

int accept_connection(int listener, sockaddr* address, socklen_t* size, int flags) {
  using Accept4 = int(int, sockaddr*, socklen_t*, int);
  Accept4* const next = real::next<"accept4", Accept4>();
  if (is_bad_optional(address) || (address != nullptr && is_no_address(size)))
    return next(listener, address, size, flags);
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof peer;
  const int fd = next(listener, reinterpret_cast<sockaddr*>(&peer), &peer_size, flags);
  if (fd < 0) return fd;
  if (address != nullptr) {
    std::memcpy(address, &peer, std::min(*size, peer_size));
    *size = peer_size;
  }
  forget_stale(fd);
  forget_registrations(fd);
  if (peer_size >= sizeof(sa_family_t))
    note_connection(fd, reinterpret_cast<const sockaddr*>(&peer), false);
  return fd;
}

int close_descriptor(int fd) noexcept {
  if (is_private(fd)) [[unlikely]] {
    errno = EBADF;  // nothing that the program has opened
    return -1;
  }
  forget_registrations(fd);
  if (find_udp(fd) != nullptr && in_own_process()) udp_forget(fd);
  if (find_side(fd) == nullptr || !in_own_process())
    return static_cast<int>(with_errno(kernel(SYS_close, fd)));
  const Released last = forget(fd);
  say_closed(last, fd);
  const long result = kernel(SYS_close, fd);
  release(last);
  return static_cast<int>(with_errno(result));
}

// After a successful duplication.
int duplicated(int from, int to) noexcept {
  Side* const side = find_side(from);
  if (to < 0) return to;
  epoll_duplicated(from, to);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(from);
    if (!in_own_process()) {
      if (udp != nullptr) udp_leave(*udp);
      return to;
    }
    forget_stale(to);
    if (udp == nullptr) return to;
    if (to <= STDERR_FILENO) {
      udp_leave(*udp);
    } else {
      if (is_registered(from)) (void)udp_watch_for_good(*udp, from);
      udp_duplicated(*udp, to);
    }
    return to;
  }
  if (!in_own_process() || to <= STDERR_FILENO) {
    // Standard streams are read and written inside the C library; and a child that is about to
    // execute a program shares this memory, but not these descriptors.
    hand_back(*side, from, Reason::passed);
    return to;
  }
  if (is_registered(from)) side->stay_watched.store(true, std::memory_order_relaxed);
  forget_stale(to);
  adopt(to, *side);
  return to;
}

int duplicate_onto(int from, int to, int flags) noexcept {
  if (from == to || kernel(SYS_fcntl, from, F_GETFD) < 0 || !in_own_process())
    return duplicated(from, static_cast<int>(with_errno(kernel(SYS_dup3, from, to, flags))));
  if (is_private(to)) forget_private(to);  // the program's from now on
  forget_registrations(to);
  const Released last = forget(to);
  say_closed(last, to);
  const long result = kernel(SYS_dup3, from, to, flags);
  release(last);
  return duplicated(from, static_cast<int>(with_errno(result)));
}

long control_descriptor(int fd, int command, unsigned long argument) noexcept {
  const long result = with_errno(kernel(SYS_fcntl, fd, command, argument));
  if (result < 0) return result;
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
    return duplicated(fd, static_cast<int>(result));
  Side* const side = find_side(fd);
  if (UdpSocket* const udp = find_udp(fd); udp != nullptr && command == F_SETFL) {
    udp_flags_changed(*udp);
    if ((argument & O_ASYNC) != 0) udp_leave(*udp);
  }
  if (command == F_SETFL && side != nullptr) {
    side->nonblocking.store((argument & O_NONBLOCK) != 0, std::memory_order_relaxed);
    if ((argument & O_ASYNC) != 0) hand_back(*side, fd, Reason::option);
  }
  return result;
}

// Options under which bytes are no longer just bytes, or readable is something else.
bool changes_the_stream(int level, int option, const void* value, socklen_t size) noexcept {
  int number = 0;
  if (!is_no_address(value) && size >= sizeof number) std::memcpy(&number, value, sizeof number);
  if (level == SOL_SOCKET) switch (option) {
      case SO_RCVLOWAT: return number > 1;
      case SO_ZEROCOPY:
      case SO_PEEK_OFF:
      case SO_TIMESTAMP:
      case SO_TIMESTAMPNS:
      case SO_TIMESTAMPING: return number != 0;
      default: return false;
    }
  if (level == IPPROTO_TCP) switch (option) {
      case TCP_ULP:
      case TCP_REPAIR: return true;
      default: return false;
    }
  return false;
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int socket(int family, int type, int protocol) {
  const long fd = kernel(SYS_socket, family, type, protocol);
  forget_stale(static_cast<int>(fd));
  forget_registrations(static_cast<int>(fd));
  if (fd >= 0 && in_own_process()) udp_note(static_cast<int>(fd), family, type, protocol);
  return static_cast<int>(with_errno(fd));
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  using Connect = int(int, const sockaddr*, socklen_t);
  const int result = real::next<"connect", Connect>()(fd, address, size);
  if (result != 0 && errno != EINPROGRESS) return result;
  const int error = errno;
  if (address != nullptr && size >= sizeof(sa_family_t)) {
    if (UdpSocket* const udp = find_udp(fd))
      udp_connected(*udp, fd);
    else if (address->sa_family == AF_UNSPEC)
      forget_stale(fd);
    else if (find_side(fd) == nullptr && size >= sizeof(sockaddr_in) && in_own_process())
      note_connection(fd, address, true);
  }
  errno = error;
  return result;
}

int accept(int fd, sockaddr* address, socklen_t* size) {
  return accept_connection(fd, address, size, 0);
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return accept_connection(fd, address, size, flags);
}

int shutdown(int fd, int how) {
  if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
  if (Side* const side = find_side(fd)) {
    if (how == SHUT_WR || how == SHUT_RDWR) {
      const Guard guard(side->send_lock);
      side->finished.store(true, std::memory_order_relaxed);
      if (side->out.control != nullptr) {
        send_last_bytes(*side, fd);
        side->sender.leave_ring(side->out);
        side->out.control->sender_said.fetch_or(Direction::kFinished, std::memory_order_release);
      }
    }
    if (how == SHUT_RD || how == SHUT_RDWR) {
      const Guard guard(side->receive_lock);
      side->told_to_end = true;
      if (side->in.control != nullptr) side->receiver.watch_for_ever(side->in);
    }
  }
  return static_cast<int>(with_errno(kernel(SYS_shutdown, fd, how)));
}

int close(int fd) { return close_descriptor(fd); }
int __close(int fd) { return close_descriptor(fd); }

int close_range(unsigned first, unsigned last, int flags) {
  if ((static_cast<unsigned>(flags) & CLOSE_RANGE_CLOEXEC) == 0 && first <= last &&
      in_own_process()) {
    const auto highest = static_cast<unsigned>(std::max(highest_known(), udp_highest()));
    for (unsigned fd = first; fd <= last && fd <= highest; ++fd) {
      const int number = static_cast<int>(fd);
      forget_private(number);
      if (find_side(number) != nullptr || find_udp(number) != nullptr || is_registered(number))
        close_descriptor(number);
    }
  }
  return static_cast<int>(with_errno(kernel(SYS_close_range, first, last, flags)));
}

void closefrom(int first) { close_range(first < 0 ? 0 : static_cast<unsigned>(first), ~0U, 0); }

int dup(int fd) { return duplicated(fd, static_cast<int>(with_errno(kernel(SYS_dup, fd)))); }
int dup2(int from, int to) {
  if (from == to)
    return static_cast<int>(with_errno(kernel(SYS_fcntl, from, F_GETFD))) < 0 ? -1 : to;
  return duplicate_onto(from, to, 0);
}
int __dup2(int from, int to) { return dup2(from, to); }
int dup3(int from, int to, int flags) { return duplicate_onto(from, to, flags); }

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const auto argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  // Waiting for a lock is a point at which threads can be cancelled.
  if (command == F_SETLKW || command == F_OFD_SETLKW) {
    using Fcntl = int(int, int, ...);
    return real::next<"fcntl", Fcntl>()(fd, command, argument);
  }
  return static_cast<int>(control_descriptor(fd, command, argument));
}

int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const auto argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  return fcntl(fd, command, argument);
}

int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const long result = kernel(SYS_ioctl, fd, request, argument);
  Side* const side = find_side(fd);
  if (UdpSocket* const udp = find_udp(fd)) udp_ioctl(*udp, request, argument, result);
  if (side == nullptr || result < 0) return static_cast<int>(with_errno(result));
  if (request == FIONBIO) {
    side->nonblocking.store(*static_cast<int*>(argument) != 0, std::memory_order_relaxed);
  } else if (request == FIOASYNC && *static_cast<int*>(argument) != 0) {
    hand_back(*side, fd, Reason::option);
  } else if (request == FIONREAD) {
    const Guard guard(side->receive_lock);
    if (side->in.control != nullptr) {
      // All that the ring holds, also behind bytes of the kernel: who counts down from here to
      // know that nothing is left must not come to zero early.
      (void)side->receiver.next(side->in);
      *static_cast<int*>(argument) += static_cast<int>(side->receiver.held(side->in));
    }
  }
  return static_cast<int>(result);
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* size) {
  // It receives.
  if (level == IPPROTO_TCP && option == TCP_ZEROCOPY_RECEIVE)
    if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::option);
  const long result = kernel(SYS_getsockopt, fd, level, option, value, size);
  if (level == IPPROTO_TCP && option == TCP_NODELAY && result == 0 && *size >= sizeof(int)) {
    const Side* const side = find_side(fd);
    if (side != nullptr && side->accelerated()) {
      const int wanted = side->nodelay.load(std::memory_order_relaxed) ? 1 : 0;
      std::memcpy(value, &wanted, sizeof wanted);
    }
  }
  return static_cast<int>(with_errno(result));
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t size) {
  if (Side* const side = find_side(fd)) {
    if (changes_the_stream(level, option, value, size)) hand_back(*side, fd, Reason::option);
    if (level == IPPROTO_TCP && option == TCP_NODELAY && side->accelerated() &&
        !is_no_address(value) && size >= sizeof(int)) {
      int wanted = 0;
      std::memcpy(&wanted, value, sizeof wanted);
      side->nodelay.store(wanted != 0, std::memory_order_relaxed);
      return 0;  // it is set in the kernel, see join()
    }
  }
  if (UdpSocket* const udp = find_udp(fd)) udp_option(*udp, fd, level, option);
  return static_cast<int>(with_errno(kernel(SYS_setsockopt, fd, level, option, value, size)));
}

}  // extern "C"
