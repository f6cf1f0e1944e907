// SPDX-License-Identifier: Apache-2.0
//
// Threads that sleep in a set while others change it, and sockets that leave a set, or a wait,
// where the library does not see it. As contract_test.cpp, these run as they are and with the
// library preloaded.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "children.hpp"
#include "connected.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "readiness.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {
namespace {

// A thread that sleeps in a set until it is told of something.
class Sleeper {
 public:
  explicit Sleeper(int set)
      : thread_([this, set] {
          waits_ = kernel(SYS_gettid);
          events_ = wait(set);
        }) {
    while (waits_ == 0) std::this_thread::yield();
    await_sleep(waits_);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    if (thread_.joinable()) thread_.join();
  }
  std::uint32_t told() {
    thread_.join();
    return events_;
  }

 private:
  std::atomic<long> waits_{0};
  std::uint32_t events_ = 0;
  std::thread thread_;
};

TEST(Sleepers, AreToldOfASocketThatComesWithBytesInMemory) {
  const WaitingPeer peer;
  const UniqueFd set = new_set();
  Sleeper sleeper(set.get());
  peer.put_there();
  add(set.get(), peer.server.get());
  EXPECT_EQ(sleeper.told(), EPOLLIN);
  peer.take();
  EXPECT_EQ(wait(set.get(), 0), 0U);
}

TEST(Sleepers, AreToldOnceWhereThatIsAskedFor) {
  const WaitingPeer peer;
  const UniqueFd set = new_set();
  Sleeper sleeper(set.get());
  peer.put_there();
  add(set.get(), peer.server.get(), EPOLLIN | EPOLLONESHOT);
  EXPECT_EQ(sleeper.told(), EPOLLIN);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wait(set.get(), 0), 0U) << i;
  peer.take();
}

// Which of two that is does not matter; the other one sleeps on. Also of an end behind a byte.
TEST(Sleepers, OneOfTwoIsToldOfAnEndWhereThatIsAskedForOnce) {
  for (const int bytes : {0, 1}) {
    Pair pair;
    const int fd = pair.server.get();
    const UniqueFd set = new_set();
    add(set.get(), fd);
    exchange(pair, set.get());
    const std::uint32_t once = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
    epoll_event event{.events = once, .data = {.u64 = kToken}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
    const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
    add(set.get(), over.get(), EPOLLIN, kToken + 1);
    std::atomic<int> told{0};
    std::atomic<long> ids[2] = {0, 0};
    const auto wait_until_over = [&](std::atomic<long>& self) {
      self = kernel(SYS_gettid);
      for (bool ends = false; !ends;) {
        epoll_event events[4];
        const int count = ::epoll_wait(set.get(), events, 4, kLongest);
        ASSERT_GT(count, 0);
        for (int i = 0; i < count; ++i) {
          ends = ends || events[i].data.u64 != kToken;
          if (events[i].data.u64 == kToken) ++told;
        }
      }
    };
    std::thread threads[2];
    for (int i = 0; i < 2; ++i) {
      threads[i] = std::thread([&, i] { wait_until_over(ids[i]); });
      while (ids[i] == 0) std::this_thread::yield();
      await_sleep(ids[i]);
    }
    if (bytes != 0) pair.put(bytes);
    pair.client.reset();
    comes([&] { return told != 0; });
    for (const std::atomic<long>& id : ids) await_sleep(id);
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(over.get(), &one, sizeof one), ssize_t{sizeof one});
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(told, 1) << bytes;
  }
}

// The one that is told is awake then; the other still sleeps.
TEST(Sleepers, AreToldOfAnEdgeThatIsArmedAnew) {
  const WaitingPeer peer;
  const int fd = peer.server.get();
  const UniqueFd set = new_set();
  std::atomic<int> told{0};
  const auto sleep = [&](std::atomic<long>& self) {
    self = kernel(SYS_gettid);
    EXPECT_EQ(wait(set.get()), EPOLLIN);
    ++told;
  };
  std::atomic<long> ids[2] = {0, 0};
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] { sleep(ids[i]); });
    while (ids[i] == 0) std::this_thread::yield();
    await_sleep(ids[i]);
  }
  peer.put_there();
  add(set.get(), fd, EPOLLIN | EPOLLET);
  ASSERT_TRUE(comes([&] { return told == 1; }));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = kToken}};
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 2);
  peer.take();
}

// In the kernel the set is the parent's, too, of whose sleeper the child knows nothing.
TEST(Sleepers, OfAParentHearWhatItsChildHasRegisteredFor) {
  const UniqueFd set = new_set();
  const Pair first;
  add(set.get(), first.server.get());
  exchange(first, set.get());
  const Steps steps;
  Sleeper sleeper(set.get());
  const pid_t child = in_child([&] {
    const Pair pair;
    const UniqueFd own = new_set();
    add(own.get(), pair.server.get());
    exchange(pair, own.get());
    pair.put();
    add(set.get(), pair.server.get());
    Settling().settle();
    steps.await();
  });
  EXPECT_EQ(sleeper.told(), EPOLLIN);
  steps.tell();
  EXPECT_EQ(exit_status(child), 0);
}

// --- what the library does not see

// The number is another file's by then, and the registration in the kernel outlives it.
TEST(Sleepers, AreToldOfASocketOfWhichOneDescriptorWasClosedUnseen) {
  for (const bool is_copied_first : {true, false}) {
    SCOPED_TRACE(is_copied_first);
    WaitingPeer peer;
    const UniqueFd set = new_set();
    UniqueFd copy;
    if (is_copied_first) copy = UniqueFd(::dup(peer.server.get()));
    add(set.get(), peer.server.get());
    exchange(peer, set.get());
    if (!is_copied_first) copy = UniqueFd(::dup(peer.server.get()));
    const int number = peer.server.release();
    ASSERT_EQ(kernel(SYS_close, number), 0);
    const UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(other.get(), number) << "the lowest that is free";
    peer.server = std::move(copy);
    std::thread later([&, waits = kernel(SYS_gettid)] {
      await_sleep(waits);
      peer.put();
    });
    peer.take();
    later.join();
    peer.put();
    EXPECT_EQ(wait(set.get(), 5000), EPOLLIN);
    peer.take();
  }
}

TEST(Sleepers, OfPollLeaveToTheKernelWhatTheyHaveLookedForInVain) {
  const FarPeer peer;
  const int fd = peer.server.get();
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(::poll(&look, 1, 1), 0);
  peer.put();
  EXPECT_TRUE(readable_for_kernel(fd));
  peer.take();
}

// --- signals that come while a call looks

std::atomic<int> caught{0};

// A thread on the same processor, which runs when this one gives it its turn. What it reads of this
// thread is so for as long as it runs: where signals are held a call is looking.
class Disturber {
 public:
  Disturber() : self_(::pthread_self()), id_(kernel(SYS_gettid)) {
    struct sigaction action {};
    action.sa_handler = [](int) { ++caught; };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, &before_);
    caught = 0;
    thread_ = std::thread([this] {
      while (!over_) {
        if (armed_ && is_looking()) {
          armed_ = false;
          sent_ = true;
          ::pthread_kill(self_, SIGUSR1);
        }
        ::sched_yield();
      }
    });
  }
  Disturber(const Disturber&) = delete;
  Disturber& operator=(const Disturber&) = delete;
  ~Disturber() {
    over_ = true;
    thread_.join();
    ::sigaction(SIGUSR1, &before_, nullptr);
  }
  void arm() {
    sent_ = false;
    armed_ = true;
  }
  // Whether it has sent one in the middle of a look.
  bool disarm() {
    armed_ = false;
    return sent_;
  }

 private:
  bool is_looking() const {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/task/%ld/status", id_);
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    char text[4096] = {};
    if (fd < 0) return false;
    (void)!::read(fd, text, sizeof text - 1);
    ::close(fd);
    const char* const found = std::strstr(text, "SigBlk:");
    return found != nullptr && (std::strtoull(found + 7, nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0;
  }
  pthread_t self_;
  long id_;
  struct sigaction before_ {};
  std::atomic<bool> armed_{false}, sent_{false}, over_{false};
  std::thread thread_;
};

void stay_on_this_processor() {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &only);
  ASSERT_EQ(::sched_setaffinity(0, sizeof only, &only), 0);
}

// Neither of them is started again, whatever the handler asks for.
TEST(Sleepers, AreEndedByASignalThatComesWhileTheyLook) {
  if (!preloaded()) return;  // nobody looks
  stay_on_this_processor();
  const FarPeer peer;  // which runs there, too
  const int fd = peer.server.get();
  const UniqueFd set = new_set();
  add(set.get(), fd);
  exchange(peer, set.get(), 40);
  Disturber disturber;
  int seen[2] = {0, 0};
  for (int i = 0; i < 100 && (seen[0] == 0 || seen[1] == 0); ++i) {
    const bool by_set = i % 2 == 0;
    exchange(peer, set.get(), 1);
    pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
    epoll_event event{};
    disturber.arm();
    const int result = by_set ? ::epoll_wait(set.get(), &event, 1, 20) : ::poll(&look, 1, 20);
    const int error = errno;
    if (!disturber.disarm()) continue;
    ++seen[by_set ? 0 : 1];
    EXPECT_EQ(result, -1) << (by_set ? "a set" : "poll");
    EXPECT_EQ(error, EINTR);
    EXPECT_GT(caught, 0);
  }
  // The next wait owes nothing to it, also one that does not look any more as that was in vain.
  for (int i = 0; i < 20; ++i) {
    pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
    disturber.arm();
    (void)::poll(&look, 1, 5);
    disturber.disarm();
    const int before = caught;
    const int result = ::poll(&look, 1, 1);
    if (caught == before) {
      EXPECT_EQ(result, 0) << i;
    }
  }
}

// The kernel starts no call again that has a limit. `ask` has the peer answer, on this processor.
void expect_end_of_receives(int fd, const std::function<void()>& ask) {
  const timeval limit{.tv_sec = 0, .tv_usec = 20'000};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  char byte = 0;
  const auto exchange = [&] {
    ask();
    while (::recv(fd, &byte, 1, 0) != 1)
      if (errno != EINTR && errno != EAGAIN) FAIL() << errno_name();
  };
  for (int i = 0; i < 40; ++i) exchange();
  Disturber disturber;
  int seen = 0;
  for (int i = 0; i < 100 && seen < 3; ++i) {
    for (int k = 0; k < 20; ++k) exchange();
    disturber.arm();
    const std::string got = receive(fd, 1);
    if (!disturber.disarm()) continue;
    ++seen;
    EXPECT_EQ(got, "(EINTR)");
    EXPECT_GT(caught, 0);
  }
}

TEST(Sleepers, WithATimeLimitAreEndedByASignalThatRestartsOthers) {
  if (!preloaded()) return;  // nobody looks
  stay_on_this_processor();
  const Connected peer = with_child([](int fd) {
    for (char byte; ::recv(fd, &byte, 1, 0) == 1;)
      if (::send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
  });
  expect_end_of_receives(peer.fd.get(), [&] { EXPECT_EQ(send(peer.fd.get(), "x"), "1"); });
}

TEST(DatagramSleepers, WithATimeLimitAreEndedByASignalThatRestartsOthers) {
  if (!preloaded()) return;
  stay_on_this_processor();
  const Mapping memory = Mapping::anonymous_shared(4096);
  auto& port = *new (memory.data()) std::atomic<in_port_t>{0};
  const pid_t child = in_child([&] {
    Socket far;
    port = ntohs(reinterpret_cast<const sockaddr_in&>(far.name).sin_port);
    Socket near("0.0.0.0");
    char byte = 0;
    EXPECT_EQ(
        ::recvfrom(far.fd.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&near.name), &near.size),
        1);
    far.connect_to(near);
    for (std::string text = "x"; text == "x"; text = far.receive()) far.send(text);
  });
  while (port == 0) std::this_thread::yield();
  const Socket near;
  sockaddr_in far{};
  far.sin_family = AF_INET;
  far.sin_port = htons(port);
  far.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(near.fd.get(), reinterpret_cast<const sockaddr*>(&far), sizeof far), 0);
  expect_end_of_receives(near.fd.get(), [&] { near.send("x"); });
  near.send("end");
  EXPECT_EQ(exit_status(child), 0);
}

// What the kernel could tell of at any time it does not tell of here: there is no room to send.
TEST(Sleepers, AreToldOfASocketThatHasNoRoom) {
  struct Shared {
    std::atomic<int> step{0};
    bool await(int wanted) const {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (step < wanted && std::chrono::steady_clock::now() < end) {
      }
      return step >= wanted;
    }
  };
  const Mapping memory = Mapping::anonymous_shared(sizeof(Shared));
  auto& shared = *new (memory.data()) Shared;
  Pair pair;
  const pid_t child = in_child([&] {
    pair.server.reset();
    for (int i = 0; i < 200; ++i) {
      EXPECT_EQ(send(pair.client.get(), "ping"), "4");
      EXPECT_EQ(receive(pair.client.get()), "pong");
    }
    shared.step = 1;
    EXPECT_TRUE(shared.await(2));
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    shared.step = 3;
    EXPECT_TRUE(shared.await(4));  // without a call that would show the kernel what it has sent
  });
  pair.client.reset();
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(receive(pair.server.get()), "ping");
    EXPECT_EQ(send(pair.server.get(), "pong"), "4");
  }
  EXPECT_TRUE(shared.await(1));
  const std::string much(4096, 'y');
  while (::send(pair.server.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
  }
  shared.step = 2;
  EXPECT_TRUE(shared.await(3));
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  const UniqueFd outer(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(outer.get(), EPOLL_CTL_ADD, set.get(), &event), 0);
  event.data.u64 = 8;
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  EXPECT_EQ(::epoll_wait(outer.get(), &event, 1, 5000), 1);
  EXPECT_EQ(event.data.u64, 7U);
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 0), 1);
  EXPECT_EQ(event.data.u64, 8U);
  EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 0), 0);
  EXPECT_EQ(::epoll_wait(outer.get(), &event, 1, 0), 0);
  shared.step = 4;
  EXPECT_EQ(exit_status(child), 0);
}

// What lies in memory is not told of before what the same thread has brought about before.
TEST(Sets, TellOfAnEndBeforeWhatWasSentAfterIt) {
  for (int round = 0; round < 20; ++round) {
    Pair ends;
    const Pair other;
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    for (const int fd : {ends.server.get(), other.server.get()}) {
      epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.fd = fd}};
      ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
    }
    std::array<epoll_event, 4> told{};
    const auto wait = [&] {
      return ::epoll_wait(set.get(), told.data(), static_cast<int>(told.size()), 5000);
    };
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(send(other.client.get(), "x"), "1");
      EXPECT_EQ(wait(), 1);
      EXPECT_EQ(receive(other.server.get()), "x");
    }
    EXPECT_EQ(::epoll_wait(set.get(), told.data(), 1, 0), 0);
    // Closed, or another file's.
    if (round % 2 == 0)
      ends.client.reset();
    else
      ASSERT_EQ(::dup2(set.get(), ends.client.get()), ends.client.get());
    EXPECT_EQ(send(other.client.get(), "y"), "1");
    EXPECT_GE(wait(), 1);
    EXPECT_EQ(told[0].data.fd, ends.server.get());
  }
}

}  // namespace
}  // namespace farcall::preload::readiness
