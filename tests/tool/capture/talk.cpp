// SPDX-License-Identifier: Apache-2.0
//
// Two processes that talk over loopback, for tests that capture what they say. Each byte follows
// from its connection, its direction and its place, so who reads a capture knows what it should be.
//   talk tcp CONNECTIONS ROUNDS | talk udp ROUNDS | talk flood MEGABYTES DIRECTORY
//   talk titled CONNECTIONS ROUNDS: as tcp, by a program that writes its title over its
//   environment. talk alone ROUNDS: with a server that has no library. talk forked ROUNDS: the
//   server forks, closes the connection, and its child goes on with it.
// A flood waits for the file `go` there, makes `done`, and says little until there is
// `end`, then a little more.
// Prints for each connection: the client's port, and how many bytes each side has sent.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tool/capture/said.hpp"

namespace {

using farcall::test::said;

void check(bool right, const char* what) {
  if (right) return;
  std::perror(what);
  std::_Exit(1);
}

sockaddr* name_of(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

int bound(int type, sockaddr_in& address) {
  const int fd = ::socket(AF_INET, type, 0);
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  check(::bind(fd, name_of(address), size) == 0, "bind");
  check(::getsockname(fd, name_of(address), &size) == 0, "getsockname");
  return fd;
}

// One direction of one connection, as one end has it.
struct Half {
  int fd;
  unsigned connection;
  unsigned direction;
  std::uint64_t done = 0;

  void send(std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = said(connection, direction, done++);
    for (std::size_t at = 0; at < size;) {
      const ssize_t put = ::send(fd, bytes.data() + at, size - at, 0);
      check(put > 0, "send");
      at += static_cast<std::size_t>(put);
    }
  }
  void receive(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t at = 0; at < size;) {
      const ssize_t got = ::recv(fd, bytes.data() + at, size - at, 0);
      check(got > 0, "recv");
      at += static_cast<std::size_t>(got);
    }
    for (const char byte : bytes)
      if (byte != said(connection, direction, done++)) std::_Exit(3);
  }
};

std::size_t size_of(unsigned round) {
  constexpr std::size_t kSizes[] = {1, 48, 3, 1000, 70'000, 64, 5000, 17, 300'000, 8};
  return kSizes[round % std::size(kSizes)];
}

// Now and then nobody looks, and the kernel carries what comes.
void pause(unsigned round) {
  if (round % 4 == 3) ::usleep(20'000);
}

void talk(const std::vector<int>& fds, unsigned rounds, bool begins) {
  std::vector<Half> out;
  std::vector<Half> in;
  for (unsigned i = 0; i < fds.size(); ++i) {
    out.push_back({fds[i], i, begins ? 0U : 1U});
    in.push_back({fds[i], i, begins ? 1U : 0U});
  }
  for (unsigned round = 0; round < rounds; ++round) {
    for (unsigned i = 0; i < fds.size(); ++i) {
      if (!begins) in[i].receive(size_of(round));
      out[i].send(size_of(round + (begins ? 0 : 1)));
      if (begins) in[i].receive(size_of(round + 1));
    }
    if (begins) pause(round);
  }
  if (!begins) return;
  for (unsigned i = 0; i < fds.size(); ++i) {
    sockaddr_in own{};
    socklen_t size = sizeof own;
    check(::getsockname(fds[i], name_of(own), &size) == 0, "getsockname");
    std::printf("%u %llu %llu\n", ntohs(own.sin_port), static_cast<unsigned long long>(out[i].done),
                static_cast<unsigned long long>(in[i].done));
  }
}

int over_tcp(unsigned connections, unsigned rounds) {
  sockaddr_in server{};
  const int listener = bound(SOCK_STREAM, server);
  check(::listen(listener, 64) == 0, "listen");
  const pid_t child = ::fork();
  check(child >= 0, "fork");
  std::vector<int> fds;
  for (unsigned i = 0; i < connections; ++i) {
    fds.push_back(child != 0 ? ::accept(listener, nullptr, nullptr)
                             : ::socket(AF_INET, SOCK_STREAM, 0));
    check(fds.back() >= 0, "socket");
    if (child == 0) check(::connect(fds.back(), name_of(server), sizeof server) == 0, "connect");
  }
  talk(fds, rounds, child == 0);
  for (const int fd : fds) ::close(fd);
  if (child == 0) return 0;
  int status = 0;
  check(::waitpid(child, &status, 0) == child, "waitpid");
  return status == 0 ? 0 : 1;
}

int ended(pid_t child) {
  int status = 0;
  check(::waitpid(child, &status, 0) == child, "waitpid");
  return status == 0 ? 0 : 1;
}

// As setproctitle(3) does, of which the system knows nothing then.
void write_over_environment() {
  char** last = environ;
  while (*last != nullptr && last[1] != nullptr) ++last;
  if (*last != nullptr)
    std::memset(environ[0], 0, static_cast<std::size_t>(*last + std::strlen(*last) - environ[0]));
}

// Small messages, without a pause.
void ping(int fd, unsigned rounds, bool begins) {
  Half out{fd, 0, begins ? 0U : 1U};
  Half in{fd, 0, begins ? 1U : 0U};
  for (unsigned round = 0; round < rounds; ++round) {
    if (begins) out.send(48);
    in.receive(48);
    if (!begins) out.send(48);
  }
}

int connected_to(sockaddr_in server) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  check(::connect(fd, name_of(server), sizeof server) == 0, "connect");
  return fd;
}

int alone(unsigned rounds) {
  sockaddr_in server{};
  const int listener = bound(SOCK_STREAM, server);
  check(::listen(listener, 1) == 0, "listen");
  const pid_t child = ::fork();
  check(child >= 0, "fork");
  if (child == 0) {
    ::unsetenv("LD_PRELOAD");
    const std::string number = std::to_string(listener);
    const std::string times = std::to_string(rounds);
    ::execl("/proc/self/exe", "talk", "answer", number.c_str(), times.c_str(), nullptr);
    ::_exit(127);
  }
  const int fd = connected_to(server);
  ping(fd, rounds, true);
  ::close(fd);
  return ended(child);
}

int answer(int listener, unsigned rounds) {
  ping(::accept(listener, nullptr, nullptr), rounds, false);
  return 0;
}

int forked(unsigned rounds) {
  sockaddr_in server{};
  const int listener = bound(SOCK_STREAM, server);
  check(::listen(listener, 1) == 0, "listen");
  const pid_t client = ::fork();
  check(client >= 0, "fork");
  if (client == 0) {
    ping(connected_to(server), 2 * rounds, true);
    return 0;
  }
  const int fd = ::accept(listener, nullptr, nullptr);
  ping(fd, rounds, false);
  const pid_t worker = ::fork();
  check(worker >= 0, "fork");
  if (worker == 0) {
    Half out{fd, 0, 1, 48 * std::uint64_t{rounds}};
    Half in{fd, 0, 0, 48 * std::uint64_t{rounds}};
    for (unsigned round = 0; round < rounds; ++round) {
      in.receive(48);
      out.send(48);
    }
    return 0;
  }
  ::close(fd);
  const int failed = ended(worker);
  return ended(client) != 0 ? 1 : failed;
}

int over_udp(unsigned rounds) {
  // Sockets that are there when a process forks go on without shared memory.
  int way[2];
  check(::pipe(way) == 0, "pipe");
  const pid_t child = ::fork();
  check(child >= 0, "fork");
  std::string bytes(2000, '\0');
  sockaddr_in server{};
  if (child == 0) {
    check(::read(way[0], &server, sizeof server) == sizeof server, "read");
    sockaddr_in own{};
    const int mine = bound(SOCK_DGRAM, own);
    for (unsigned round = 0; round < rounds; ++round) {
      const std::string text = "question " + std::to_string(round);
      check(::sendto(mine, text.data(), text.size(), 0, name_of(server), sizeof server) > 0,
            "sendto");
      check(::recv(mine, bytes.data(), bytes.size(), 0) > 0, "recv");
    }
    std::printf("%u %u %u\n", ntohs(own.sin_port), rounds, rounds);
    return 0;
  }
  const int fd = bound(SOCK_DGRAM, server);
  check(::write(way[1], &server, sizeof server) == sizeof server, "write");
  for (unsigned round = 0; round < rounds; ++round) {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    check(::recvfrom(fd, bytes.data(), bytes.size(), 0, name_of(from), &size) > 0, "recvfrom");
    const std::string text = "answer " + std::to_string(round);
    check(::sendto(fd, text.data(), text.size(), 0, name_of(from), size) > 0, "sendto");
  }
  int status = 0;
  check(::waitpid(child, &status, 0) == child, "waitpid");
  return status == 0 ? 0 : 1;
}

void wait_for(const std::string& file) {
  for (int i = 0; i < 6000 && ::access(file.c_str(), F_OK) != 0; ++i) ::usleep(10'000);
}

// One way, as fast as it goes.
int flood(unsigned megabytes, const std::string& directory) {
  sockaddr_in server{};
  const int listener = bound(SOCK_STREAM, server);
  check(::listen(listener, 1) == 0, "listen");
  constexpr std::size_t kPiece = 65'536;
  const pid_t child = ::fork();
  check(child >= 0, "fork");
  if (child == 0) {
    Half out{::socket(AF_INET, SOCK_STREAM, 0), 0, 0};
    check(::connect(out.fd, name_of(server), sizeof server) == 0, "connect");
    // Accelerated first.
    Half in{out.fd, 0, 1};
    for (unsigned i = 0; i < 64; ++i) {
      out.send(48);
      in.receive(48);
    }
    wait_for(directory + "/go");
    for (unsigned i = 0; i < megabytes * 16; ++i) out.send(kPiece);
    const std::string end = directory + "/end";
    for (int i = 0; i < 6000 && ::access(end.c_str(), F_OK) != 0; ++i) {
      out.send(48);
      ::usleep(10'000);
    }
    for (unsigned i = 0; i < 16; ++i) out.send(kPiece);
    return 0;
  }
  Half in{::accept(listener, nullptr, nullptr), 0, 0};
  Half out{in.fd, 0, 1};
  for (unsigned i = 0; i < 64; ++i) {
    in.receive(48);
    out.send(48);
  }
  for (unsigned i = 0; i < megabytes * 16; ++i) in.receive(kPiece);
  std::ofstream(directory + "/done") << "all has come";
  char byte;
  while (::recv(in.fd, &byte, 1, MSG_PEEK) > 0) in.receive(1);
  int status = 0;
  check(::waitpid(child, &status, 0) == child, "waitpid");
  return status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 2 ? argv[1] : "";
  const auto number = [&](int index) {
    return index < argc ? static_cast<unsigned>(std::strtoul(argv[index], nullptr, 10)) : 0U;
  };
  if (kind == "tcp") return over_tcp(number(2), number(3));
  if (kind == "titled") {
    write_over_environment();
    return over_tcp(number(2), number(3));
  }
  if (kind == "alone") return alone(number(2));
  if (kind == "answer") return answer(static_cast<int>(number(2)), number(3));
  if (kind == "forked") return forked(number(2));
  if (kind == "udp") return over_udp(number(2));
  if (kind == "flood") return flood(number(2), argc > 3 ? argv[3] : ".");
  return 2;
}
