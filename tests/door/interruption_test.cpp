// SPDX-License-Identifier: Apache-2.0
//
// Calls that end before they are answered: signals, deaths, revocation and cancellation, seen from
// the client.
#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <functional>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// A private door without threads: callers wait.
int deserted_door() {
  ::door_server_create([](door_info_t*) {});
  const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
  EXPECT_GE(door, 0) << std::strerror(errno);
  return door;
}

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
  ScopedServer server(deserted_door);
  Caller caller(server.door(), "x");
  EXPECT_TRUE(caller.waits());
  server.kill();
  EXPECT_EQ(caller.reply().error, EBADF);
  EXPECT_EQ(error_of(server.door()), EBADF);
}

TEST(DoorWaiting, TheServersExitGivesEbadf) {
  ScopedServer server(deserted_door);
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

// ---- door_call is a cancellation point ----

// Cancels a thread in a call; how long it took to end.
std::int64_t cancel_in_call(int door, const std::function<bool()>& in_call) {
  std::atomic<bool> returned{false};
  std::thread thread([&] {
    call(door, "x");
    returned = true;
  });
  EXPECT_TRUE(in_call());
  const std::int64_t before = now_ns();
  ::pthread_cancel(thread.native_handle());
  thread.join();
  EXPECT_FALSE(returned);
  return now_ns() - before;
}

TEST(DoorInterruption, ReleasesDescriptorsOnceAThreadHasThem) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_child([&] {
    const int fd = ::dup(0);
    Caller caller(door, "x", {pass(fd, DOOR_DESCRIPTOR | DOOR_RELEASE)});
    ASSERT_TRUE(gate->entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
    EXPECT_EQ(ERROR_OF(::fcntl(fd, F_GETFD)), EBADF);
  });
  ASSERT_TRUE(gate->let_go());
}

TEST(DoorInterruption, KeepsDescriptorsThatNoThreadHasTaken) {
  const int door = deserted_door();
  in_server_and_client([&] {
    const UniqueFd fd(::dup(0));
    Caller caller(door, "x", {pass(fd.get(), DOOR_DESCRIPTOR | DOOR_RELEASE)});
    std::this_thread::sleep_for(kGlance);
    EXPECT_EQ(caller.interrupt().error, EAGAIN);
    EXPECT_GE(::fcntl(fd.get(), F_GETFD), 0);
  });
}

TEST(DoorCancel, AThreadCanBeCancelledWhileItWaitsForAnAnswer) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    std::int64_t best = INT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t took = cancel_in_call(door, [&] { return gate->entered.wait(); });
      best = std::min(best, took);
      ASSERT_TRUE(gate->let_go());
    }
    EXPECT_LT(best, 60'000'000 * kSlow);
    gate->open.happens();
    EXPECT_EQ(call(door, "x").data, "x");
    ASSERT_TRUE(gate->entered.wait());
    ASSERT_TRUE(gate->left.wait());  // or the next round's would be taken for its own
  });
}

TEST(DoorCancel, AThreadCanBeCancelledWhileItSleepsForLong) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    std::int64_t best = INT64_MAX;
    for (int i = 0; i < 3; ++i) {
      best = std::min(best, cancel_in_call(door, [&] {
                        const bool entered = gate->entered.wait();
                        std::this_thread::sleep_for(kGlance);
                        return entered;
                      }));
      ASSERT_TRUE(gate->let_go());
    }
    EXPECT_LT(best, 60'000'000 * kSlow);
  });
}

TEST(DoorCancel, AThreadCanBeCancelledWhileItWaitsForAServerThread) {
  const int door = deserted_door();
  in_server_and_client([&] {
    // One of them may meet others that use the machine.
    std::int64_t best = INT64_MAX;
    for (int i = 0; i < 3; ++i)
      best = std::min(best, cancel_in_call(door, [] {
                        std::this_thread::sleep_for(kGlance);
                        return true;
                      }));
    EXPECT_LT(best, std::int64_t{500'000'000} * kSlow);
  });
}

// Cancels a thread in this call, which would come back when the gate opens.
void expect_cancelled_in(const Shared<Gate>& gate, const std::function<void()>& call_once) {
  std::atomic<bool> returned{false};
  std::atomic<bool> ended{false};
  struct End {
    std::atomic<bool>& seen;
    ~End() { seen = true; }
  };
  std::thread thread([&] {
    const End end{ended};
    call_once();
    returned = true;
  });
  EXPECT_TRUE(gate->entered.wait());
  ::pthread_cancel(thread.native_handle());
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
  EXPECT_TRUE(gate->let_go());
  thread.join();
  EXPECT_FALSE(returned);
}

TEST(DoorCancel, AThreadCanBeCancelledInAPing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] { expect_cancelled_in(gate, [&] { ::door_call(door, nullptr); }); });
}

TEST(DoorCancel, AThreadCanBeCancelledInACallThatPassesDescriptors) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client(
      [&] { expect_cancelled_in(gate, [&] { (void)error_of(door, "x", {pass(0)}); }); });
}

// The server has them, so the client's own are closed. The module does not tell who is cancelled
// whether it has.
TEST(DoorCancel, AThreadThatIsCancelledHasReleasedWhatItHasPassed) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    const UniqueFd file(::memfd_create("passed", MFD_CLOEXEC));
    std::atomic<int> copy{-1};
    expect_cancelled_in(gate, [&] {
      copy = ::dup(file.get());
      (void)error_of(door, "x", {pass(copy, DOOR_DESCRIPTOR | DOOR_RELEASE)});
    });
    // The number may be another file's by then.
    struct stat passed {};
    struct stat now {};
    ASSERT_EQ(::fstat(file.get(), &passed), 0);
    EXPECT_FALSE(::fstat(copy, &now) == 0 && now.st_ino == passed.st_ino);
  });
}

TEST(DoorCancel, ACancellationByAHandlerActsBeforeTheCallReturns) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = [](int) { ::pthread_cancel(::pthread_self()); };
    ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
    std::atomic<pid_t> task{0};
    std::atomic<bool> returned{false};
    std::thread thread([&] {
      task = ::gettid();
      (void)error_of(door, "x");
      returned = true;
    });
    ASSERT_TRUE(gate->entered.wait());
    EXPECT_TRUE(eventually([&] { return sleeps_in_call(task); }));
    ::pthread_kill(thread.native_handle(), SIGUSR1);
    thread.join();
    EXPECT_FALSE(returned);
    EXPECT_TRUE(gate->let_go());
    ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  });
}

// There is nothing to wait for in a call that is answered at once.
TEST(DoorCancel, APendingCancellationActsBeforeAQuickCall) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    for (int i = 0; i < 20; ++i) {
      bool returned = false;
      std::thread([&] {
        for (int calls = 0; calls < 10; ++calls) (void)error_of(door, "x");
        ::pthread_cancel(::pthread_self());
        (void)error_of(door, "x");
        returned = true;
      }).join();
      EXPECT_FALSE(returned);
    }
  });
}

TEST(DoorCancel, APendingCancellationActsInTheCall) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    bool returned = false;
    std::thread([&] {
      ::pthread_cancel(::pthread_self());
      call(door, "x");
      returned = true;
    }).join();
    EXPECT_FALSE(returned);
  });
}

TEST(DoorCancel, AThreadThatDisablesItIsNotDisturbed) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate);
  in_server_and_client([&] {
    std::string data;
    std::thread thread([&] {
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
      data = call(door, "x").data;
    });
    ASSERT_TRUE(gate->entered.wait());
    ::pthread_cancel(thread.native_handle());
    std::this_thread::sleep_for(kGlance);
    gate->open.happens();
    thread.join();
    EXPECT_EQ(data, "x");
  });
}

TEST(DoorCancel, NothingIsLeftOfACancelledCaller) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Gate> gate;
  const int door = make_door(*gate, DOOR_NO_CANCEL);
  auto round = [&] {
    cancel_in_call(door, [&] { return gate->entered.wait(); });
    ASSERT_TRUE(gate->let_go());
  };
  in_server_and_client([&] {
    for (int i = 0; i < 3; ++i) round();
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 20; ++i) round();
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 2; }))
        << open_descriptors() << " descriptors instead of " << before;
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
