// SPDX-License-Identifier: Apache-2.0
//
// Another file takes the place of a connection whose number other threads use at that moment: each
// of their calls is on the one or on the other. As those of contract_test.cpp, these run as they
// are and with the library preloaded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

constexpr int kReplacements = 700;
constexpr std::uint32_t kMostOnTheirWay = 200;

struct Message {
  std::uint32_t connection;
  std::uint32_t serial;
  std::array<char, 56> rest;
};

Message message(std::uint32_t connection, std::uint32_t serial) {
  Message made{.connection = connection, .serial = serial, .rest = {}};
  made.rest.fill(static_cast<char>(serial));
  return made;
}

bool is_whole(const Message& message, ssize_t size) {
  if (size != sizeof message) return false;
  for (const char byte : message.rest)
    if (byte != static_cast<char>(message.serial)) return false;
  return true;
}

// Two connections, and a number to which their clients come in turn.
struct Taking {
  Taking() : number(::dup(pairs[0].client.get())) {}
  void take(int which) const {
    const int fd = number.get();
    ASSERT_EQ(::dup2(pairs[static_cast<std::size_t>(which)].client.get(), fd), fd);
  }
  // While others do what they do, who count in `done` and stop at `failed`.
  void take_turns(const std::atomic<std::uint32_t>& done, const std::atomic<bool>& failed) const {
    for (int i = 1; i <= kReplacements && !failed; ++i) {
      const std::uint32_t before = done;
      take(i % 2);
      while (done < before + static_cast<std::uint32_t>(i % 3) && !failed) ::sched_yield();
    }
  }
  std::array<Pair, 2> pairs;
  UniqueFd number;
};

// Takes what comes, whole and in order; returns how many.
class Reader {
 public:
  Reader(int fd, std::atomic<std::uint32_t>& taken, std::atomic<bool>& failed)
      : thread_([fd, &taken, &failed] {
          std::uint32_t last = 0;
          for (;;) {
            Message came{};
            const ssize_t got = ::recv(fd, &came, sizeof came, over_packets() ? 0 : MSG_WAITALL);
            if (got == 0) return;
            EXPECT_TRUE(is_whole(came, got)) << got << " " << errno_name();
            EXPECT_GT(came.serial, last);
            if (!is_whole(came, got) || came.serial <= last) {
              failed = true;
              return;
            }
            last = came.serial;
            ++taken;
          }
        }) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { join(); }
  void join() const {
    if (thread_.joinable()) thread_.join();
  }

 private:
  mutable std::thread thread_;
};

// What is written meets one of the two, whole and in order.
TEST(Replaced, WhileAnotherThreadWritesLosesNothing) {
  Taking taking;
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::uint32_t> written{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> over{false};
  {
    const Reader one(taking.pairs[0].server.get(), taken, failed);
    const Reader other(taking.pairs[1].server.get(), taken, failed);
    std::thread writer([&] {
      while (!over && !failed) {
        if (written - taken >= kMostOnTheirWay) {
          ::sched_yield();
          continue;
        }
        const Message next = message(0, written + 1);
        const ssize_t sent = ::send(taking.number.get(), &next, sizeof next, MSG_NOSIGNAL);
        EXPECT_EQ(sent, static_cast<ssize_t>(sizeof next)) << errno_name();
        if (sent != sizeof next) failed = true;
        ++written;
      }
    });
    taking.take_turns(written, failed);
    over = true;
    writer.join();
    taking.number.reset();
    for (Pair& pair : taking.pairs) {
      ::shutdown(pair.client.get(), SHUT_WR);
      if (failed) ::shutdown(pair.server.get(), SHUT_RD);
    }
  }
  EXPECT_EQ(taken, written);
}

// The last number of each is taken by the next one.
TEST(Replaced, WhileAnotherThreadWritesEachEndsBehindItsLastByte) {
  constexpr int kConnections = 30;
  Pair first;
  const UniqueFd number = std::move(first.client);
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::uint32_t> written{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> over{false};
  std::thread writer([&] {
    while (!over && !failed) {
      if (written - taken >= kMostOnTheirWay) {
        ::sched_yield();
        continue;
      }
      const Message next = message(0, written + 1);
      const ssize_t sent = ::send(number.get(), &next, sizeof next, MSG_NOSIGNAL);
      EXPECT_EQ(sent, static_cast<ssize_t>(sizeof next)) << errno_name();
      if (sent != sizeof next) failed = true;
      ++written;
    }
  });
  UniqueFd server = std::move(first.server);
  for (int i = 0; i < kConnections && !failed; ++i) {
    Pair next(!over_unix());
    const Reader reader(server.get(), taken, failed);
    const std::uint32_t before = written;
    while (written < before + 50 && !failed) ::sched_yield();
    EXPECT_EQ(::dup2(next.client.get(), number.get()), number.get());
    if (failed) ::shutdown(server.get(), SHUT_RD);
    next.client.reset();
    reader.join();
    server = std::move(next.server);
  }
  over = true;
  writer.join();
  ::shutdown(number.get(), SHUT_WR);
  Reader(server.get(), taken, failed).join();
  EXPECT_EQ(taken, written);
}

// What comes of each is taken in order, and nothing is missing; errors are of the kind that says
// that there is nothing.
TEST(Replaced, WhileAnotherThreadWaitsAndReadsLosesNothing) {
  Taking taking;
  std::atomic<std::uint32_t> taken{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> over{false};
  std::array<std::atomic<std::uint32_t>, 2> last{};
  const auto note = [&](const Message& came, ssize_t got) {
    const bool right =
        is_whole(came, got) && came.connection < 2 && came.serial == last[came.connection] + 1;
    EXPECT_TRUE(right) << got << " " << errno_name() << " " << came.connection << " "
                       << came.serial;
    if (right) last[came.connection] = came.serial;  // only the reader writes it
    if (!right) failed = true;
    ++taken;
  };
  std::array<std::uint32_t, 2> sent{};
  std::array<std::thread, 2> senders;
  for (std::uint32_t i = 0; i < 2; ++i)
    senders[i] = std::thread([&, i] {
      const int fd = taking.pairs[i].server.get();
      while (!over && !failed) {
        if (sent[i] - last[i] >= kMostOnTheirWay) {
          ::sched_yield();
          continue;
        }
        const Message next = message(i, ++sent[i]);
        EXPECT_EQ(::send(fd, &next, sizeof next, MSG_NOSIGNAL), ssize_t{sizeof next});
      }
    });
  std::thread reader([&] {
    while (!over && !failed) {
      pollfd wait{.fd = taking.number.get(), .events = POLLIN, .revents = 0};
      const int ready = ::poll(&wait, 1, 10);
      EXPECT_GE(ready, 0) << errno_name();
      EXPECT_EQ(wait.revents & ~POLLIN, 0);
      Message came{};
      const ssize_t got = ::recv(taking.number.get(), &came, sizeof came, MSG_DONTWAIT);
      if (got >= 0 || errno != EAGAIN) note(came, got);
    }
  });
  taking.take_turns(taken, failed);
  over = true;
  reader.join();
  for (std::thread& sender : senders) sender.join();
  for (std::uint32_t i = 0; i < 2; ++i) {
    while (last[i] != sent[i] && !failed) {
      Message came{};
      note(came, ::recv(taking.pairs[i].client.get(), &came, sizeof came, MSG_DONTWAIT));
    }
  }
}

// A call that waits for room goes on, on whatever is there.
TEST(Replaced, WhileAnotherThreadWaitsForRoomLosesNothing) {
  Pair old;
  Pair next;
  const int number = old.client.get();
  const std::string block(1000, 'x');
  while (::send(number, block.data(), block.size(), MSG_DONTWAIT) > 0) continue;
  EXPECT_EQ(errno, EAGAIN);
  std::atomic<long> waits{0};
  std::string sent;
  std::thread sender([&] {
    waits = kernel(SYS_gettid);
    sent = send(number, "late");
  });
  while (waits == 0) ::sched_yield();
  await_sleep(waits);
  ASSERT_EQ(::dup2(next.client.get(), number), number);
  next.client.reset();
  std::string came;
  for (;;) {
    const std::string part = receive(old.server.get(), 4096, 0);
    if (part == "(end)") break;
    ASSERT_NE(part.front(), '(') << part;
    came = (came + part).substr(came.size() + part.size() - 4);
  }
  sender.join();
  EXPECT_EQ(sent, "4");
  old.client.reset();
  const bool met_old = came == "late";
  EXPECT_EQ(receive(next.server.get()), met_old ? "(end)" : "late");
}

// What it was before is closed, once the last of its numbers is gone, with all that was sent.
TEST(Replaced, TheOldOneEndsBehindItsLastByte) {
  Pair old;
  Pair next;
  old.put("last");
  const int number = old.client.get();
  ASSERT_EQ(::dup3(next.client.get(), number, O_CLOEXEC), number);
  EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(receive(old.server.get()), "last");
  EXPECT_EQ(receive(old.server.get()), "(end)");
  next.client.reset();
  EXPECT_EQ(send(number, "first"), "5");
  EXPECT_EQ(receive(next.server.get()), "first");
}

// No descriptor is left of it.
TEST(Replaced, NothingIsLeftOfTheOldOne) {
  const Pair pair;
  const auto lowest = [] {
    const UniqueFd one(::dup(STDERR_FILENO));
    return one.get();
  };
  const int before = lowest();
  const int mappings = stream_mappings();
  {
    Pair old;
    ASSERT_EQ(::dup2(pair.client.get(), old.client.get()), old.client.get());
    old.server.reset();
  }
  EXPECT_EQ(lowest(), before);
  EXPECT_EQ(stream_mappings(), mappings);
  for (int fd = 900; fd < 910; ++fd) EXPECT_EQ(kernel(SYS_fcntl, fd, F_GETFD), -EBADF) << fd;
  pair.talk(3);
}

// A thread that sleeps has what comes on the old one; both go on.
TEST(Replaced, WhileAnotherThreadSleepsBothGoOn) {
  Taking taking;
  std::atomic<long> waits{0};
  std::string came;
  std::thread sleeper([&] {
    waits = kernel(SYS_gettid);
    came = receive(taking.number.get());
  });
  while (waits == 0) ::sched_yield();
  await_sleep(waits);
  taking.take(1);
  EXPECT_EQ(send(taking.pairs[0].server.get(), "old"), "3");
  sleeper.join();
  EXPECT_EQ(came, "old");
  EXPECT_EQ(send(taking.number.get(), "new"), "3");
  EXPECT_EQ(receive(taking.pairs[1].server.get()), "new");
  for (const Pair& pair : taking.pairs) pair.talk(20);
}

}  // namespace
}  // namespace farcall::preload
