// SPDX-License-Identifier: Apache-2.0
//
// A program that knows nothing of farcall: has both ends of a connection, does random calls with
// them, one after the other, and says what each returned. Without the library it says the same each
// time; with it, it should say the same, too.
//
// random-calls KIND SEED: KIND is tcp, path, pair, packets, packet-pair, udp, or udp-named, where
// each datagram names its receiver.
#include "calls.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace farcall::preload::test::calls {

Random chance;
Side ends[2] = {{.name = 'a'}, {.name = 'b'}};
bool is_tcp;
bool is_packets;
bool is_udp;
bool is_urgent;
bool is_counted;
bool is_named;

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

namespace {

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
}  // namespace farcall::preload::test::calls

int main(int count, char** arguments) {
  using namespace farcall::preload::test::calls;
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
