// SPDX-License-Identifier: Apache-2.0
//
// The calls of random-calls that move bytes, wait for them or ask for what there is.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "calls.hpp"
#include "harness/ancillary_message.hpp"

namespace farcall::preload::test::calls {
namespace {

unsigned sum_of(const void* bytes, long size) {
  unsigned sum = 0;
  for (long i = 0; i < size; ++i) sum = sum * 31 + static_cast<const unsigned char*>(bytes)[i];
  return sum;
}

std::size_t some_size() {
  const std::uint64_t most[] = {1, 10, 300, 300, 3000};
  return 1 + pick(most[pick(5)]);
}

// TCP holds bytes back while too many packets of before are not acknowledged, for 40 ms at times.
void wait_until_sent(const Side& end) {
  int held_back = 0;
  for (int i = 0; i < 200; ++i) {
    if (::syscall(SYS_ioctl, end.fd, SIOCOUTQNSD, &held_back) != 0 || held_back == 0) return;
    ::usleep(1000);
  }
}

void took(Side& end, const char* what, const void* bytes, long size, bool takes = true) {
  const int error = errno;
  say("%c %s = %ld %s %08x", end.name, what, size, size < 0 ? strerrorname_np(error) : "",
      bytes != nullptr ? sum_of(bytes, size) : 0);
  if (size < 0 || !takes) return;
  Side& from = other_of(end);
  from.sent -= std::min(from.sent, static_cast<std::size_t>(size));
  from.datagrams -= std::min<std::size_t>(from.datagrams, 1);
  if (is_udp && from.datagrams == 0) from.sent = 0;  // of some only a part was taken
}

void send_file(Side& end, std::size_t size) {
  const int file = ::memfd_create("file", MFD_CLOEXEC);
  const std::vector<char> bytes(size, 'f');
  if (::write(file, bytes.data(), size) != static_cast<ssize_t>(size)) ::_exit(3);
  off_t from = 0;
  const long sent = end.sent > kMostUnread ? 0 : ::sendfile(end.fd, file, &from, size);
  say_result(end, "sendfile", sent);
  if (sent > 0) end.sent += static_cast<std::size_t>(sent);
  ::close(file);
  if (is_tcp) wait_until_sent(end);
}

void splice_into_pipe(Side& end, std::size_t size) {
  int pipe[2];
  pollfd ready{.fd = end.fd, .events = POLLIN, .revents = 0};
  // It would wait; the kernel says at an urgent byte that this is the end; and what is unread
  // when a socket is shut down can be read, but not spliced.
  if (is_urgent || end.shut || ::poll(&ready, 1, 0) == 0) return;
  if (::pipe2(pipe, O_CLOEXEC) != 0) ::_exit(3);
  const long got = ::splice(end.fd, nullptr, pipe[1], nullptr, size, SPLICE_F_NONBLOCK);
  std::vector<char> bytes(size);
  if (got > 0 && ::read(pipe[0], bytes.data(), size) != got) ::_exit(3);
  took(end, "splice", bytes.data(), got);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

void send_urgent(Side& end) {
  const char urgent = '!';
  if (!is_tcp || end.sent > kMostUnread) return;
  is_urgent = true;
  const long sent = ::send(end.fd, &urgent, 1, MSG_OOB);
  say_result(end, "urgent", sent);
  wait_until_sent(end);
}

void take_urgent(const Side& end) {
  char urgent = 0;
  if (!is_tcp) return;
  const long got = ::recv(end.fd, &urgent, 1, MSG_OOB | MSG_DONTWAIT);
  say("%c take urgent = %ld %s %d", end.name, got, got < 0 ? strerrorname_np(errno) : "", urgent);
}

void pass_descriptor(Side& end) {
  if (is_tcp || end.sent > kMostUnread) return;
  const char byte = static_cast<char>('a' + end.next++ % 26);
  const long sent = farcall::test::AncillaryMessage(&byte, sizeof byte)
                        .add(std::array{STDOUT_FILENO})
                        .send(end.fd, MSG_NOSIGNAL);
  if (sent > 0) ++end.sent;
  say_result(end, "pass", sent);
}

}  // namespace

long send_to_other(const Side& end, const void* bytes, std::size_t size, int flags) {
  const sockaddr_in& to = other_of(end).address;
  if (!is_named) return ::send(end.fd, bytes, size, flags);
  return ::sendto(end.fd, bytes, size, flags, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

void send_some(Side& end) {
  if (is_udp && end.datagrams >= kMostDatagrams) return;
  const std::size_t size = std::min(some_size(), kMostUnread - std::min(kMostUnread, end.sent));
  std::vector<char> bytes(size + 1);
  for (char& byte : bytes) byte = static_cast<char>('a' + end.next++ % 26);
  end.next -= 1;
  iovec parts[2] = {{bytes.data(), size / 3}, {bytes.data() + size / 3, size - size / 3}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  mmsghdr messages[2]{};
  for (std::size_t i = 0; i < 2; ++i) {
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  sockaddr_in to = other_of(end).address;
  for (msghdr* const each : {&message, &messages[0].msg_hdr, &messages[1].msg_hdr}) {
    if (!is_named) break;
    each->msg_name = &to;
    each->msg_namelen = sizeof to;
  }
  long sent = -1;
  std::size_t count = 1;
  switch (pick(8)) {
    case 0: say_result(end, "write", sent = ::write(end.fd, bytes.data(), size)); break;
    case 1: say_result(end, "writev", sent = ::writev(end.fd, parts, 2)); break;
    case 2: say_result(end, "sendmsg", sent = ::sendmsg(end.fd, &message, 0)); break;
    case 3: {
      const int done = ::sendmmsg(end.fd, messages, 2, 0);
      say_result(end, "sendmmsg", done);
      for (int i = 0; i < done; ++i) sent += messages[i].msg_len;
      say("  %ld bytes", ++sent);
      count = done < 0 ? 0 : static_cast<std::size_t>(done);
      break;
    }
    case 4: say_result(end, "send nothing", sent = send_to_other(end, bytes.data(), 0, 0)); break;
    case 5: say_result(end, "send to null", sent = send_to_other(end, nullptr, size, 0)); break;
    default: {
      const int flags = pick(2) == 0 ? MSG_DONTWAIT : MSG_NOSIGNAL;
      say_result(end, "send", sent = send_to_other(end, bytes.data(), size, flags));
    }
  }
  if (sent > 0) end.sent += static_cast<std::size_t>(sent);
  if (sent >= 0) end.datagrams += count;
  if (is_tcp) wait_until_sent(end);
}

void receive_some(Side& end) {
  const std::size_t size = some_size();
  std::vector<char> bytes(size + 1);
  iovec parts[2] = {{bytes.data(), size / 3}, {bytes.data() + size / 3, size - size / 3}};
  char control[64];
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  message.msg_name = &address;
  message.msg_namelen = sizeof address;
  message.msg_flags = 0x5555;
  constexpr int kNow = MSG_DONTWAIT;
  switch (pick(10)) {
    case 0: {
      const int flags = kNow | (pick(2) == 0 ? MSG_PEEK : 0);
      const long got = ::recvmsg(end.fd, &message, flags);
      took(end, "recvmsg", nullptr, got, (flags & MSG_PEEK) == 0);
      if (got >= 0)
        say("  flags %x, control %zu, name %u", static_cast<unsigned>(message.msg_flags),
            message.msg_controllen, got != 0 || is_counted ? message.msg_namelen : 0);
      return;
    }
    case 1:
      return took(end, "peek", bytes.data(), ::recv(end.fd, bytes.data(), size, kNow | MSG_PEEK),
                  false);
    case 2:
      return took(end, "all", bytes.data(), ::recv(end.fd, bytes.data(), size, kNow | MSG_WAITALL));
    case 3: return took(end, "nothing", nullptr, ::recv(end.fd, bytes.data(), 0, kNow));
    case 4: {
      const long got = ::recvfrom(end.fd, bytes.data(), size, kNow,
                                  reinterpret_cast<sockaddr*>(&address), &length);
      took(end, "recvfrom", bytes.data(), got);
      return say("  name %u", got != 0 || is_counted ? length : 0);
    }
    case 5:
      if (is_packets)
        return took(end, "length", nullptr, ::recv(end.fd, bytes.data(), size, kNow | MSG_TRUNC));
      if (!is_tcp) return;
      return took(end, "discard", nullptr, ::recv(end.fd, nullptr, size, kNow | MSG_TRUNC));
    case 6: {
      mmsghdr messages[2]{};
      for (std::size_t i = 0; i < 2; ++i) {
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
      }
      const int count = ::recvmmsg(end.fd, messages, 2, kNow, nullptr);
      say_result(end, "recvmmsg", count);
      for (int i = 0; i < count; ++i)
        took(end, "  message", parts[i].iov_base, messages[i].msg_len);
      return;
    }
    default: return took(end, "recv", bytes.data(), ::recv(end.fd, bytes.data(), size, kNow));
  }
}

void wait_some(Side& end) {
  const int limit = static_cast<int>(pick(2));
  switch (pick(4)) {
    case 0: {
      fd_set read, write;
      FD_ZERO(&read);
      FD_ZERO(&write);
      FD_SET(end.fd, &read);
      FD_SET(end.fd, &write);
      timeval now{};
      const int count = ::select(end.fd + 1, &read, &write, nullptr, &now);
      return say("%c select = %d: %d %d", end.name, count, FD_ISSET(end.fd, &read) ? 1 : 0,
                 FD_ISSET(end.fd, &write) ? 1 : 0);
    }
    case 1: {
      epoll_event event{};
      const int count = ::epoll_wait(end.set, &event, 1, limit);
      return say("%c epoll_wait = %d: %x", end.name, count, count == 1 ? event.events : 0);
    }
    default: {
      const short wanted[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLRDHUP | POLLIN, 0};
      pollfd wait{.fd = end.fd, .events = wanted[pick(5)], .revents = 0};
      const int count = ::poll(&wait, 1, limit);
      return say("%c poll %x = %d: %x", end.name, wait.events, count, wait.revents);
    }
  }
}

void ask_some(Side& end) {
  int value = -1;
  socklen_t size = sizeof value;
  switch (pick(4)) {
    case 0: {
      const int result = ::ioctl(end.fd, FIONREAD, &value);
      return say("%c FIONREAD = %d: %d", end.name, result, value);
    }
    case 1: {
      const int result = ::getsockopt(end.fd, SOL_SOCKET, SO_ERROR, &value, &size);
      return say("%c SO_ERROR = %d: %d", end.name, result, value);
    }
    case 2:
      return say("%c F_GETFL = %x", end.name, static_cast<unsigned>(::fcntl(end.fd, F_GETFL)));
    default: {
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      say_result(end, "getpeername",
                 ::getpeername(end.fd, reinterpret_cast<sockaddr*>(&address), &length));
    }
  }
}

void move_some(Side& end) {
  if (is_packets) is_counted = false;
  const std::size_t size = 1 + pick(300);
  switch (pick(7)) {
    case 0: return send_file(end, size);
    case 1: return splice_into_pipe(end, size);
    case 2: return send_urgent(end);
    case 3: return take_urgent(end);
    case 4:
      if (is_tcp) say_result(end, "sockatmark", ::sockatmark(end.fd));
      return;
    case 5: return pass_descriptor(end);
    default: {
      char bytes[300];
      say_result(end, "pread", ::pread(end.fd, bytes, size, 0));
      say_result(end, "lseek", ::lseek(end.fd, 0, SEEK_CUR));
      return say_result(end, "fsync", ::fsync(end.fd));
    }
  }
}

}  // namespace farcall::preload::test::calls
