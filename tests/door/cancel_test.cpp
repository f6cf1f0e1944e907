// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the server thread whose client has given up or died.
#include <gtest/gtest.h>
#include <pthread.h>

#include "door/handlers.h"
#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// Threads that can be cancelled.
void make_cancellable(door_info_t*) {
  pthread_t thread;
  ::pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
        ::door_return(nullptr, 0, nullptr, 0);
        return nullptr;
      },
      nullptr);
  ::pthread_detach(thread);
}

struct Progress {
  Event entered;
  Event go;
  Event cancelled;
  Event passed;
};

// Says so if it is destroyed by unwinding.
class Witness {
 public:
  explicit Witness(Event& event) : event_(event) {}
  ~Witness() { event_.happens(); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

 private:
  Event& event_;
};

// Waits for `go`; "quick" is answered at once.
struct Patient {
  Progress* progress;
  void operator()(char* data, size_t size, door_desc_t*, uint_t) const {
    if (std::string_view(data, size) != "quick") wait();
    ::door_return(data, size, nullptr, 0);
  }
  void wait() const {
    const Witness witness(progress->cancelled);
    progress->entered.happens();
    progress->go.await();
    progress->passed.happens();
    (void)progress->cancelled.wait(0ms);
  }
};

void wait_for_silence(Event& event) { EXPECT_FALSE(event.wait(kGlance)); }

TEST(DoorCancelServer, AnInterruptedClientCancelsItsThread) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  ::door_server_create(make_cancellable);
  Patient patient{progress.get()};
  const int door = make_door(patient);
  in_server_and_client([&] {
    for (int i = 0; i < 5; ++i) {
      Caller caller(door, "x");
      ASSERT_TRUE(progress->entered.wait());
      EXPECT_EQ(caller.interrupt().error, EINTR);
      EXPECT_TRUE(progress->cancelled.wait());
      wait_for_silence(progress->passed);
      EXPECT_EQ(call(door, "quick").data, "quick");
    }
  });
}

TEST(DoorCancelServer, ADyingClientCancelsItsThread) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  ::door_server_create(make_cancellable);
  Patient patient{progress.get()};
  const int door = make_door(patient);
  for (int i = 0; i < 5; ++i) {
    Child child([&] { call(door, "x"); });
    ASSERT_TRUE(progress->entered.wait());
    child.kill();
    EXPECT_TRUE(progress->cancelled.wait());
    EXPECT_EQ(call(door, "quick").data, "quick");
  }
}

TEST(DoorCancelServer, ACancelledClientCancelsItsThread) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  ::door_server_create(make_cancellable);
  Patient patient{progress.get()};
  const int door = make_door(patient);
  in_server_and_client([&] {
    std::thread thread([&] { call(door, "x"); });
    ASSERT_TRUE(progress->entered.wait());
    ::pthread_cancel(thread.native_handle());
    thread.join();
    EXPECT_TRUE(progress->cancelled.wait());
  });
}

// Threads that can be cancelled, and those of them that are left.
class Crowd {
 public:
  static Crowd& here() {
    static auto& crowd = *new Crowd;
    return crowd;
  }
  static void grow(door_info_t*) {
    const std::lock_guard guard(here().lock_);
    pthread_t thread;
    if (::pthread_create(&thread, nullptr, serve, nullptr) != 0) std::abort();
    ::pthread_detach(thread);
    here().threads_.push_back(thread);
  }
  // False: there is but one.
  bool cancel_one(std::size_t which) {
    const std::lock_guard guard(lock_);
    if (threads_.size() < 2) return false;
    const auto one = threads_.begin() + static_cast<std::ptrdiff_t>(which % threads_.size());
    ::pthread_cancel(*one);
    threads_.erase(one);
    return true;
  }

 private:
  static void* serve(void*) {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    ::door_return(nullptr, 0, nullptr, 0);
    return nullptr;
  }
  std::mutex lock_;
  std::vector<pthread_t> threads_;
};

TEST(DoorCancel, AForkIsNoPoint) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    int door = ::door_create(echo, nullptr, DOOR_UNREF);
    EXPECT_EQ(call(door, "x").data, "x");
    pthread_t thread;
    const auto body = [](void*) -> void* {
      ::pthread_cancel(::pthread_self());
      const pid_t child = ::fork();
      int state = 0;
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
      if (child == 0) ::_exit(state == PTHREAD_CANCEL_ENABLE ? 42 : 1);
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
      return nullptr;
    };
    ASSERT_EQ(::pthread_create(&thread, nullptr, body, nullptr), 0);
    void* result = &door;
    EXPECT_EQ(::pthread_join(thread, &result), 0);
    EXPECT_EQ(result, nullptr) << "it came back";
  });
}

TEST(DoorCancelServer, AThreadThatIsCancelledWhileItWaitsTakesNoCallAlong) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<std::atomic<int>> calls;
  const Shared<std::atomic<bool>> over;
  const ScopedServer server([&] {
    ::door_server_create(Crowd::grow);
    const int door = ::door_create(echo, nullptr, 0);
    Crowd::grow(nullptr);
    std::thread([&] {
      for (std::size_t i = 0; !over->load(); ++i) {
        ::usleep(static_cast<useconds_t>(i * 7919 % 1000));
        if (!Crowd::here().cancel_one(i)) Crowd::grow(nullptr);
      }
    }).detach();
    return door;
  });
  constexpr int kCalls = 40'000;
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([&] {
      // One whose thread is cancelled with its call fails.
      for (; *calls < kCalls / kSlow; ++*calls) (void)call(server.door(), "x");
    });
  int before = -1;
  while (*calls < kCalls / kSlow) {
    ASSERT_NE(calls->load(), before) << "nothing goes on";
    before = *calls;
    (void)eventually([&] { return *calls != before; });
  }
  over->store(true);
  for (std::thread& each : clients) each.join();
}

TEST(DoorCancelServer, AThreadThatIsCancelledInACallTakesNoOther) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    static int door = -1;
    static Gate& gate = lasting<Gate>();
    ::door_server_create([](door_info_t*) {});
    static const auto serve = [](bool cancellable) {
      std::thread([cancellable] {
        EXPECT_EQ(::door_bind(door), 0);
        if (cancellable) ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
        ::door_return(nullptr, 0, nullptr, 0);
      }).detach();
    };
    door = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          if (std::string_view(data, size) == "last") {
            gate.entered.happens();
            // The other one has not even arrived, or waits for a thread.
            gate.open.await();
            ::pthread_cancel(::pthread_self());
          }
          ::door_return(data, size, nullptr, 0);
        },
        nullptr, DOOR_PRIVATE);
    serve(true);
    Caller last(door, "last");
    ASSERT_TRUE(gate.entered.wait());
    Caller waits(door, "first of another");
    ASSERT_TRUE(waits.waits());
    gate.open.happens();
    EXPECT_EQ(last.reply().data, "last");
    EXPECT_TRUE(waits.waits());
    serve(false);
    EXPECT_EQ(waits.reply().data, "first of another");
  });
}

TEST(DoorCancelServer, NoCancelLetsItGoOn) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  ::door_server_create(make_cancellable);
  Patient patient{progress.get()};
  const int door = make_door(patient, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    Caller caller(door, "x");
    ASSERT_TRUE(progress->entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
    wait_for_silence(progress->cancelled);
    progress->go.happens();
    EXPECT_TRUE(progress->passed.wait());
    EXPECT_EQ(call(door, "quick").data, "quick");
    EXPECT_TRUE(progress->cancelled.wait());  // the witness at the end of the procedure
  });
}

TEST(DoorCancelServer, ItStaysPendingWhereCancellationIsDisabled) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  // Default threads disable it.
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    {
      const Witness witness(progress->cancelled);
      progress->entered.happens();
      progress->go.await();  // a cancellation point
      progress->passed.happens();
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
      ::pthread_testcancel();
      progress->passed.happens();
    }
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    Caller caller(door, "x");
    ASSERT_TRUE(progress->entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
    wait_for_silence(progress->cancelled);
    progress->go.happens();
    EXPECT_TRUE(progress->passed.wait());
    EXPECT_TRUE(progress->cancelled.wait());
    wait_for_silence(progress->passed);
  });
}

TEST(DoorCancelServer, ACallThatIsAnsweredCancelsNothing) {
  const Shared<Progress> progress;
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    {
      const Witness witness(progress->cancelled);
      ::pthread_testcancel();
      progress->passed.happens();
    }
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  for (int i = 0; i < 20; ++i) {
    in_child([&] { EXPECT_EQ(error_of(door), 0); });  // and dies, but not in a call
    EXPECT_TRUE(progress->passed.wait());
    EXPECT_TRUE(progress->cancelled.wait());
  }
  wait_for_silence(progress->cancelled);
}

TEST(DoorCancelServer, RunsNoCleanUpHandlersOfCallsThatWereAnswered) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  Event entered;
  static handled handled{};
  handled.entered = [](void* event) { static_cast<Event*>(event)->happens(); };
  handled.what = &entered;
  static pthread_t server;
  ::door_server_create([](door_info_t*) {
    if (server == 0) ::pthread_create(&server, nullptr, serve_with_a_handler, &handled);
  });
  const int door = ::door_create(answer_with_a_handler, &handled, DOOR_REFUSE_DESC);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(call(door, "answered").data, "answered");
  Caller caller(door);
  ASSERT_TRUE(entered.wait());
  EXPECT_EQ(caller.interrupt().error, EINTR);
  ASSERT_EQ(::pthread_join(server, nullptr), 0);
  EXPECT_EQ(handled.times, 1);
  EXPECT_EQ(handled.ends, 1) << "that of the thread itself";
}

TEST(DoorCancelServer, AThreadWhoseAnswerFailedCanStillBeCancelled) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  const Shared<Progress> progress;
  ::door_server_create(make_cancellable);
  int error = 0;
  auto procedure = [&](char* data, size_t size, door_desc_t*, uint_t) {
    if (size > 0) ::door_return(data, size, nullptr, 0);
    door_desc_t descriptor = pass(0);
    error = ERROR_OF(::door_return(nullptr, 0, &descriptor, 1));  // no room for it
    const Witness witness(progress->cancelled);
    progress->entered.happens();
    progress->go.await();
  };
  const int door = make_door(procedure);
  Child child([&] {
    EXPECT_EQ(call(door, "x").data, "x");
    // What the library still closes leaves room for some; they stay, until there is none.
    const FewDescriptors none;
    for (int i = 0; i < 100; ++i) call(door);
  });
  ASSERT_TRUE(progress->entered.wait());
  EXPECT_EQ(error, EMFILE);
  child.kill();
  EXPECT_TRUE(progress->cancelled.wait());
}

TEST(DoorCancelServer, AThreadIsNeverCancelledForAClientItNoLongerServes) {
  // Some clients are interrupted just when they are answered; others call on and on, and no
  // thread may be taken from under them.
  ::door_server_create(make_cancellable);
  auto procedure = [&](char* data, size_t size, door_desc_t*, uint_t) {
    // Work with cancellation points in it, so that a cancellation that strays is noticed.
    for (int i = 0; i < 20; ++i) ::pthread_testcancel();
    ::door_return(data, size, nullptr, 0);
  };
  const int door = make_door(procedure);
  std::atomic<bool> over{false};
  std::atomic<int> interrupted{0};
  std::atomic<int> answered{0};
  ::signal(SIGUSR1, [](int) {});
  auto fickle = [&] {
    while (!over) {
      const int error = error_of(door, "fickle");
      if (error == 0) {
        ++answered;
      } else {
        EXPECT_TRUE(error == EINTR || error == EAGAIN) << error;
        ++interrupted;
      }
    }
  };
  std::thread first(fickle);
  std::thread second(fickle);
  const std::int64_t end = now_ns() + 1'500'000'000;
  std::thread disturber([&] {
    while (!over) {
      ::pthread_kill(first.native_handle(), SIGUSR1);
      ::pthread_kill(second.native_handle(), SIGUSR1);
      std::this_thread::sleep_for(30us);
    }
  });
  int steady = 0;
  while (now_ns() < end || steady <= 100 || answered == 0 || interrupted == 0) {
    ASSERT_EQ(call(door, "steady").error, 0) << "after " << steady << " calls";
    ++steady;
  }
  over = true;
  first.join();
  second.join();
  disturber.join();
  EXPECT_GT(steady, 100);
  EXPECT_GT(answered, 0);
  EXPECT_GT(interrupted, 0);
}

// ---- the answer that nobody waits for ----

TEST(DoorAbandoned, TheThreadParksAndItsReleasedDescriptorsAreClosed) {
  const Shared<Progress> progress;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  std::atomic<pid_t> thread{0};
  auto procedure = [&](char* data, size_t size, door_desc_t*, uint_t) {
    if (std::string_view(data, size) == "wait") {
      thread = ::gettid();
      progress->entered.happens();
      progress->go.await();
      door_desc_t end = pass(ends[1], DOOR_DESCRIPTOR | DOOR_RELEASE);
      ::door_return(data, size, &end, 1);
      progress->passed.happens();  // must not come back
    }
    ::door_return(data, size, nullptr, 0);
  };
  const int door = make_door(procedure, DOOR_NO_CANCEL);
  {
    Caller caller(door, "wait");
    ASSERT_TRUE(progress->entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
  }
  progress->go.happens();
  pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&closed, 1, 10'000), 1) << "the descriptor is still open";
  wait_for_silence(progress->passed);
  EXPECT_EQ(call(door, "next").data, "next");
  EXPECT_TRUE(std::filesystem::exists("/proc/self/task/" + std::to_string(thread)))
      << "the thread is gone";
}

TEST(DoorAbandoned, KeepsDescriptorsThatAreNotReleased) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ELSEWHERE);
  const Shared<Progress> progress;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd owned[2] = {UniqueFd(ends[0]), UniqueFd(ends[1])};
  auto procedure = [&](char* data, size_t size, door_desc_t*, uint_t) {
    if (size > 0) ::door_return(data, size, nullptr, 0);
    progress->entered.happens();
    progress->go.await();
    door_desc_t end = pass(ends[1]);
    progress->passed.happens();  // from here on it needs nothing of the test's
    ::door_return(data, size, &end, 1);
  };
  const int door = make_door(procedure, DOOR_NO_CANCEL);
  Caller caller(door);
  ASSERT_TRUE(progress->entered.wait());
  EXPECT_EQ(caller.interrupt().error, EINTR);
  progress->go.happens();
  ASSERT_TRUE(progress->passed.wait());
  std::this_thread::sleep_for(kGlance);
  EXPECT_GE(::fcntl(ends[1], F_GETFD), 0);
}

TEST(DoorAbandoned, CredentialsAreGone) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const Shared<Progress> progress;
  const Shared<std::atomic<int>> cred;
  const Shared<std::atomic<int>> ucred;
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    progress->entered.happens();
    progress->go.await();
    door_cred_t credentials;
    ucred_t* more = nullptr;
    *cred = ERROR_OF(::door_cred(&credentials));
    *ucred = ERROR_OF(::door_ucred(&more));
    progress->passed.happens();
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure, DOOR_NO_CANCEL);
  in_server_and_client([&] {
    Caller caller(door);
    ASSERT_TRUE(progress->entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
    progress->go.happens();
    ASSERT_TRUE(progress->passed.wait());
    EXPECT_EQ(*cred, EINVAL);
    EXPECT_EQ(*ucred, EINVAL);
  });
}

}  // namespace
}  // namespace farcall::door::test
