// SPDX-License-Identifier: Apache-2.0
//
// Threads that wait in reserve: no more receive than can run, and nobody who is needed stays there.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <random>
#include <thread>

#include "call/port.hpp"
#include "call/server.hpp"
#include "harness/child.hpp"
#include "harness/forbidden_call.hpp"
#include "harness/usage.hpp"

namespace farcall::call::test {
using namespace farcall::test;
namespace {

using namespace std::chrono_literals;

// Holds back whoever comes, until it is opened.
class Barrier {
 public:
  void pass() {
    std::unique_lock guard(lock_);
    ++inside_;
    changed_.wait(guard, [this] { return open_; });
    --inside_;
  }
  void open() {
    const std::lock_guard guard(lock_);
    open_ = true;
    changed_.notify_all();
  }
  void shut() {
    const std::lock_guard guard(lock_);
    open_ = false;
  }
  int inside() {
    const std::lock_guard guard(lock_);
    return inside_;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool open_ = false;
};

// A port with more threads than processors, which call others when they are the last to receive.
// "hold": waits at the barrier; "end": the thread ends after its answer; "nap": waits a little.
class CallReserve : public ::testing::Test {
 protected:
  CallReserve() {
    give_up_after(120s);
    for (int i = 0; i < threads(); ++i) threads_.emplace_back([this] { serve(); });
    EXPECT_TRUE(eventually([this] { return joined_ == threads(); }));
  }
  ~CallReserve() override {
    port.close();
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] int enough() const { return static_cast<int>(port.processors()) + 1; }
  [[nodiscard]] int threads() const { return enough() + 12; }
  void expect_reserve() const {
    EXPECT_TRUE(eventually([this] {
      return port.has_reserve() && port.idle_threads() == static_cast<std::size_t>(enough());
    })) << port.idle_threads();
  }
  std::string ask_once(std::string_view question) {
    Client client(descriptor);
    return ask(client, question);
  }

  Port port;
  const int descriptor = port.descriptor();
  Barrier barrier;

 private:
  void serve() {
    ServerThread thread(port);
    thread.set_restartable(true);
    thread.set_reservable(true);
    ++joined_;
    std::minstd_rand random(static_cast<unsigned>(::gettid()));
    Incoming incoming;
    for (;;) {
      const Outcome outcome = thread.receive(incoming, Deadline::never());
      if (outcome == Outcome::finished) return;
      if (outcome != Outcome::ok) continue;
      if (!port.has_sleeping_thread() && port.idle_threads() == 0) port.call_reserve();
      const std::string question = text_of(incoming.data());
      if (question == "hold") barrier.pass();
      if (question == "nap")
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      thread.reply(incoming, incoming.data());
      if (question == "end") return;
    }
  }

  std::atomic<int> joined_{0};
  std::list<std::thread> threads_;
};

TEST_F(CallReserve, NoMoreReceiveThanCanRun) {
  expect_reserve();
  EXPECT_EQ(ask_once("x"), "x");
  expect_reserve();
}

TEST_F(CallReserve, AllAreCalledWhenTheOthersAreHeldUp) {
  for (int round = 0; round < 3; ++round) {
    expect_reserve();
    std::list<std::thread> clients;
    for (int i = 0; i < threads(); ++i)
      clients.emplace_back([this] { EXPECT_EQ(ask_once("hold"), "hold"); });
    EXPECT_TRUE(eventually([this] { return barrier.inside() == threads(); })) << barrier.inside();
    EXPECT_FALSE(port.has_reserve());
    EXPECT_EQ(port.idle_threads(), 0U);
    barrier.open();
    for (std::thread& client : clients) client.join();
    barrier.shut();
  }
}

TEST_F(CallReserve, OneComesForEachThatEnds) {
  expect_reserve();
  for (int left = threads(); left > 1; --left) {
    ASSERT_EQ(ask_once("end"), "end") << left;
    ASSERT_EQ(ask_once("x"), "x") << left;
  }
  EXPECT_TRUE(eventually([this] { return !port.has_reserve() && port.idle_threads() == 1; }));
}

TEST_F(CallReserve, WhoIsCalledReceivesAndGoesBackWhenItHasServed) {
  expect_reserve();
  int called = 0;
  // One that has just been started may not be there yet.
  EXPECT_TRUE(eventually([&] {
    while (port.call_reserve()) ++called;
    return called >= threads() - enough();
  }));
  EXPECT_EQ(called, threads() - enough());
  EXPECT_TRUE(eventually([this] { return static_cast<int>(port.idle_threads()) == threads(); }));
  EXPECT_FALSE(port.call_reserve());
  // One that finds more to do at once serves that first.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(ask_once("x"), "x");
    return static_cast<int>(port.idle_threads()) <= enough();
  }));
  expect_reserve();
}

TEST_F(CallReserve, NobodyWaitsInVainWhereverOthersAreHeldUp) {
  std::list<std::thread> clients;
  for (int i = 0; i < threads(); ++i)
    clients.emplace_back([this, i] {
      std::minstd_rand random(static_cast<unsigned>(i) + 1);
      Client client(descriptor);
      for (int k = 0; k < 200; ++k)
        if (random() % 4 == 0)
          ASSERT_EQ(ask(client, "nap"), "nap");
        else
          ASSERT_EQ(ask(client, "x"), "x");
    });
  for (std::thread& client : clients) client.join();
  expect_reserve();
}

// Also where those that receive are not done with their part of the port, and call nobody.
TEST(CallReserveAtTheEnd, EachThreadLearnsThatThePortHasClosed) {
  give_up_after(120s);
  Port port;
  Barrier barrier;
  std::atomic<int> ended{0};
  const int enough = static_cast<int>(port.processors()) + 1;
  const int count = enough + 4;
  std::list<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&] {
      ServerThread thread(port);
      thread.set_restartable(true);
      thread.set_reservable(true);
      Incoming incoming;
      EXPECT_EQ(thread.receive(incoming, Deadline::never()), Outcome::finished);
      ++ended;
      barrier.pass();
    });
  EXPECT_TRUE(eventually([&] {
    return port.has_reserve() && port.idle_threads() == static_cast<std::size_t>(enough);
  }));
  port.close();
  EXPECT_TRUE(eventually([&] { return ended == count; })) << ended;
  barrier.open();
  for (std::thread& thread : threads) thread.join();
}

// The others begin to serve when it has said that it leaves, and before it looks once more.
TEST(CallReserveRace, TheLastThatReceivesStays) {
  FARCALL_SKIP_UNDER_TSAN("knows no fences of the kernel's");
  in_child([] {
    Port port;
    const auto endpoint = port.open_endpoint({}, {});
    PortState& state = *inside(*endpoint).port;
    std::deque<std::atomic<bool>> serving;
    for (std::size_t i = 0; i < port.processors() + 1; ++i)
      state.join_threads(serving.emplace_back(true));
    std::atomic<bool> mine{true};
    state.join_threads(mine);
    static std::deque<std::atomic<bool>>& others = serving;
    ::signal(SIGSYS, [](int) {
      for (std::atomic<bool>& one : others) one = false;
    });
    ASSERT_TRUE(trap_call(SYS_membarrier)) << std::strerror(errno);
    state.wait_in_reserve(mine);
    EXPECT_FALSE(others.front());
    EXPECT_TRUE(mine);
    EXPECT_FALSE(port.has_reserve());
    EXPECT_EQ(port.idle_threads(), 1U);
  });
}

}  // namespace
}  // namespace farcall::call::test
