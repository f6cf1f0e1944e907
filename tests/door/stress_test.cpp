// SPDX-License-Identifier: Apache-2.0
//
// Many threads, random delays, and doors that come and go under them. What a call may end with is
// known at each moment; what it brings is checked. FARCALL_STRESS_SECONDS sets for how long.
#include <gtest/gtest.h>

#include "door/scoped_server.hpp"
#include "harness/killer.hpp"
#include "harness/sandbox.hpp"

namespace farcall::door::test {
namespace {

std::int64_t stress_ns() {
  return setting("FARCALL_STRESS_SECONDS", 2) * std::int64_t{1'000'000'000} * (kSlow > 1 ? 2 : 1);
}

// Sends back what came, at random after a while.
Answer send_back(const char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  static thread_local std::minstd_rand random(static_cast<unsigned>(::gettid()));
  if (random() % 64 == 0) pause_up_to(2000, random);
  std::vector<door_desc_t> back(descriptors, descriptors + count);
  for (door_desc_t& descriptor : back) descriptor.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
  return Answer(std::move(back), {data, size});
}

// A call that checks its reply. Returns the errno.
int checked_call(int door, std::minstd_rand& random) {
  const std::size_t size = random() % 16 == 0 ? random() % 200'000 : random() % 400;
  const std::string request(size, static_cast<char>('a' + random() % 26));
  const std::vector<door_desc_t> descriptors(random() % 16 == 0 ? random() % 4 : 0, pass(0));
  const Reply reply = call(door, request, descriptors);
  for (const door_desc_t& descriptor : reply.descriptors) ::close(fd_of(descriptor));
  if (reply.error != 0) return reply.error;
  EXPECT_EQ(reply.data, request);
  EXPECT_EQ(reply.descriptors.size(), descriptors.size());
  return 0;
}

// Runs `body` in so many threads, each with random numbers of its own.
template <class Body>
class Crowd {
 public:
  Crowd(int count, Body body) : body_(std::move(body)) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this, i] {
        std::minstd_rand random(static_cast<unsigned>(i) + 1);
        while (!over_) body_(random);
      });
  }
  ~Crowd() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  Body body_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

TEST(DoorStress, ManyThreadsAgainstOneDoor) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    std::atomic<int> calls{0};
    {
      const Crowd crowd(12, [&](std::minstd_rand& random) {
        EXPECT_EQ(checked_call(door, random), 0);
        ++calls;
        if (random() % 32 == 0) pause_up_to(1000, random);
      });
      std::this_thread::sleep_for(std::chrono::nanoseconds(stress_ns()));
      (void)eventually([&] { return calls > 100; });  // beside others it may take longer
    }
    EXPECT_GT(calls, 100);
  });
}

TEST(DoorStress, ManyProcessesAgainstOneDoor) {
  // Not on the stack: its next use comes after the last call, but not as ThreadSanitizer sees it.
  static auto procedure = send_back;
  const int door = make_door(procedure);
  std::vector<std::unique_ptr<Child>> clients;
  // They begin together: a sanitizer's allocator may be locked for good in a process that is forked
  // from one whose threads serve.
  const Shared<std::atomic<bool>> begin;
  for (unsigned i = 0; i < 6; ++i)
    clients.push_back(std::make_unique<Child>([&] {
      ASSERT_TRUE(eventually([&] { return begin->load(); }));
      std::minstd_rand random(i + 1);
      const std::int64_t end = now_ns() + stress_ns();
      while (now_ns() < end) {
        ASSERT_EQ(checked_call(door, random), 0);
        if (random() % 32 == 0) pause_up_to(1000, random);
      }
    }));
  *begin = true;
  for (auto& client : clients) EXPECT_EQ(client->join(60s), 0);
}

// Threads that nobody needs any more do not end: so there are to be no more than ever serve at
// once, and as many as can look for others meanwhile.
TEST(DoorStress, AServerHasNoMoreThreadsThanItNeeds) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  constexpr int kClients = 2;
  static std::atomic<int> asked_for{0};
  static door_server_func_t* const create = ::door_server_create([](door_info_t* info) {
    ++asked_for;
    create(info);
  });
  // Without a pause: both clients keep the threads busy that there are.
  static auto procedure = [](const char* data, size_t size, door_desc_t*, uint_t) {
    return Answer({data, size});
  };
  const int door = make_door(procedure);
  std::vector<std::unique_ptr<Child>> clients;
  const Shared<std::atomic<bool>> begin;
  for (unsigned i = 0; i < kClients; ++i)
    clients.push_back(std::make_unique<Child>([&] {
      ASSERT_TRUE(eventually([&] { return begin->load(); }));
      std::minstd_rand random(i + 1);
      const std::int64_t end = now_ns() + 2 * stress_ns();
      while (now_ns() < end) {
        const std::string request(random() % (random() % 16 == 0 ? 200'000 : 300), 'x');
        ASSERT_EQ(error_of(door, request), 0);
      }
    }));
  *begin = true;
  for (auto& client : clients) EXPECT_EQ(client->join(60s), 0);
  // One that is long in coming is asked for once more.
  constexpr int kLongInComing = 4;
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_LE(asked_for, kClients + processors + kLongInComing);
  ::door_server_create(create);
}

TEST(DoorStress, AProcessForksWhileItsThreadsCall) {
  FARCALL_SKIP_UNDER_ASAN("leaves its allocator locked in the child if another thread allocates");
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  auto procedure = send_back;
  const int door = make_door(procedure);
  in_server_and_client([&] {
    const Crowd crowd(4,
                      [&](std::minstd_rand& random) { EXPECT_EQ(checked_call(door, random), 0); });
    const std::int64_t end = now_ns() + stress_ns();
    int forks = 0;
    while (now_ns() < end || forks <= 1) {
      in_child([&] {
        std::minstd_rand random(static_cast<unsigned>(::getpid()));
        for (int i = 0; i < 10; ++i) EXPECT_EQ(checked_call(door, random), 0);
      });
      ++forks;
    }
    EXPECT_GT(forks, 1);
  });
}

TEST(DoorStress, SignalsAndCancellationsDisturbOnlyTheirTargets) {
  FARCALL_SKIP_UNDER_TSAN("overlooks what a thread locks that was cancelled in the C library");
  auto procedure = send_back;
  const int door = make_door(procedure, DOOR_NO_CANCEL);
  ::signal(SIGUSR1, [](int) {});
  std::atomic<int> interrupted{0};
  {
    const Crowd steady(3,
                       [&](std::minstd_rand& random) { EXPECT_EQ(checked_call(door, random), 0); });
    std::minstd_rand random(5);
    const std::int64_t end = now_ns() + stress_ns();
    while (now_ns() < end) {
      std::thread target([&] {
        for (int i = 0; i < 200; ++i) {
          const std::string request(100, 'x');
          const int error = error_of(door, request);
          EXPECT_TRUE(error == 0 || error == EINTR || error == EAGAIN) << std::strerror(error);
          if (error != 0) ++interrupted;
        }
        for (;;) call(door, "until it is cancelled");
      });
      for (int i = 0; i < 10; ++i) {
        pause_up_to(300, random);
        ::pthread_kill(target.native_handle(), SIGUSR1);
      }
      ::pthread_cancel(target.native_handle());
      target.join();
    }
  }
  EXPECT_GT(interrupted, 0);
}

TEST(DoorStress, UnreferencedCallsAreCountedRight) {
  struct Unref {
    std::atomic<int> count{0};
    void operator()(char* data, size_t size, door_desc_t*, uint_t) {
      if (static_cast<void*>(data) == DOOR_UNREF_DATA) {
        ++count;
        ::door_return(nullptr, 0, nullptr, 0);
      }
      ::door_return(data, size, nullptr, 0);
    }
  };
  auto& unref = lasting<Unref>();
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  // Never one reference only: a duplicate is kept all the time.
  const int kept = ::dup(door);
  {
    const Crowd crowd(4, [&](std::minstd_rand& random) {
      const int mine = ::dup(door);
      if (random() % 2 == 0) {
        EXPECT_EQ(call(mine, "x").data, "x");
      }
      ::close(mine);
    });
    const std::int64_t end = now_ns() + stress_ns() / 2;
    while (now_ns() < end) in_child([&] { EXPECT_EQ(call(door, "x").data, "x"); });
  }
  std::this_thread::sleep_for(kGlance);
  EXPECT_EQ(unref.count, 0);
  ::close(kept);
  EXPECT_TRUE(eventually([&] { return unref.count == 1; }));
}

TEST(DoorStress, PathsAreAttachedAndDetachedUnderTheirOpeners) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  auto procedure = send_back;
  const int door = make_door(procedure);
  std::atomic<int> doors{0};
  {
    const Crowd crowd(3, [&](std::minstd_rand& random) {
      const UniqueFd opened(::open(path.c_str(), O_RDWR));
      ASSERT_GE(opened.get(), 0) << std::strerror(errno);
      const int error = checked_call(opened.get(), random);
      EXPECT_TRUE(error == 0 || error == EBADF) << std::strerror(error);
      if (error == 0) ++doors;
    });
    std::minstd_rand random(3);
    const std::int64_t end = now_ns() + stress_ns() / 2;
    while (now_ns() < end || doors == 0) {
      ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
      pause_up_to(1000, random);
      ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
    }
  }
  EXPECT_GT(doors, 0);
}

TEST(DoorStress, ThreadsOfAPrivatePoolBindAndUnbind) {
  ::door_server_create([](door_info_t*) {});
  static auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    return Answer(std::string(data, size));
  };
  static std::vector<int> doors;
  for (int i = 0; i < 3; ++i) doors.push_back(make_door(procedure, DOOR_PRIVATE));
  // Threads that serve one door after another.
  static auto change = [](char* data, size_t size, door_desc_t*, uint_t) {
    static std::atomic<unsigned> turn{0};
    EXPECT_EQ(::door_bind(doors[turn++ % doors.size()]), 0);
    return Answer(std::string(data, size));
  };
  const int changing = make_door(change, DOOR_PRIVATE);
  doors.push_back(changing);
  for (const int door : doors)
    for (int i = 0; i < 2; ++i)
      std::thread([door] {
        EXPECT_EQ(::door_bind(door), 0);
        ::door_return(nullptr, 0, nullptr, 0);
      }).detach();
  std::atomic<int> calls{0};
  {
    const Crowd crowd(6, [&](std::minstd_rand& random) {
      const int door = doors[random() % 3];
      EXPECT_EQ(call(door, "x").data, "x");
      ++calls;
    });
    for (int i = 0; i < 4; ++i) {
      Caller caller(changing, "next");
      const Reply reply = caller.interrupt_after(200ms);
      EXPECT_TRUE(reply.error == 0 || reply.error == EAGAIN || reply.error == EINTR);
    }
    (void)eventually([&] { return calls > 10; });
  }
  EXPECT_GT(calls, 10);
}

TEST(DoorStress, DoorsComeAndGoUnderTheirCallers) {
  auto procedure = send_back;
  // Callers use whatever door there is; each is revoked or closed while they do.
  std::mutex lock;  // protects `current`
  int current = make_door(procedure);
  std::atomic<int> answered{0};
  std::atomic<int> refused{0};
  {
    const Crowd crowd(8, [&](std::minstd_rand& random) {
      int mine = -1;
      {
        const std::lock_guard guard(lock);
        mine = ::dup(current);
      }
      for (int i = 0; i < 20; ++i) {
        const int error = checked_call(mine, random);
        EXPECT_TRUE(error == 0 || error == EBADF) << std::strerror(error);
        ++(error == 0 ? answered : refused);
      }
      ::close(mine);
    });
    std::minstd_rand random(99);
    const std::int64_t end = now_ns() + stress_ns();
    while (now_ns() < end || answered <= 100 || refused == 0) {
      pause_up_to(3000, random);
      const std::lock_guard guard(lock);
      if (random() % 2 == 0) {
        ASSERT_EQ(::door_revoke(current), 0);
      } else {
        ::close(current);
      }
      current = make_door(procedure);
      ASSERT_GE(current, 0) << std::strerror(errno);
    }
  }
  EXPECT_GT(answered, 100);
  EXPECT_GT(refused, 0);
  ::door_revoke(current);
}

}  // namespace
}  // namespace farcall::door::test
