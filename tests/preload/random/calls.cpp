// SPDX-License-Identifier: Apache-2.0
//
// A program that knows nothing of farcall: has both ends of a connection, does random calls with
// them, one after the other, and says what each returned. Without the library it says the same each
// time; with it, it should say the same, too.
//
// random-calls KIND SEED: KIND is tcp, path, pair, packets, packet-pair, udp, or udp-named, where
// each datagram names its receiver.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "harness/ancillary_message.hpp"
#include "program.hpp"

namespace farcall::preload::test {
namespace {

Random chance;
std::uint64_t pick(std::uint64_t count) { return chance.below(count); }

// Less than any socket holds, so that nothing is refused for want of room.
constexpr std::size_t kMostUnread = 12'000;
constexpr std::size_t kMostDatagrams = 40;  // each takes more room than it has bytes

struct Side {
  char name;
  int fd = -1;
  int set = -1;          // in which it is registered
  std::size_t sent = 0;  // that the other has not read, as far as is known
  std::size_t datagrams = 0;
  bool shut = false;
  std::uint64_t next = 0;
  sockaddr_in address{};  // of a datagram socket
};
Side ends[2] = {{.name = 'a'}, {.name = 'b'}};
bool is_tcp;
bool is_packets;
bool is_udp;
bool is_urgent;   // one of this connection was
bool is_counted;  // else an empty message behind which the end comes may pass for the end
bool is_named;

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void say(const char* format, ...) {
  char line[300];
  va_list values;
  va_start(values, format);
  const int size = std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  line[size] = '\n';
  if (::write(STDOUT_FILENO, line, static_cast<std::size_t>(size) + 1) < 0) ::_exit(3);
}

void say_result(const Side& end, const char* what, long result) {
  say("%c %s = %ld%s%s", end.name, what, result, result < 0 ? " " : "",
      result < 0 ? strerrorname_np(errno) : "");
}

Side& other_of(const Side& end) { return &end == &ends[0] ? ends[1] : ends[0]; }

unsigned sum_of(const void* bytes, long size) {
  unsigned sum = 0;
  for (long i = 0; i < size; ++i) sum = sum * 31 + static_cast<const unsigned char*>(bytes)[i];
  return sum;
}

std::size_t some_size() {
  const std::uint64_t most[] = {1, 10, 300, 300, 3000};
  return 1 + pick(most[pick(5)]);
}

// --- Calls ---------------------------------------------------------------------------------------

// TCP holds bytes back while too many packets of before are not acknowledged, for 40 ms at times.
void wait_until_sent(const Side& end) {
  int held_back = 0;
  for (int i = 0; i < 200; ++i) {
    if (::syscall(SYS_ioctl, end.fd, SIOCOUTQNSD, &held_back) != 0 || held_back == 0) return;
    ::usleep(1000);
  }
}

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

// Ways past what usually moves bytes.
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

// --- The life of a connection
// ---------------------------------------------------------------------

// Of edges the library may tell more than once: only levels are compared.
std::uint32_t some_events() {
  return EPOLLIN | (pick(2) == 0 ? EPOLLRDHUP : 0U) | (pick(3) == 0 ? EPOLLOUT : 0U);
}

void register_end(Side& end) {
  end.set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{.events = some_events(), .data = {.fd = end.fd}};
  ::epoll_ctl(end.set, EPOLL_CTL_ADD, end.fd, &wanted);
}

void connect_datagrams(int (&pair)[2]) {
  for (int i = 0; i < 2; ++i) {
    pair[i] = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ends[i].address = {};
    ends[i].address.sin_family = AF_INET;
    ends[i].address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&ends[i].address);
    socklen_t size = sizeof(sockaddr_in);
    if (::bind(pair[i], name, size) != 0 || ::getsockname(pair[i], name, &size) != 0) ::_exit(3);
  }
  for (int i = 0; i < 2 && !is_named; ++i)
    if (::connect(pair[i], reinterpret_cast<sockaddr*>(&ends[1 - i].address),
                  sizeof(sockaddr_in)) != 0)
      ::_exit(3);
}

void connect_ends(std::string_view kind) {
  int pair[2];
  const int type = (is_packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC;
  if (is_udp) {
    connect_datagrams(pair);
  } else if (kind == "pair" || kind == "packet-pair") {
    if (::socketpair(AF_UNIX, type, 0, pair) != 0) ::_exit(3);
  } else {
    const int family = is_tcp ? AF_INET : AF_UNIX;
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    if (is_tcp) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = is_tcp ? sizeof(sockaddr_in) : sizeof(sa_family_t);
    const int listener = ::socket(family, type, 0);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, name, size) != 0 || ::listen(listener, 1) != 0) ::_exit(3);
    size = sizeof address;
    ::getsockname(listener, name, &size);
    pair[0] = ::socket(family, type, 0);
    if (::connect(pair[0], name, size) != 0) ::_exit(3);
    pair[1] = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
  }
  const int on = 1;
  for (int i = 0; i < 2; ++i) {
    ends[i].fd = pair[i];
    ends[i].sent = ends[i].datagrams = 0;
    ends[i].shut = false;
    if (is_tcp) ::setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    register_end(ends[i]);
  }
  // Until it is worth it.
  char byte = 0;
  epoll_event event{};
  for (int i = 0; i < 15; ++i)
    for (Side& end : ends) {
      if (send_to_other(end, "x", 1, 0) != 1 ||
          ::epoll_wait(other_of(end).set, &event, 1, 5000) != 1 ||
          ::recv(other_of(end).fd, &byte, 1, 0) != 1)
        ::_exit(3);
    }
}

void close_end(Side& end) {
  if (end.fd < 0) return;
  if (pick(4) == 0) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(end.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    say("%c lingers not", end.name);
  }
  say_result(end, "close", ::close(end.fd));
  ::close(end.set);
  end.fd = -1;
}

void change_some(Side& end) {
  const int on = static_cast<int>(pick(2));
  switch (pick(12)) {
    case 0: {
      const int how = static_cast<int>(pick(3));
      end.shut = true;
      say("%c shutdown %d", end.name, how);
      return say_result(end, "shutdown", ::shutdown(end.fd, how));
    }
    case 1: return close_end(end);
    case 2: {
      const int copy = ::dup(end.fd);
      // What is unread of a socket that the old set goes on waiting for comes in another order.
      if (pick(2) == 0 || is_udp) {
        ::close(copy);
      } else {
        ::close(end.fd);
        end.fd = copy;
        ::close(end.set);
        register_end(end);
      }
      return say("%c duplicated", end.name);
    }
    case 3: {
      const int flags = ::fcntl(end.fd, F_GETFL);
      return say_result(
          end, "F_SETFL",
          ::fcntl(end.fd, F_SETFL, on != 0 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
    }
    case 5:
      return say_result(end, "SO_KEEPALIVE",
                        ::setsockopt(end.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    case 9: {
      const int number = (&end == &ends[0] ? 200 : 210) + static_cast<int>(pick(3));
      if (number == end.fd || is_udp) return;  // as of a copy
      const int moved = pick(2) == 0 ? ::dup3(end.fd, number, O_CLOEXEC)
                                     : ::fcntl(end.fd, F_DUPFD_CLOEXEC, number);
      if (moved < 0) ::_exit(3);
      ::close(end.fd);
      end.fd = moved;
      ::close(end.set);
      register_end(end);
      return say("%c moved", end.name);
    }
    case 6: {
      epoll_event wanted{.events = some_events(), .data = {.fd = end.fd}};
      return say_result(end, "EPOLL_CTL_MOD", ::epoll_ctl(end.set, EPOLL_CTL_MOD, end.fd, &wanted));
    }
    case 7: {
      if (!is_udp) return;
      sockaddr_in to = other_of(end).address;
      if (on == 0) to.sin_family = AF_UNSPEC;
      say("%c connect %d", end.name, on);
      return say_result(end, "connect",
                        ::connect(end.fd, reinterpret_cast<sockaddr*>(&to), sizeof to));
    }
    default: return;
  }
}

void do_something() {
  Side& end = ends[pick(2)];
  if (end.fd < 0) return;
  switch (pick(16)) {
    case 0:
    case 1:
    case 2:
    case 3: return send_some(end);
    case 4:
    case 5:
    case 6:
    case 7: return receive_some(end);
    case 8:
    case 9:
    case 10: return wait_some(end);
    case 11:
    case 12: return ask_some(end);
    case 13:
    case 14: return change_some(end);
    case 15:
      if (!is_udp && pick(2) == 0) return move_some(end);
      break;
    default: break;
  }
  // To a child the kernel has to give what is unread, in another order.
  if (pick(4) != 0 || is_udp) return;
  // A child goes on for a while, and what it has done counts.
  say("a child");
  int state[2];
  if (::pipe2(state, O_CLOEXEC) != 0) ::_exit(3);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 5; ++i) {
      if (ends[0].fd >= 0) send_some(ends[0]);
      if (ends[1].fd >= 0) receive_some(ends[1]);
      if (ends[1].fd >= 0) wait_some(ends[1]);
    }
    if (::write(state[1], &ends, sizeof ends) != sizeof ends) ::_exit(3);
    if (::write(state[1], &chance, sizeof chance) != sizeof chance) ::_exit(3);
    ::_exit(0);
  }
  if (::read(state[0], &ends, sizeof ends) != sizeof ends ||
      ::read(state[0], &chance, sizeof chance) != sizeof chance)
    ::_exit(3);
  ::close(state[0]);
  ::close(state[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  say("a child ended: %d", status);
}

}  // namespace
}  // namespace farcall::preload::test

int main(int count, char** arguments) {
  using namespace farcall::preload::test;
  if (count != 3) {
    std::fputs("usage: random-calls tcp|path|pair|packets|packet-pair|udp|udp-named SEED\n",
               stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  is_tcp = std::string_view(arguments[1]) == "tcp";
  is_udp = std::string_view(arguments[1]).substr(0, 3) == "udp";
  is_named = std::string_view(arguments[1]) == "udp-named";
  is_packets = is_udp || std::string_view(arguments[1]).substr(0, 6) == "packet";
  chance.seed(std::strtoull(arguments[2], nullptr, 10));
  for (int connection = 0; connection < 3; ++connection) {
    say("connection %d", connection);
    is_urgent = false;
    is_counted = true;
    connect_ends(arguments[1]);
    for (int i = 0; i < 60; ++i) do_something();
    for (Side& end : ends) close_end(end);
  }
  return 0;
}
