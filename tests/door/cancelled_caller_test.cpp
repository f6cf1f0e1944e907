// SPDX-License-Identifier: Apache-2.0
//
// door_call() is a cancellation point.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <functional>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

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

}  // namespace
}  // namespace farcall::door::test
