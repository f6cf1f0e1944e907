// SPDX-License-Identifier: Apache-2.0
//
// Ends that are killed at any moment, and ends that write whatever they like into shared memory.
// Runs with the library preloaded.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "harness/descriptors.hpp"
#include "harness/eventually.hpp"
#include "preloaded.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

struct Region {
  std::byte* begin;
  std::size_t size;
};

std::vector<Region> shared_regions() {
  std::vector<Region> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:farcall-") == std::string::npos) continue;
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2)
      found.push_back({reinterpret_cast<std::byte*>(begin), end - begin});
  }
  return found;
}

// Whether the library still listens for the peer of one of these ports.
bool rendezvous_left(const std::set<std::string>& ports) {
  // Behind it the address and the port of the end that connects, then those of its peer.
  const std::string begin = "@farcall/tcp/";
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find(begin);
    if (at == std::string::npos || line.size() < at + begin.size() + 36) continue;
    if (ports.contains(line.substr(at + begin.size() + 32, 4))) return true;
  }
  return false;
}

// As such names say it.
std::string port_of(int fd) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size), 0);
  char text[8];
  std::snprintf(text, sizeof text, "%04x", ntohs(own.sin_port));
  return text;
}

// A connection to a child that does `work` with its end.
template <class Work>
std::pair<UniqueFd, pid_t> with_child(Work work) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener.get(), 4), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    work(::accept(listener.get(), nullptr, nullptr));
    ::_exit(0);
  }
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  return {std::move(client), child};
}

// A pair of unix sockets whose other end a child has.
template <class Work>
std::pair<UniqueFd, pid_t> pair_with_child(Work work, int type = SOCK_SEQPACKET) {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  const UniqueFd other(fds[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    own.reset();
    work(other.get());
    ::_exit(0);
  }
  return {std::move(own), child};
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

// Takes what comes, and sends it back unless it is a stream.
void serve_until_end(int server, std::size_t message, bool stream) {
  std::vector<char> buffer(message);
  for (;;) {
    const ssize_t got = ::recv(server, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      if (got < 0 && errno != ECONNRESET) std::perror("recv");
      ::_exit(0);
    }
    if (!stream) (void)!::send(server, buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
  }
}

// Goes on until the other end is no more.
void talk_until_end(int fd, std::size_t message, bool stream) {
  const std::vector<char> out(message, 'x');
  std::vector<char> in(message);
  for (;;) {
    if (::send(fd, out.data(), message, MSG_NOSIGNAL) < 0) {
      EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << errno;
      return;
    }
    if (stream) continue;
    const ssize_t got = ::recv(fd, in.data(), message, MSG_WAITALL);
    if (got == static_cast<ssize_t>(message)) continue;
    if (got < 0) {
      EXPECT_EQ(errno, ECONNRESET);
    }
    return;
  }
}

void survive(bool packets) {
  const std::size_t descriptors = test::open_descriptors();
  std::mt19937 random(17);
  int accelerated = 0;
  std::set<std::string> ports;
  for (int round = 0; round < 400; ++round) {
    const std::size_t message = 1 + random() % 3000;
    const bool stream = round % 2 == 0;
    const auto serve = [&](int server) { serve_until_end(server, message, stream); };
    auto [fd, child] = packets ? pair_with_child(serve) : with_child(serve);
    if (!packets) ports.insert(port_of(fd.get()));
    const std::vector<char> out(message, 'x');
    std::vector<char> in(message);
    const auto rounds = 10 + random() % 60;
    for (unsigned i = 0; i < rounds; ++i) {
      ASSERT_EQ(::send(fd.get(), out.data(), message, MSG_NOSIGNAL), static_cast<ssize_t>(message));
      if (!stream) {
        ASSERT_EQ(::recv(fd.get(), in.data(), message, MSG_WAITALL), static_cast<ssize_t>(message))
            << "round " << round << ", message " << i << ": " << std::strerror(errno);
      }
    }
    if (!shared_regions().empty()) ++accelerated;
    std::thread killer([child = child, delay = random() % 400] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      ::kill(child, SIGKILL);
    });
    const auto start = std::chrono::steady_clock::now();
    talk_until_end(fd.get(), message, stream);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    killer.join();
    kill_and_reap(child);
  }
  // A stream may be over before both ends have met.
  EXPECT_GE(accelerated, 150);
  EXPECT_EQ(test::open_descriptors(), descriptors);
  // Other programs of this machine have names as well, and at times one of these ports by now.
  EXPECT_TRUE(test::eventually([&] { return !rendezvous_left(ports); }));
}

TEST(Crash, TheSurvivorSeesTheEndWhateverItIsDoing) { survive(false); }
TEST(Crash, TheSurvivorOfPacketsSeesTheEndWhateverItIsDoing) { survive(true); }

// A child writes, counts what it has written, and is killed at any moment. `type` is of a unix
// socket; 0: TCP.
void lose_nothing(int type) {
  const Mapping memory = Mapping::anonymous_shared(4096);
  auto& written = *new (memory.data()) std::atomic<std::uint64_t>;
  const auto byte_at = [](std::uint64_t place) { return static_cast<char>(place * 131 >> 7); };
  std::mt19937 random(23);
  int accelerated = 0;
  for (int round = 0; round < 150; ++round) {
    written = 0;
    const auto write = [&, seed = random()](int fd) {
      std::mt19937 sizes(seed);
      std::vector<char> buffer(65536);
      for (int i = 0; i < 30; ++i) {
        (void)!::send(fd, "ping", 4, MSG_NOSIGNAL);
        (void)!::recv(fd, buffer.data(), 4, MSG_WAITALL);
      }
      for (std::uint64_t place = 0;;) {
        std::size_t size = 1 + sizes() % (sizes() % 4 != 0 ? 400 : 65'000);
        if (type == SOCK_SEQPACKET) size = std::min<std::size_t>(size, 9000);
        for (std::size_t i = 0; i < size; ++i) buffer[i] = byte_at(place + i);
        const ssize_t sent = ::send(fd, buffer.data(), size, MSG_NOSIGNAL);
        if (sent <= 0) ::_exit(1);
        written = place += static_cast<std::uint64_t>(sent);
      }
    };
    auto [fd, child] = type == 0 ? with_child(write) : pair_with_child(write, type);
    std::vector<char> buffer(65536);
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(::recv(fd.get(), buffer.data(), 4, MSG_WAITALL), 4);
      ASSERT_EQ(::send(fd.get(), "pong", 4, MSG_NOSIGNAL), 4);
    }
    if (!shared_regions().empty()) ++accelerated;
    while (written == 0) std::this_thread::yield();
    std::thread killer([child = child, delay = random() % 3000, stops = random() % 3 == 0] {
      if (stops) {
        ::kill(child, SIGSTOP);
        std::this_thread::sleep_for(1ms);
        ::kill(child, SIGCONT);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      ::kill(child, SIGKILL);
    });
    const std::size_t most = type == SOCK_SEQPACKET ? buffer.size() : 1 + random() % 30'000;
    std::uint64_t place = 0;
    ssize_t got;
    while ((got = ::recv(fd.get(), buffer.data(), most, 0)) > 0) {
      bool same = true;
      for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i)
        same = same && buffer[i] == byte_at(place++);
      EXPECT_TRUE(same) << "round " << round << ", before " << place;
    }
    EXPECT_EQ(got, 0) << "round " << round << ": " << std::strerror(errno);
    EXPECT_GE(place, written) << "round " << round;
    killer.join();
    kill_and_reap(child);
  }
  EXPECT_GE(accelerated, 100);
}

TEST(Crash, TheKilledLoseNothingThatTheyHaveWritten) { lose_nothing(0); }
TEST(Crash, TheKilledLoseNothingOfAUnixStream) { lose_nothing(SOCK_STREAM); }
TEST(Crash, TheKilledLoseNoPackets) { lose_nothing(SOCK_SEQPACKET); }

// A child is killed when the kernel has just given it what was sent, and its library has not seen
// that: nothing is unread.
void read_at_last(int type) {
  const auto read = [](int fd) {
    char bytes[4];
    for (int i = 0; i < 30; ++i) {
      (void)!::send(fd, "ping", 4, MSG_NOSIGNAL);
      (void)!::recv(fd, bytes, 4, MSG_WAITALL);
    }
    while (kernel(SYS_recvfrom, fd, bytes, 4, 0, nullptr, nullptr) <= 0) {
    }
    ::kill(::getpid(), SIGKILL);
  };
  auto [fd, child] = type == 0 ? with_child(read) : pair_with_child(read, type);
  char bytes[4];
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(::recv(fd.get(), bytes, 4, MSG_WAITALL), 4);
    ASSERT_EQ(::send(fd.get(), "pong", 4, MSG_NOSIGNAL), 4);
  }
  ASSERT_EQ(::send(fd.get(), "last", 4, MSG_NOSIGNAL), 4);
  EXPECT_EQ(::recv(fd.get(), bytes, 4, 0), 0) << std::strerror(errno);
  kill_and_reap(child);
}

TEST(Crash, WhatTheKilledHasReadAtLastIsNotUnread) {
  read_at_last(0);
  read_at_last(SOCK_STREAM);
  read_at_last(SOCK_SEQPACKET);
}

TEST(Crash, ASleeperIsWokenByTheDeath) {
  for (int round = 0; round < 20; ++round) {
    auto [fd, child] = with_child([&](int server) {
      char byte;
      for (int i = 0; i < 50; ++i) {
        (void)!::recv(server, &byte, 1, 0);
        (void)!::send(server, &byte, 1, MSG_NOSIGNAL);
      }
      ::pause();
    });
    char byte = 'x';
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(::send(fd.get(), &byte, 1, 0), 1);
      ASSERT_EQ(::recv(fd.get(), &byte, 1, 0), 1);
    }
    std::thread killer([child = child] {
      std::this_thread::sleep_for(2ms);
      ::kill(child, SIGKILL);
    });
    if (round % 2 == 0) {
      EXPECT_EQ(::recv(fd.get(), &byte, 1, 0), 0);
    } else {
      pollfd wait{.fd = fd.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
      EXPECT_EQ(::poll(&wait, 1, 10'000), 1);
      EXPECT_NE(wait.revents & POLLRDHUP, 0);
    }
    killer.join();
    kill_and_reap(child);
  }
}

// The peer writes at random over all that it can reach. This end may see nonsense, or an error, or
// nothing; it neither crashes nor waits where it said it would not.
void be_scribbled_over(bool packets) {
  for (int round = 0; round < 60; ++round) {
    const auto scribble = [&](int server) {
      std::mt19937_64 random(static_cast<unsigned>(round));
      char bytes[512] = {};
      for (int i = 0; i < 30; ++i) {
        (void)!::recv(server, bytes, 64, 0);
        (void)!::send(server, bytes, 64, MSG_NOSIGNAL);
      }
      const auto regions = shared_regions();
      for (;;)
        for (const Region& region : regions) {
          // Mostly the words that steer, at times the bytes.
          const std::size_t words = (random() % 8 == 0 ? region.size : 8192) / 8;
          auto* word =
              reinterpret_cast<std::atomic<std::uint64_t>*>(region.begin) + random() % words;
          switch (random() % 6) {
            case 0: *word = random(); break;
            case 1: *word = random() % 5000; break;
            case 2: *word = ~std::uint64_t{0}; break;
            case 3: *word = word->load() + random() % 300; break;
            case 4: *word ^= std::uint64_t{1} << random() % 64; break;
            default:
              (void)!::send(server, bytes, random() % sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
          }
        }
    };
    auto [fd, child] = packets ? pair_with_child(scribble) : with_child(scribble);
    std::mt19937 random(static_cast<unsigned>(round));
    std::vector<char> buffer(70'000, 'y');
    for (int i = 0; i < 30; ++i) {
      // The last ones may meet the first nonsense.
      const bool fine = ::send(fd.get(), buffer.data(), 64, MSG_NOSIGNAL) == 64 &&
                        ::recv(fd.get(), buffer.data(), 64, MSG_WAITALL) == 64;
      EXPECT_TRUE(fine || i > 25) << i;
    }
    EXPECT_FALSE(shared_regions().empty());
    const auto end = std::chrono::steady_clock::now() + 30ms;
    while (std::chrono::steady_clock::now() < end) {
      const std::size_t size = 1 + random() % buffer.size();
      switch (random() % 5) {
        case 0: (void)!::send(fd.get(), buffer.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL); break;
        case 1: (void)!::recv(fd.get(), buffer.data(), size, MSG_DONTWAIT); break;
        case 2: (void)!::recv(fd.get(), buffer.data(), size, MSG_DONTWAIT | MSG_PEEK); break;
        case 3: (void)!::recv(fd.get(), buffer.data(), 100, MSG_DONTWAIT | MSG_TRUNC); break;
        default: {
          pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
          (void)::poll(&wait, 1, 1);
        }
      }
    }
    kill_and_reap(child);
    fd.reset();
  }
}

TEST(Hostile, APeerThatScribblesHarmsNobodyElse) { be_scribbled_over(false); }
TEST(Hostile, APeerThatScribblesOverMessagesHarmsNobodyElse) { be_scribbled_over(true); }

// The peer puts lengths that cannot be in front of messages. This end gives it up, and reads
// nothing beyond its own memory.
TEST(Hostile, ALengthThatCannotBeEndsTheConnection) {
  int ended = 0;
  // More often where none has come to its turn in time.
  for (int round = 0; round < 30 || (ended == 0 && round < 300); ++round) {
    auto [fd, child] = pair_with_child([&](int other) {
      char bytes[64] = {};
      for (int i = 0; i < 60; ++i) {
        (void)!::recv(other, bytes, 64, 0);
        (void)!::send(other, bytes, 64, MSG_NOSIGNAL);
      }
      const std::uint64_t lengths[] = {~std::uint64_t{0}, std::uint64_t{1} << 63, 131'072, 65'536,
                                       (1U << 17) - 8,    4'000'000'000};
      const auto regions = shared_regions();
      (void)!::recv(other, bytes, 64, 0);
      for (;;) {
        (void)!::send(other, bytes, 64, MSG_DONTWAIT | MSG_NOSIGNAL);
        for (const Region& region : regions)
          for (std::size_t at = 4096; at + 8 <= region.size; at += 64) {
            auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(region.begin + at);
            if (*word == 64) *word = lengths[round % 6];
          }
      }
    });
    char bytes[64] = {};
    for (int i = 0; i < 60; ++i) {
      ASSERT_EQ(::send(fd.get(), bytes, 64, MSG_NOSIGNAL), 64);
      ASSERT_EQ(::recv(fd.get(), bytes, 64, 0), 64);
    }
    EXPECT_FALSE(shared_regions().empty());
    ASSERT_EQ(::send(fd.get(), bytes, 64, MSG_NOSIGNAL), 64);
    const auto end = std::chrono::steady_clock::now() + 100ms;
    bool broken = false;
    while (!broken && std::chrono::steady_clock::now() < end) {
      pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
      (void)::poll(&wait, 1, 1);
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      ASSERT_LE(got, 64);
      broken = got < 0 && errno == ECONNRESET;
    }
    if (broken) {
      ++ended;
      EXPECT_LE(::send(fd.get(), bytes, 64, MSG_NOSIGNAL), 0);
    }
    kill_and_reap(child);
  }
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace farcall::preload
