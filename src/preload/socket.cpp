// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the life of a socket, and of the descriptors that refer to it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/single_threaded.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/hooked_call.hpp"
#include "preload/listeners.hpp"
#include "preload/opened.hpp"
#include "preload/packet.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"
#include "preload/upgrade.hpp"
#include "preload/uring.hpp"

namespace farcall::preload {
namespace {

constinit real::Direct<"socket", int(int, int, int), int, int, int> next_socket{SYS_socket};
constinit real::Direct<"socketpair", int(int, int, int, int*), int, int, int, int*> next_socketpair{
    SYS_socketpair};
constinit real::Direct<"shutdown", int(int, int), int, int> next_shutdown{SYS_shutdown};
constinit real::Direct<"close", int(int), int> next_close{SYS_close};
constinit real::Direct<"close_range", int(unsigned, unsigned, int), unsigned, unsigned, int>
    next_close_range{SYS_close_range};
constinit real::Direct<"dup", int(int), int> next_dup{SYS_dup};
constinit real::Direct<"dup3", int(int, int, int), int, int, int> next_dup3{SYS_dup3};
constinit real::Direct<"fcntl", int(int, int, ...), int, int, unsigned long> next_fcntl{SYS_fcntl};
constinit real::Direct<"ioctl", int(int, unsigned long, ...), int, unsigned long, void*> next_ioctl{
    SYS_ioctl};
#ifdef SYS_dup2
constinit real::Direct<"dup2", int(int, int), int, int> next_dup2{SYS_dup2};
#endif

[[gnu::constructor]] void look_up() noexcept {
  next_socket.look_up();
  next_socketpair.look_up();
  next_shutdown.look_up();
  next_close.look_up();
  next_close_range.look_up();
  next_dup.look_up();
#ifdef SYS_dup2
  next_dup2.look_up();
#endif
  next_dup3.look_up();
  next_fcntl.look_up();
  next_ioctl.look_up();
}

// The table knows of it, but the number is new: somebody has closed it behind the library's back.
void forget_stale(int fd) noexcept {
  if (fd >= 0 && find_side(fd) != nullptr) release(forget(fd));
  udp_forget(fd);
}

// Whether the number, which the kernel has just given, is this process's: a child that shares this
// memory has descriptors of its own.
bool is_new_here(int fd) noexcept {
  if (fd < 0 || (!is_confined() && !in_own_process())) return false;
  forget_stale(fd);
  forget_registrations(fd);
  return true;
}

// Bytes of the program. Holds the receiver's lock.
std::uint64_t unread_in_ring(Side& side) noexcept {
  const std::uint64_t held = side.receiver.held(side.in());
  if (!side.has_messages()) return held;
  return lengths_of_messages(side.in(), side.receiver.position(), held);
}

// The address of a peer, in `peer` or, where that was too small for it, from the kernel.
void note_accepted(int fd, const sockaddr* peer, socklen_t room, socklen_t size) noexcept {
  sockaddr_storage whole{};
  if (size > room) {
    size = sizeof whole;
    peer = reinterpret_cast<const sockaddr*>(&whole);
    if (kernel(SYS_getpeername, fd, &whole, &size) < 0) return;
  }
  note_connection(fd, peer, size, false);
}

// `call` is the program's own, with its arguments wherever it passed any.
template <class Accept>
int accept_connection(sockaddr* address, socklen_t* size, Accept call) {
  sockaddr_storage own{};
  socklen_t own_size = sizeof own;
  const bool wanted = may_accelerate();
  const bool told = address != nullptr;
  if (wanted && !told) {
    address = reinterpret_cast<sockaddr*>(&own);
    size = &own_size;
  }
  const socklen_t room = told && !is_no_address(size) ? *size : own_size;
  int fd = call(address, size);
  if (fd < 0 && errno == EMFILE && make_way()) fd = call(address, size);
  if (is_new_here(fd) && wanted) note_accepted(fd, address, room, *size);
  return fd;
}

int close_descriptor(int fd) noexcept {
  if (is_private(fd)) [[unlikely]] {
    errno = EBADF;  // nothing that the program has opened
    return -1;
  }
  forget_ring(fd);
  forget_opened(fd);
  leave_what_stays_registered(fd);
  forget_registrations(fd);
  if (find_udp(fd) != nullptr && in_own_process()) udp_forget(fd);
  if (find_side(fd) == nullptr || !in_own_process())
    return static_cast<int>(with_errno(next_close(fd)));
  settle_before_close(fd);
  const Released last = forget(fd);
  say_closed(last, fd);
  const long result = next_close(fd);
  ends_made.fetch_add(1, std::memory_order_relaxed);
  release(last);
  return static_cast<int>(with_errno(result));
}

// Whether anything is remembered of this number.
bool is_known(int fd) noexcept {
  return find_side(fd) != nullptr || find_udp(fd) != nullptr || is_registered(fd) ||
         is_private(fd) || is_ring(fd);
}

// Before a copy is where it is read and written without the library.
void leave_to_copy(int fd) noexcept {
  if (Side* const side = find_side(fd))
    hand_back(*side, fd, Reason::passed);
  else if (UdpSocket* const udp = find_udp(fd))
    udp_leave(*udp);
}

// After a successful duplication. `left`: leave_to_copy() has been called before.
int duplicated(int from, int to, bool left = false) noexcept {
  if (to < 0) return to;
  forget_opened(from);
  forget_opened(to);
  epoll_duplicated(from, to);
  Side* const side = find_side(from);
  UdpSocket* const udp = side == nullptr ? find_udp(from) : nullptr;
  if (side == nullptr && udp == nullptr && !is_known(to)) return to;
  const bool here = in_own_process();
  if (here) forget_stale(to);
  if (left) return to;
  if (!here || to <= STDERR_FILENO) {
    // Standard streams are read and written inside the C library; and a child that is about to
    // execute a program shares this memory, but not these descriptors.
    leave_to_copy(from);
  } else if (side != nullptr) {
    if (is_registered(from)) side->stay_watched.store(true, std::memory_order_relaxed);
    adopt(to, *side);
  } else if (udp != nullptr) {
    if (is_registered(from)) (void)udp_watch_for_good(*udp, from);
    udp_duplicated(*udp, to);
  }
  return to;
}

long duplicate(int from, int to) noexcept {
#ifdef SYS_dup2
  return next_dup2(from, to);
#else
  return next_dup3(from, to, 0);
#endif
}

// What is open there may be read and written inside the C library, as a stream, and by other
// threads at any time, past the library.
bool is_used_past_the_library(int fd) noexcept {
  return find_side(fd) == nullptr && find_udp(fd) == nullptr && !is_private(fd) &&
         kernel(SYS_fcntl, fd, F_GETFD) >= 0;
}

// Whether the kernel puts a copy there. It does not behind the limit, which may be lower by now.
bool can_duplicate_onto(int from, int to) noexcept {
  return kernel(SYS_fcntl, from, F_GETFD) >= 0 &&
         (is_confined() || static_cast<std::uint64_t>(to) < ask_descriptor_limit());
}

// `call` is dup2() or dup3().
template <class Duplicate>
int duplicate_onto(int from, int to, Duplicate call) noexcept {
  const bool leave = is_known(from) && from != to && !is_confined() &&
                     is_used_past_the_library(to) && kernel(SYS_fcntl, from, F_GETFD) >= 0;
  if (leave) leave_to_copy(from);
  if (from == to || !is_known(to) || !in_own_process() || !can_duplicate_onto(from, to))
    return duplicated(from, static_cast<int>(with_errno(call())), leave);
  if (is_private(to)) forget_private(to);  // the program's from now on
  forget_ring(to);
  leave_what_stays_registered(to);
  forget_registrations(to);
  settle_before_close(to);
  const Released last = forget(to);
  say_closed(last, to);
  const long result = call();
  ends_made.fetch_add(1, std::memory_order_relaxed);
  release(last);
  return duplicated(from, static_cast<int>(with_errno(result)), leave);
}

long control_descriptor(int fd, int command, unsigned long argument) noexcept {
  const long result = with_errno(next_fcntl(fd, command, argument));
  if (result < 0) return result;
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
    return duplicated(fd, static_cast<int>(result));
  Side* const side = find_side(fd);
  if (UdpSocket* const udp = find_udp(fd); udp != nullptr && command == F_SETFL) {
    udp_flags_changed(*udp);
    if ((argument & O_ASYNC) != 0) udp_leave(*udp);
  }
  if (command == F_SETFL && side != nullptr) {
    set_nonblocking(*side, (argument & O_NONBLOCK) != 0);
    if ((argument & O_ASYNC) != 0) hand_back(*side, fd, Reason::option);
  }
  return result;
}

// When the last datagram came.
bool asks_for_time(unsigned long request) noexcept {
  switch (request) {
    case SIOCGSTAMP_OLD:
    case SIOCGSTAMPNS_OLD:
    case SIOCGSTAMP_NEW:
    case SIOCGSTAMPNS_NEW: return true;
    default: return false;
  }
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int socket(int family, int type, int protocol) {
  const std::uint64_t forks = forks_so_far();
  long fd = next_socket(family, type, protocol);
  if (fd == -EMFILE && make_way()) fd = next_socket(family, type, protocol);
  if (is_new_here(static_cast<int>(fd)) && !acceleration_ended()) {
    note_opened(static_cast<int>(fd), forks);
    udp_note(static_cast<int>(fd), family, type, protocol);
  }
  return static_cast<int>(with_errno(fd));
}

int socketpair(int family, int type, int protocol, int* fds) {
  const std::uint64_t forks = forks_so_far();
  long result = next_socketpair(family, type, protocol, fds);
  if (result == -EMFILE && make_way()) result = next_socketpair(family, type, protocol, fds);
  if (result == 0 && is_new_here(fds[0]) && is_new_here(fds[1])) {
    note_opened(fds[0], forks);
    note_pair({fds[0], fds[1]});
  }
  return static_cast<int>(with_errno(result));
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  using Connect = int(int, const sockaddr*, socklen_t);
  const int result = real::next<"connect", Connect>()(fd, address, size);
  if (result != 0 && errno != EINPROGRESS) return result;
  const int error = errno;
  if (address != nullptr && size >= sizeof(sa_family_t)) {
    if (UdpSocket* const udp = find_udp(fd))
      udp_connected(*udp, fd);
    else if (address->sa_family == AF_UNSPEC && (is_confined() || in_own_process()))
      forget_stale(fd);
    else if (find_side(fd) == nullptr && may_accelerate() && in_own_process())
      note_connection(fd, address, size, true);
  }
  errno = error;
  return result;
}

int accept(int fd, sockaddr* address, socklen_t* size) {
  using Accept = int(int, sockaddr*, socklen_t*);
  return accept_connection(address, size, [&](sockaddr* to, socklen_t* to_size) {
    return real::next<"accept", Accept>()(fd, to, to_size);
  });
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  using Accept4 = int(int, sockaddr*, socklen_t*, int);
  return accept_connection(address, size, [&](sockaddr* to, socklen_t* to_size) {
    return real::next<"accept4", Accept4>()(fd, to, to_size, flags);
  });
}

int shutdown(int fd, int how) {
  if (UdpSocket* const udp = find_udp(fd)) udp_shut_down(*udp);
  Side* const side = find_side(fd);
  if (side != nullptr) {
    if (how == SHUT_WR || how == SHUT_RDWR) {
      const Guard guard(side->send_lock);
      side->finished.store(true, std::memory_order_relaxed);
      if (side->out().control != nullptr) {
        send_last_bytes(*side, fd);
        side->sender.leave_ring(side->out());
        side->out().control->sender_said.fetch_or(Direction::kFinished, std::memory_order_release);
      }
    }
    if (how == SHUT_RD || how == SHUT_RDWR) {
      const Guard guard(side->receive_lock);
      if (side->in().control != nullptr) {
        side->in().control->receiver_finished.store(1, std::memory_order_relaxed);
        side->receiver.watch_for_ever(side->in());
      } else {
        // The end that comes of it is no sign that the peer has died.
        side->reset_told = true;
      }
    }
  }
  const long result = next_shutdown(fd, how);
  if (side != nullptr) ends_made.fetch_add(1, std::memory_order_relaxed);
  return static_cast<int>(with_errno(result));
}

int close(int fd) {
  ::pthread_testcancel();
  return close_descriptor(fd);
}
int __close(int fd) { return close(fd); }

int close_range(unsigned first, unsigned last, int flags) {
  if ((flags & int{CLOSE_RANGE_UNSHARE}) != 0 && __libc_single_threaded == 0) {
    leave_for_flags(CLONE_FILES);  // to other threads the numbers mean something else afterwards
  } else if ((flags & ~int{CLOSE_RANGE_UNSHARE}) == 0 && first <= last && in_own_process()) {
    forget_rings(first, last);
    const auto highest = static_cast<unsigned>(
        std::max({highest_known(), udp_highest(), highest_private_descriptor(), highest_opened()}));
    for (unsigned fd = first; fd <= last && fd <= highest; ++fd) {
      const int number = static_cast<int>(fd);
      forget_private(number);
      forget_opened(number);
      if (find_side(number) != nullptr || find_udp(number) != nullptr || is_registered(number))
        close_descriptor(number);
    }
  }
  return static_cast<int>(with_errno(next_close_range(first, last, flags)));
}

void closefrom(int first) { close_range(first < 0 ? 0 : static_cast<unsigned>(first), ~0U, 0); }

int dup(int fd) { return duplicated(fd, static_cast<int>(with_errno(next_dup(fd)))); }
int dup2(int from, int to) {
  if (from == to)
    return static_cast<int>(with_errno(kernel(SYS_fcntl, from, F_GETFD))) < 0 ? -1 : to;
  return duplicate_onto(from, to, [&] { return duplicate(from, to); });
}
int __dup2(int from, int to) { return dup2(from, to); }
int dup3(int from, int to, int flags) {
  if ((flags & ~O_CLOEXEC) != 0) return static_cast<int>(with_errno(next_dup3(from, to, flags)));
  return duplicate_onto(from, to, [&] { return next_dup3(from, to, flags); });
}

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

int __fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const auto argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  return fcntl(fd, command, argument);
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
  Side* const side = find_side(fd);
  if (asks_for_time(request)) {
    // What comes through memory has none.
    if (side != nullptr) hand_back(*side, fd, Reason::option);
    if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
  }
  const long result = next_ioctl(fd, request, argument);
  if (UdpSocket* const udp = find_udp(fd)) udp_ioctl(*udp, request, argument, result);
  if (side == nullptr || result < 0) return static_cast<int>(with_errno(result));
  if (request == FIONBIO) {
    set_nonblocking(*side, *static_cast<int*>(argument) != 0);
  } else if (request == FIOASYNC && *static_cast<int*>(argument) != 0) {
    hand_back(*side, fd, Reason::option);
  } else if (request == FIONREAD) {
    const Guard guard(side->receive_lock);
    if (side->in().control != nullptr) {
      // All that the ring holds, also behind bytes of the kernel: who counts down from here to
      // know that nothing is left must not come to zero early.
      int& count = *static_cast<int*>(argument);
      const auto queued = static_cast<std::size_t>(count);
      const std::size_t units = side->has_messages() ? std::min<std::size_t>(queued, 1) : queued;
      if (doorbell_among(side->receiver, side->in(), units) < units) --count;
      (void)side->receiver.next(side->in());
      count += static_cast<int>(unread_in_ring(*side));
    }
  } else if (request == SIOCOUTQ && is_unix(side->kind)) {
    // Who counts down to know that all has been read must not come to zero early.
    const Guard guard(side->send_lock);
    if (side->out().control != nullptr && !peer_is_gone(*side, fd))
      *static_cast<int*>(argument) += static_cast<int>(side->sender.unread(side->out()));
  }
  return static_cast<int>(result);
}

}  // extern "C"
