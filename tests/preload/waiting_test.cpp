// SPDX-License-Identifier: Apache-2.0
//
// Readiness as poll, select and epoll tell of it.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "contract.hpp"
#include "farcall/memory.hpp"

namespace farcall::preload {
namespace {

TEST(Contract, PollSeesWhatIsThere) {
  const Pair pair;
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLOUT), POLLOUT);
  pair.put("x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLOUT), POLLIN | POLLOUT);
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN), POLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN), 0);
}

TEST(Contract, PollWakesForLaterBytesAndForTheEnd) {
  Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.put("x");
    std::this_thread::sleep_for(30ms);
    pair.client.reset();
  });
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 20'000), POLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLRDHUP, 20'000) & ~POLLHUP,
            POLLIN | POLLRDHUP);  // nothing can be sent any more on a unix socket
  later.join();
}

TEST(Contract, PollTimesOut) {
  const Pair pair;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 50), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 49ms);
}

// Also where no whole second is asked for.
TEST(Contract, AllWaysOfWaitingTimeOut) {
  const Pair pair;
  const int fd = pair.server.get();
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  fd_set read;
  const auto only_this = [&] {
    FD_ZERO(&read);
    FD_SET(fd, &read);
    return &read;
  };
  constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 50'000'000};
  timespec left{};  // which the kernel changes
  timeval moment{};
  const std::function<long()> ways[] = {
      [&] { return ::select(fd + 1, only_this(), nullptr, nullptr, &moment); },
      [&] { return ::pselect(fd + 1, only_this(), nullptr, nullptr, &kMoment, nullptr); },
      [&] { return ::ppoll(&one, 1, &kMoment, nullptr); },
      [&] {
        return ::syscall(SYS_pselect6, fd + 1, only_this(), nullptr, nullptr, &left, nullptr);
      },
      [&] { return ::syscall(SYS_ppoll, &one, 1, &left, nullptr, 8); },
  };
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    left = kMoment;
    moment = {.tv_sec = 0, .tv_usec = 50'000};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(way(), 0);
    EXPECT_GE(std::chrono::steady_clock::now() - start, 49ms);
  }
}

TEST(Contract, SelectSeesWhatIsThere) {
  const Pair pair;
  const int fd = pair.server.get();
  fd_set read;
  FD_ZERO(&read);
  FD_SET(fd, &read);
  timeval none{};
  EXPECT_EQ(::select(fd + 1, &read, nullptr, nullptr, &none), 0);
  EXPECT_FALSE(FD_ISSET(fd, &read));
  pair.put("x");
  FD_SET(fd, &read);
  EXPECT_EQ(::select(fd + 1, &read, nullptr, nullptr, nullptr), 1);
  EXPECT_TRUE(FD_ISSET(fd, &read));
}

struct Set {
  explicit Set(int fd, std::uint32_t events) {
    epoll_event event{.events = events, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  void change(int fd, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  }
  // The events of the one socket in it; 0 for none.
  [[nodiscard]] std::uint32_t wait(int timeout = 0) const {
    epoll_event events[4];
    const int count = ::epoll_wait(set.get(), events, 4, timeout);
    EXPECT_LE(count, 1);
    if (count == 1) {
      EXPECT_EQ(events[0].data.u64, 77u);
    }
    return count == 1 ? events[0].events : 0;
  }
  UniqueFd set{::epoll_create1(EPOLL_CLOEXEC)};
};

TEST(Contract, LevelsAreReportedUntilRead) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(set.wait(), 0u);
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "x");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "y");
    EXPECT_EQ(set.wait(), 0u);
  }
}

TEST(Contract, EdgesAreReportedOnce) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLET);
  for (int round = 0; round < 5; ++round) {
    (void)set.wait();
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(set.wait(), 0u);
    EXPECT_EQ(receive(pair.server.get(), 1), "x");
    pair.put("z");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "yz");
    EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
  }
}

// As nginx reads: no further than FIONREAD has said, for what comes after that makes a new edge.
TEST(Contract, EdgesTellOfWhatWasNotCounted) {
  const Pair pair;
  const int large = 1 << 20;
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDBUF, &large, sizeof large), 0);
  set_nonblocking(pair.server.get());
  const Set set(pair.server.get(), EPOLLIN | EPOLLET);
  (void)set.wait();
  for (int round = 0; round < 5; ++round) {
    // A reader that has slept gets these by the kernel, where many of them are still on their way.
    EXPECT_EQ(set.wait(1), 0u);
    pair.put(std::string(200'000, 'k'));
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "k");
    pair.put(std::string(200'000, 'r'));
    (void)set.wait();
    std::string all = "k";
    for (;;) {
      int counted = 0;
      ASSERT_EQ(::ioctl(pair.server.get(), FIONREAD, &counted), 0);
      for (auto left = static_cast<std::size_t>(counted); left != 0;) {
        const std::string part = receive(pair.server.get(), std::min<std::size_t>(left, 10'000));
        if (part == "(EAGAIN)") break;
        all += part;
        left -= part.size();
      }
      if (all.size() == 400'000) break;
      ASSERT_EQ(set.wait(20'000), EPOLLIN) << all.size();
    }
    EXPECT_EQ(all, std::string(200'000, 'k') + std::string(200'000, 'r'));
    EXPECT_EQ(receive(pair.server.get(), 1), "(EAGAIN)");
  }
}

TEST(Contract, OneShotIsReportedOnceUntilArmedAgain) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLONESHOT);
  for (int round = 0; round < 5; ++round) {
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    pair.put("z");
    EXPECT_EQ(set.wait(), 0u);
    set.change(pair.server.get(), EPOLLIN | EPOLLONESHOT);
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "xyz");
    set.change(pair.server.get(), EPOLLIN | EPOLLONESHOT);
    EXPECT_EQ(set.wait(), 0u);
  }
}

TEST(Contract, ASocketWithBytesCanJoinASet) {
  const Pair pair;
  pair.put("x");
  const Set set(pair.server.get(), EPOLLOUT);
  EXPECT_EQ(set.wait(1000), EPOLLOUT);
  set.change(pair.server.get(), EPOLLIN);
  EXPECT_EQ(set.wait(1000), EPOLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  pair.put("y");
  EXPECT_EQ(set.wait(20), 0u);
  const Set other(pair.server.get(), EPOLLIN);
  EXPECT_EQ(other.wait(1000), EPOLLIN);
}

TEST(Contract, ASocketWithBytesWakesWhoAlreadyWaits) {
  const Pair pair;
  const Pair other;
  const Set set(other.server.get(), EPOLLIN);
  pair.put("x");
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  });
  EXPECT_NE(set.wait(20'000) & (EPOLLIN | EPOLLOUT), 0u);
  later.join();
  EXPECT_EQ(set.wait(1000), EPOLLIN);
}

TEST(Contract, ReportsBothDirectionsInOneEvent) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLOUT);
  for (int round = 0; round < 20; ++round) {
    pair.put("x");
    std::uint32_t events = 0;
    for (int i = 0; i < 20 && events != (EPOLLIN | EPOLLOUT); ++i) events |= set.wait(1000);
    EXPECT_EQ(events, EPOLLIN | EPOLLOUT);
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
}

TEST(Contract, ASetInASetTellsOfItsSockets) {
  const Pair pair;
  const Set inner(pair.server.get(), EPOLLIN);
  pair.put("warm");
  EXPECT_EQ(inner.wait(1000), EPOLLIN);
  EXPECT_EQ(receive(pair.server.get()), "warm");
  const Set outer(inner.set.get(), EPOLLIN);
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.put("x");
  });
  EXPECT_EQ(outer.wait(20'000), EPOLLIN);
  EXPECT_EQ(inner.wait(1000), EPOLLIN);
  EXPECT_EQ(poll_once(inner.set.get(), POLLIN, 1000), POLLIN);
  later.join();
}

TEST(Contract, ASetMadeBeforeAForkServesTheChild) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN);
  for (int i = 0; i < 20; ++i) {
    pair.put("x");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
  const pid_t child = in_child([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(set.wait(20'000), EPOLLIN);
      // One of them: who is late finds several.
      EXPECT_EQ(receive(pair.server.get(), 1), "y");
    }
  });
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(20ms);
    pair.put("y");
  }
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, AnExclusiveRegistrationIsToldOf) {
  const Pair pair;
  const Pair other;
  const Set set(other.server.get(), EPOLLIN);
  for (int i = 0; i < 5; ++i) {
    pair.put("x");
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      epoll_event event{.events = EPOLLIN | EPOLLEXCLUSIVE, .data = {.u64 = 77}};
      EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
    });
    EXPECT_NE(set.wait(20'000) & (EPOLLIN | EPOLLOUT), 0u);
    later.join();
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "x");
    std::thread sender([&] {
      std::this_thread::sleep_for(20ms);
      pair.put("y");
    });
    EXPECT_EQ(set.wait(20'000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "y");
    sender.join();
    EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  }
}

TEST(Contract, SeveralThreadsWaitInOneSet) {
  const Pair pair;
  set_nonblocking(pair.server.get());
  const Set set(pair.server.get(), EPOLLIN);
  constexpr int kMessages = 2000;
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (received < kMessages) {
        if (set.wait(200) == 0) continue;
        char bytes[16];
        const ssize_t got = ::recv(pair.server.get(), bytes, sizeof bytes, 0);
        if (got > 0) received += static_cast<int>(got);
      }
    });
  for (int i = 0; i < kMessages; ++i) {
    pair.put("x");
    if (i % 50 == 0) std::this_thread::sleep_for(1ms);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kMessages);
}

// A child that puts bytes where the library has them, and then waits for nothing: nobody but the
// receiver looks at what it has put.
class BusySender {
 public:
  BusySender() : pair_(false) {
    child_ = in_child([this] {
      const int fd = pair_.client.get();
      pair_.server.reset();
      for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(receive(fd), "talk");
        ASSERT_EQ(send(fd, "talk"), "4");
      }
      step(1);
      await(2);
      send(fd, "first");
      send(fd, "second");
      step(3);
      await(4);
    });
    pair_.client.reset();
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(send(fd(), "talk"), "4");
      EXPECT_EQ(receive(fd()), "talk");
    }
    if (preloaded()) {
      EXPECT_GE(stream_mappings(), 1) << "not accelerated";
    }
    await(1);
    step(2);
    await(3);
  }
  BusySender(const BusySender&) = delete;
  BusySender& operator=(const BusySender&) = delete;
  ~BusySender() {
    step(4);
    EXPECT_EQ(exit_status(child_), 0);
  }
  [[nodiscard]] int fd() const { return pair_.server.get(); }

 private:
  void step(int number) { step_ = number; }
  void await(int number) {
    while (step_ < number) ::sched_yield();
  }

  Pair pair_;
  Mapping shared_ = Mapping::anonymous_shared(sizeof(std::atomic<int>));
  std::atomic<int>& step_ = *new (shared_.data()) std::atomic<int>(0);
  pid_t child_;
};

void add_to(const UniqueFd& set, int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
}

int wait_in(const UniqueFd& set, int milliseconds) {
  epoll_event event{};
  return ::epoll_wait(set.get(), &event, 1, milliseconds);
}

TEST(Contract, ADuplicateOfASocketWithBytesCanJoinASet) {
  for (const bool high : {false, true}) {
    const BusySender sender;
    const UniqueFd copy(high ? ::fcntl(sender.fd(), F_DUPFD_CLOEXEC, 50) : ::dup(sender.fd()));
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    add_to(set, copy.get());
    EXPECT_EQ(wait_in(set, 20'000), 1);
    EXPECT_EQ(receive(copy.get(), 5), "first");
    EXPECT_EQ(wait_in(set, 20'000), 1);
    EXPECT_EQ(receive(sender.fd()), "second");
    EXPECT_EQ(wait_in(set, 0), 0);
  }
}

TEST(Contract, WhoWaitsForASetIsToldOfBytesThatWereThereFirst) {
  for (const std::string way : {"in a set", "poll", "select"}) {
    const BusySender sender;
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    const UniqueFd outer(::epoll_create1(EPOLL_CLOEXEC));
    add_to(set, sender.fd());
    if (way == "in a set") add_to(outer, set.get());
    const auto wait = [&](int milliseconds) {
      if (way == "in a set") return wait_in(outer, milliseconds);
      if (way == "poll") return poll_once(set.get(), POLLIN, milliseconds) != 0 ? 1 : 0;
      fd_set read;
      FD_ZERO(&read);
      FD_SET(set.get(), &read);
      timeval time{.tv_sec = milliseconds / 1000, .tv_usec = 0};
      return ::select(set.get() + 1, &read, nullptr, nullptr, &time);
    };
    EXPECT_EQ(wait(20'000), 1) << way;
    EXPECT_EQ(wait_in(set, 0), 1) << way;
    EXPECT_EQ(receive(sender.fd(), 5), "first") << way;
    // What is left is told of again, and then there is nothing.
    EXPECT_EQ(wait(20'000), 1) << way;
    EXPECT_EQ(wait_in(set, 0), 1) << way;
    EXPECT_EQ(receive(sender.fd()), "second") << way;
    EXPECT_EQ(wait_in(set, 0), 0) << way;
    EXPECT_EQ(wait(0), 0) << way;
  }
}

}  // namespace
}  // namespace farcall::preload
