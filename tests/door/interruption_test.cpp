// SPDX-License-Identifier: Apache-2.0
//
// Calls that end before they are answered: signals, deaths and revocation, seen from the client.
#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

TEST(DoorWaiting, ASignalGivesEagain) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const int door = deserted_door();
  in_server_and_client([&] {
    Caller caller(door, "x");
    EXPECT_TRUE(caller.waits());
    EXPECT_EQ(caller.interrupt().error, EAGAIN);
  });
}

TEST(DoorWaiting, RevokingGivesEbadf) {
  const int door = deserted_door();
  Child child([door] { EXPECT_EQ(error_of(door), EBADF); });
  Caller caller(door, "x");
  EXPECT_TRUE(caller.waits());
  EXPECT_TRUE(eventually([&] { return sleeps_in_call(child.pid()); }));
  EXPECT_EQ(::door_revoke(door), 0);
  EXPECT_EQ(caller.reply().error, EBADF);
  EXPECT_EQ(child.join(), 0);
}

TEST(DoorWaiting, TheServersDeathGivesEbadf) {
  ScopedServer server([] { return deserted_door(); });
  Caller caller(server.door(), "x");
  EXPECT_TRUE(caller.waits());
  server.kill();
  EXPECT_EQ(caller.reply().error, EBADF);
  EXPECT_EQ(error_of(server.door()), EBADF);
}

TEST(DoorWaiting, TheServersExitGivesEbadf) {
  ScopedServer server([] { return deserted_door(); });
  Caller caller(server.door(), "x");
  EXPECT_TRUE(caller.waits());
  EXPECT_EQ(server.exit(), 0);
  EXPECT_EQ(caller.reply().error, EBADF);
}

TEST(DoorWaiting, AThreadThatComesEndsIt) {
  const int door = deserted_door();
  Child child([door] { EXPECT_EQ(call(door, "foreign").data, "foreign"); });
  Caller caller(door, "local");
  EXPECT_TRUE(caller.waits());
  EXPECT_TRUE(eventually([&] { return sleeps_in_call(child.pid()); }));
  std::thread([door] {
    EXPECT_EQ(::door_bind(door), 0);
    ::door_return(nullptr, 0, nullptr, 0);
  }).detach();
  EXPECT_EQ(caller.reply().data, "local");
  EXPECT_EQ(child.join(), 0);
}

// ---- after dispatch ----

TEST(DoorInterrupted, ASignalGivesEintrEvenIfCallsAreToRestart) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    for (int i = 0; i < 5; ++i) {
      Caller caller(door, "x");
      ASSERT_TRUE(gate->entered.wait());
      EXPECT_EQ(caller.interrupt().error, EINTR);
      ASSERT_TRUE(gate->let_go());
    }
  });
}

TEST(DoorInterrupted, IgnoredSignalsDoNothing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  ::signal(SIGUSR2, SIG_IGN);
  const Shared<Gate> gate;
  const int door = make_door(*gate);
  in_server_and_client([&] {
    Caller caller(door, "x");
    ASSERT_TRUE(gate->entered.wait());
    for (int i = 0; i < 20; ++i) ::kill(::getpid(), SIGUSR2);
    EXPECT_TRUE(caller.waits());
    gate->open.happens();
    EXPECT_EQ(caller.reply().data, "x");
  });
}

TEST(DoorInterrupted, TheServersDeathGivesEintr) {
  const Shared<Gate> gate;
  for (const bool killed : {true, false}) {
    ScopedServer server([&] { return make_door(*gate); });
    Caller caller(server.door(), "x");
    ASSERT_TRUE(gate->entered.wait());
    EXPECT_TRUE(caller.waits());
    if (killed) {
      server.kill();
    } else {
      EXPECT_EQ(server.exit(), 0);
    }
    EXPECT_EQ(caller.reply().error, EINTR);
    EXPECT_EQ(error_of(server.door()), EBADF);
  }
}

TEST(DoorInterrupted, TheServerThreadsExitGivesEintr) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    if (size == 4) ::pthread_exit(nullptr);
    ::door_return(data, size, nullptr, 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    EXPECT_EQ(error_of(door, "exit"), EINTR);
    EXPECT_EQ(call(door, "x").data, "x");
  });
}

TEST(DoorInterrupted, CallsInProgressFinishAfterRevoking) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate);
  const UniqueFd second(::dup(door));
  const Shared<Event> revoked;
  Child child([&] {
    Caller caller(door, "foreign");
    ASSERT_TRUE(revoked->wait());
    EXPECT_EQ(error_of(second.get()), EBADF);
    gate->open.happens();
    gate->open.happens();
    EXPECT_EQ(caller.reply().data, "foreign");
  });
  Caller caller(door, "local");
  ASSERT_TRUE(gate->entered.wait());
  ASSERT_TRUE(gate->entered.wait());
  ASSERT_EQ(::door_revoke(door), 0);
  revoked->happens();
  EXPECT_EQ(caller.reply().data, "local");
  EXPECT_EQ(child.join(), 0);
}

TEST(DoorInterrupted, TheNextCallGetsItsOwnAnswer) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    std::promise<pthread_t> id;
    std::future<pthread_t> thread = id.get_future();
    std::promise<void> interrupted;
    std::future<void> first_over = interrupted.get_future();
    ::signal(SIGUSR1, [](int) {});
    std::thread caller([&] {
      id.set_value(::pthread_self());
      EXPECT_EQ(error_of(door, "first"), EINTR);
      interrupted.set_value();
      EXPECT_EQ(call(door, "second").data, "second");
      EXPECT_EQ(call(door, "third").data, "third");
    });
    const pthread_t target = thread.get();
    ASSERT_TRUE(gate->entered.wait());
    do {
      ::pthread_kill(target, SIGUSR1);
    } while (!kCountsSignals && first_over.wait_for(5ms) == std::future_status::timeout);
    first_over.wait();
    ASSERT_TRUE(gate->entered.wait());
    for (int i = 0; i < 3; ++i) gate->open.happens();
    ASSERT_TRUE(gate->entered.wait());
    caller.join();
    // Also the thread of the first one is done with the gate.
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(gate->left.wait());
  });
}

// Of a call that nobody waits for any more no answer is wrong.
TEST(DoorAnswered, WhatWouldBeRefusedIsDroppedWhereTheClientHasGone) {
  static constexpr int kBad = 9999;
  struct Wrong {
    Event entered;
    Event open;
    std::atomic<int> came_back{0};
    std::atomic<int> released{-1};
    void operator()(char*, size_t, door_desc_t*, uint_t) {
      entered.happens();
      open.await();
      released = ::fcntl(0, F_DUPFD, 500);  // a number that nobody else is given meanwhile
      std::array array{pass(kBad), pass(released, DOOR_DESCRIPTOR | DOOR_RELEASE)};
      char text[] = "not wanted";
      ::door_return(text, sizeof text, array.data(), array.size());
      ++came_back;
      ::door_return(nullptr, 0, nullptr, 0);
    }
  };
  auto& wrong = *new Wrong;  // the thread outlives the test
  const int door = make_door(wrong, DOOR_NO_CANCEL);
  Caller client([&] {
    return Reply{.error = ERROR_OF(::door_call(door, nullptr)), .data = {}, .descriptors = {}};
  });
  ASSERT_TRUE(wrong.entered.wait());
  EXPECT_EQ(client.interrupt().error, EINTR);
  wrong.open.happens();
  EXPECT_TRUE(
      eventually([&] { return wrong.released >= 0 && ::fcntl(wrong.released, F_GETFD) < 0; }));
  // The thread serves again.
  Caller next(door, "x");
  ASSERT_TRUE(wrong.entered.wait());
  EXPECT_EQ(wrong.came_back, 0);
  EXPECT_EQ(next.interrupt().error, EINTR);
  wrong.open.happens();
}

int inner_door = -1;
std::atomic<int> answered_inside{0};

// In the handler the thread calls a door whose number shares a place, in what the thread remembers,
// with that of the door that it is calling.
class DoorSignalOnStack : public ::testing::TestWithParam<int> {};

// The kernel says nothing of an alternate stack to a handler that runs there with SS_AUTODISARM.
TEST_P(DoorSignalOnStack, AHandlerMayCallAnotherDoor) {
  FARCALL_SKIP_UNDER_TSAN("permits no memory to be allocated in a signal handler");
  in_child([] {
    const Mapping memory = Mapping::anonymous_shared(1 << 18);
    const stack_t alternate{
        .ss_sp = memory.data(), .ss_flags = GetParam(), .ss_size = memory.size()};
    ASSERT_EQ(::sigaltstack(&alternate, nullptr), 0) << std::strerror(errno);
    static pthread_t client;
    client = ::pthread_self();
    auto disturb = [](char* data, size_t size, door_desc_t*, uint_t) {
      const int before = answered_inside;
      ::pthread_kill(client, SIGUSR2);
      EXPECT_TRUE(eventually([&] { return answered_inside > before; }));
      ::door_return(data, size, nullptr, 0);
    };
    const int outer = make_door(disturb);
    constexpr int kPlaces = 8;
    inner_door = ::dup2(::door_create(echo, nullptr, 0), outer + kPlaces);
    ASSERT_EQ(inner_door, outer + kPlaces);
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (call(inner_door, "inside").data == "inside") ++answered_inside;
    };
    action.sa_flags = SA_ONSTACK;
    ASSERT_EQ(::sigaction(SIGUSR2, &action, nullptr), 0);
    constexpr int kRounds = 30;
    for (int round = 1; round <= kRounds; ++round) {
      const Reply reply = call(outer, "outside");
      // The call may have been answered when the caller looks again.
      if (reply.error != EINTR) {
        ASSERT_EQ(reply.error, 0);
        ASSERT_EQ(reply.data, "outside");
      }
      ASSERT_EQ(answered_inside, round);
      ASSERT_EQ(call(inner_door, "between").data, "between");
    }
  });
}

constexpr int kAutoDisarm = static_cast<int>(1U << 31);  // SS_AUTODISARM
INSTANTIATE_TEST_SUITE_P(Stacks, DoorSignalOnStack, ::testing::Values(SS_DISABLE, 0, kAutoDisarm),
                         [](const auto& given) {
                           return given.param == 0            ? "alternate"
                                  : given.param == SS_DISABLE ? "itsOwn"
                                                              : "disarmed";
                         });

sigjmp_buf before_call;

// After some milliseconds the thread sleeps on a futex, later on a descriptor. The signal comes
// only then: who is left while doing something may have locked what it does it to, as everywhere.
TEST(DoorSignal, AHandlerMayLeaveACallByAJump) {
  FARCALL_SKIP_UNDER_TSAN("does not follow jumps out of signal handlers");
  // Threads that serve outlive the test.
  static const auto& never = *new Shared<Event>;
  static const auto& caller = *new Shared<std::atomic<pid_t>>;
  static auto serve = [](char* data, size_t size, door_desc_t*, uint_t) {
    useconds_t us = 0;
    if (size == sizeof us) {
      std::memcpy(&us, data, sizeof us);
      ::usleep(us);
      ::kill(caller->load(), SIGALRM);
      never->await();
    }
    ::door_return(data, size, nullptr, 0);
  };
  const int door = make_door(serve);
  in_child([&] {
    caller->store(::getpid());
    ASSERT_EQ(call(door, "x").data, "x");
    const std::size_t before = open_descriptors();
    ::signal(SIGALRM, [](int) { siglongjmp(before_call, 1); });
    for (const useconds_t us : {3'000U, 3'000U, 3'000U, 60'000U, 60'000U, 60'000U}) {
      if (sigsetjmp(before_call, 1) == 0) {
        (void)error_of(door, std::string(reinterpret_cast<const char*>(&us), sizeof us));
        ADD_FAILURE() << "it has not been left";
      }
      int state = -1;
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
      EXPECT_EQ(state, PTHREAD_CANCEL_ENABLE) << us;
      EXPECT_LE(open_descriptors(), before + 1);
    }
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_LE(open_descriptors(), before + 1);
  });
}

}  // namespace
}  // namespace farcall::door::test
