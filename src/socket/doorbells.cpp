// SPDX-License-Identifier: Apache-2.0
#include "socket/doorbells.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "process/background.hpp"

namespace farcall {
namespace {

#ifndef SCM_PIDFD
constexpr int SCM_PIDFD = 4;
#endif

// Nobody's number: who has put something there is not known, as the end may have been passed on.
constexpr uid_t kUnknown = static_cast<uid_t>(-1);

constexpr std::size_t kMostDescriptors = 253;  // of a message: SCM_MAX_FD
constexpr std::size_t kOther = 512;            // credentials, a security label, a pidfd

// False: nothing came along.
bool close_what_came(msghdr& message) noexcept {
  bool some = false;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET ||
        (item->cmsg_type != SCM_RIGHTS && item->cmsg_type != SCM_PIDFD))
      continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
      if (fd >= 0) process::close_later(kUnknown, UniqueFd(fd));
    }
    some |= count != 0;
  }
  return some;
}

}  // namespace

unsigned take_doorbells(void*, int lifeline) noexcept {
  // More than a socket holds of single bytes. A peer that sends as fast as this reads is not read
  // to the end: what is left makes the next sleep end at once, and that looks at the clock.
  constexpr int kMostReads = 16;
  char rings[64];
  unsigned came = 0;
  iovec piece{.iov_base = rings, .iov_len = sizeof rings};
  // Without room for them the kernel would let go here of descriptors that come along.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int)) + kOther> control;
  for (int i = 0; i < kMostReads; ++i) {
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    // Not recvmsg(2), which the C library makes a point of cancellation.
    const long got = ::syscall(SYS_recvmsg, lifeline, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) break;
    came += static_cast<unsigned>(got);
    // A message with descriptors ends what is read at once, so more may lie behind it.
    if (close_what_came(message)) {
      if (process::goes_on_flooding(kUnknown)) break;
    } else if (got != sizeof rings) {
      break;
    }
  }
  return came;
}

void take_out_of_band_as_well(int socket) noexcept {
  const int on = 1;
  ::syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
}

void DoorbellSocket::hang_up() noexcept {
  if (!socket_.is_here()) return;
  // Nothing comes in any more.
  ::shutdown(socket_.get(), SHUT_RDWR);
  (void)take_doorbells(nullptr, socket_.get());
  int left = 0;
  if (::ioctl(socket_.get(), FIONREAD, &left) == 0 && left == 0)
    socket_.reset();
  else
    process::close_later(kUnknown, std::move(socket_));
}

}  // namespace farcall
