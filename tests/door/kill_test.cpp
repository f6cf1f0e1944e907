// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at random moments, while calls of random sizes run, with and without descriptors: who
// survives gets the outcome that the contract names, soon, and nothing is left.
// FARCALL_KILL_ROUNDS sets the number of rounds. Each test needs a process of its own: what serves
// there stays.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>

#include "channel/sandbox.hpp"
#include "door/scoped_server.hpp"
#include "harness/killer.hpp"
#include "harness/sandbox.hpp"
#include "harness/usage.hpp"

namespace farcall::door::test {
namespace {

int rounds() { return setting("FARCALL_KILL_ROUNDS", kSlow > 1 ? 60 : 2000); }
constexpr unsigned kBusy = 3000 * (kSlow > 1 ? 4 : 1);  // us from birth to death

// What the procedure has begun with: the numbers of calls.
struct Seen {
  std::atomic<std::uint64_t> begun{0};
};

// A request: its number, then a pattern. The reply is the same, with the same descriptors.
std::string request_of(std::uint64_t number, std::minstd_rand& random) {
  std::size_t size = 8 + random() % 300;
  if (random() % 8 == 0) size = 8 + random() % 200'000;
  std::string text(size, static_cast<char>('a' + number % 26));
  std::memcpy(text.data(), &number, sizeof number);
  for (std::size_t i = 8; i < size; i += 509) text[i] = static_cast<char>(random());
  return text;
}

struct SendBack {
  Seen* seen = nullptr;
  Answer operator()(const char* data, size_t size, door_desc_t* descriptors, uint_t count) const {
    if (size >= sizeof(std::uint64_t) && seen != nullptr) {
      std::uint64_t number = 0;
      std::memcpy(&number, data, sizeof number);
      seen->begun = number;
    }
    std::vector<door_desc_t> back(descriptors, descriptors + count);
    for (door_desc_t& descriptor : back) descriptor.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
    return Answer(std::move(back), {data, size});
  }
};

// Calls until a call fails. What it failed with, and its number.
struct Failure {
  int error = 0;
  std::uint64_t number = 0;
};
Failure call_until_failure(int door, unsigned seed, bool with_descriptors) {
  std::minstd_rand random(seed + 1);
  for (std::uint64_t number = 1;; ++number) {
    const std::string request = request_of(number, random);
    std::vector<door_desc_t> descriptors;
    if (with_descriptors) descriptors.assign(random() % 4, pass(0));
    const Reply reply = call(door, request, descriptors);
    for (const door_desc_t& descriptor : reply.descriptors) ::close(fd_of(descriptor));
    if (reply.error != 0) return {reply.error, number};
    if (reply.data != request || reply.descriptors.size() != descriptors.size())
      return {ENOMSG, number};
  }
}

void servers_outlive_clients(bool with_descriptors) {
  give_up_after(250s);
  // Threads that serve outlive the test.
  static const auto* const seen_by_all = new Shared<Seen>;
  const auto& seen = *seen_by_all;
  auto& send_back = *new SendBack{seen.get()};
  const int door = make_door(send_back);
  std::minstd_rand random(1);
  auto round = [&](int i) {
    Child client([&] {
      const Failure failure = call_until_failure(door, static_cast<unsigned>(i), with_descriptors);
      ADD_FAILURE() << "call " << failure.number << ": " << std::strerror(failure.error);
    });
    pause_up_to(kBusy, random);
    ::kill(client.pid(), SIGKILL);
    const int status = client.join();
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << std::hex << status;
    const std::string request = request_of(static_cast<std::uint64_t>(i), random);
    const std::int64_t before = now_ns();
    ASSERT_EQ(call(door, request).data, request) << "round " << i;
    ASSERT_LT(now_ns() - before, 5'000'000'000) << "round " << i;
  };
  for (int i = 0; i < 20; ++i) round(i);
  const Usage before;
  for (int i = 20; i < rounds(); ++i) round(i);
  expect_no_growth(before);
}

TEST(DoorKill, ServersOutliveTheirClients) { servers_outlive_clients(false); }

TEST(DoorKill, ServersOutliveTheirClientsThatSendDescriptors) { servers_outlive_clients(true); }

TEST(DoorKill, ClientsLearnOfTheServersDeath) {
  give_up_after(250s);
  Latencies latencies;
  std::optional<Usage> before;
  int interrupted = 0;
  for (int i = 0; i < rounds(); ++i) {
    const Shared<Seen> seen;
    SendBack send_back{seen.get()};
    ScopedServer server([&] { return make_door(send_back); });
    ASSERT_GE(server.door(), 0);
    Killer killer(server.pid(), kBusy, static_cast<unsigned>(i));
    const Failure failure = call_until_failure(server.door(), static_cast<unsigned>(i), i % 2 == 1);
    const std::int64_t noticed = now_ns();
    latencies.add(killer.late(noticed));
    // Dispatched or not makes the difference.
    ASSERT_TRUE(failure.error == EINTR || failure.error == EBADF)
        << "round " << i << ": " << std::strerror(failure.error);
    if (failure.error == EBADF) {
      ASSERT_LT(seen->begun, failure.number) << "the server had begun with it";
    } else {
      ++interrupted;
    }
    ASSERT_EQ(error_of(server.door()), EBADF);
    ASSERT_EQ(info_of(server.door()).di_target, -1);
    if (i == 20) before.emplace();
  }
  latencies.expect_prompt("from the server's death to the client's error");
  EXPECT_GT(interrupted, 0);
  if (before) expect_no_growth(*before);
}

// Children of the server's that have come by a system call of its own hold copies of its sockets,
// which do not tell of its death then, and never use the library, which would close them.
pid_t raw_child() {
  const auto child =
      static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (child != 0) return child;
  ::alarm(100);
  for (;;) ::syscall(SYS_pause);
}

struct RawParent {
  Event entered;
  std::atomic<pid_t> child{0};
};
// Whose child outlives it until the end of a test.
struct EndOfChild {
  const Shared<RawParent>& parent;
  ~EndOfChild() {
    if (parent->child > 0) ::kill(parent->child, SIGKILL);
  }
};

TEST(DoorKill, AClientLearnsOfTheDeathOfAServerWhoseSocketsAChildHolds) {
  if (!kernel_sends_pidfds()) GTEST_SKIP() << "the kernel sends no pidfds (Linux 6.5)";
  give_up_after(100s);
  const Shared<RawParent> seen;
  const EndOfChild end{seen};
  auto hold = [&](char* data, size_t size, door_desc_t*, uint_t) {
    if (std::string_view(data, size) == "hold") {
      seen->child = raw_child();
      seen->entered.happens();
      for (;;) ::pause();
    }
    ::door_return(data, size, nullptr, 0);
  };
  ScopedServer server([&] { return make_door(hold); });
  ASSERT_EQ(call(server.door(), "x").data, "x");
  auto held = std::async(std::launch::async, [&] { return error_of(server.door(), "hold"); });
  ASSERT_TRUE(seen->entered.wait());
  server.kill();
  EXPECT_EQ(held.get(), EINTR);
  EXPECT_EQ(error_of(server.door()), EBADF);
  EXPECT_EQ(info_of(server.door()).di_target, -1);
  in_child([&] { EXPECT_EQ(error_of(server.door()), EBADF); });
}

TEST(DoorKill, SoDoesWhoWaitsToBeLetIn) {
  if (!kernel_sends_pidfds()) GTEST_SKIP() << "the kernel sends no pidfds (Linux 6.5)";
  give_up_after(100s);
  const Shared<RawParent> seen;
  const EndOfChild end{seen};
  auto fork_on = [&](char* data, size_t size, door_desc_t*, uint_t) {
    seen->child = raw_child();
    ::door_return(data, size, nullptr, 0);
  };
  ScopedServer server([&] { return make_door(fork_on); });
  ASSERT_EQ(call(server.door(), "x").data, "x");
  ASSERT_TRUE(stop_process(server.pid()));
  Child client([&] { EXPECT_EQ(error_of(server.door()), EBADF); });
  ASSERT_TRUE(eventually([&] { return sleeps_in_call(client.pid()); }));
  server.kill();
  client.join();
}

TEST(DoorKill, EveryThreadOfAClientLearnsOfTheServersDeath) {
  give_up_after(250s);
  Latencies latencies;
  for (int i = 0; i < rounds() / 10; ++i) {
    SendBack send_back;
    ScopedServer server([&] { return make_door(send_back); });
    std::vector<std::future<std::pair<int, std::int64_t>>> callers;
    for (unsigned thread = 0; thread < 5; ++thread)
      callers.push_back(std::async(std::launch::async, [&, thread] {
        const int error = call_until_failure(server.door(), thread, true).error;
        return std::pair(error, now_without_run_delay_ns());
      }));
    Killer killer(server.pid(), 2 * kBusy, static_cast<unsigned>(i));
    const std::int64_t killed = killer.join();
    for (auto& caller : callers) {
      const auto [error, noticed] = caller.get();
      EXPECT_TRUE(error == EINTR || error == EBADF) << std::strerror(error);
      latencies.add(noticed - killed);
    }
  }
  latencies.expect_prompt("from the server's death to each thread's error");
}

TEST(DoorKill, ServerThreadsLearnOfTheClientsDeath) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  give_up_after(250s);
  // Threads that can be cancelled say when they are.
  struct Work {
    Event begun;
    Event ended;
    std::atomic<std::int64_t> at{0};
  };
  static Work work;
  ::door_server_create([](door_info_t*) {
    std::thread([] {
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
  });
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    {
      struct Farewell {
        ~Farewell() {
          work.at = now_without_run_delay_ns();
          work.ended.happens();
        }
      } farewell;
      work.begun.happens();
      Event().await();
    }
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  Latencies latencies;
  for (int i = 0; i < rounds() / 5; ++i) {
    Child client([&] { call(door, "x"); });
    ASSERT_TRUE(work.begun.wait());
    Killer killer(client.pid(), 1000, static_cast<unsigned>(i));
    ASSERT_TRUE(work.ended.wait()) << "round " << i;
    latencies.add(killer.late(work.at));
  }
  latencies.expect_prompt("from the client's death to its server thread's cancellation");
}

// The C library's clone(2) has the child let go of what its parent had.
TEST(DoorKill, AServerThreadLearnsOfTheDeathOfAClientThatHasCloned) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  give_up_after(100s);
  const Shared<RawParent> seen;
  const EndOfChild end{seen};
  static Event ended;
  ::door_server_create([](door_info_t*) {
    std::thread([] {
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
  });
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    {
      struct Farewell {
        ~Farewell() { ended.happens(); }
      } farewell;
      seen->entered.happens();
      Event().await();
    }
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  const Shared<Event> cloned;
  Child client([&] {
    std::thread([&] { call(door, "x"); }).detach();
    ASSERT_TRUE(seen->entered.wait());
    static std::array<std::byte, 65'536> stack;
    const auto rest = [](void* event) {
      static_cast<Event*>(event)->happens();
      ::alarm(100);
      for (;;) ::pause();
      return 0;
    };
    seen->child = ::clone(rest, stack.data() + stack.size(), SIGCHLD, cloned.get());
    for (;;) ::pause();
  });
  ASSERT_TRUE(cloned->wait());
  client.kill();
  EXPECT_TRUE(ended.wait());
}

TEST(DoorKill, NobodyKeepsTheDescriptorsOfADeadSender) {
  give_up_after(250s);
  SendBack send_back;
  ScopedServer server([&] { return make_door(send_back); });
  for (int i = 0; i < rounds(); ++i) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    Child client([&] {
      std::minstd_rand random(static_cast<unsigned>(i) + 1);
      for (;;) {
        const Reply reply = call(server.door(), std::string(random() % 8 == 0 ? 100'000 : 50, 'x'),
                                 std::vector<door_desc_t>(1 + random() % 3, pass(ends[1])));
        for (const door_desc_t& descriptor : reply.descriptors) ::close(fd_of(descriptor));
      }
    });
    ::close(ends[1]);
    Killer killer(client.pid(), kBusy, static_cast<unsigned>(i));
    killer.join();
    client.join();
    pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&closed, 1, 5000 * kSlow), 1) << "round " << i << ": still open somewhere";
  }
  EXPECT_EQ(call(server.door(), "x").data, "x");
}

TEST(DoorKill, NobodyKeepsTheDescriptorsOfADeadServer) {
  give_up_after(250s);
  SendBack send_back;
  std::optional<Usage> before;
  for (int i = 0; i < rounds() / 2; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    ScopedServer server([&] { return make_door(send_back); });
    Killer killer(server.pid(), kBusy, static_cast<unsigned>(i));
    std::minstd_rand random(static_cast<unsigned>(i) + 1);
    int error = 0;
    while (error == 0) {
      const Reply reply = call(server.door(), std::string(random() % 8 == 0 ? 100'000 : 50, 'x'),
                               std::vector<door_desc_t>(1 + random() % 3, pass(ends[1])));
      error = reply.error;
      for (const door_desc_t& descriptor : reply.descriptors) ::close(fd_of(descriptor));
    }
    ::close(ends[1]);
    killer.join();
    server.kill();
    pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&closed, 1, 5000 * kSlow), 1) << "round " << i << ": still open somewhere";
    if (i == 20) before.emplace();
  }
  if (before) expect_no_growth(*before);
}

TEST(DoorKill, AttachedPathsOutliveTheirServers) {
  give_up_after(250s);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  for (int i = 0; i < rounds() / 5; ++i) {
    const Shared<Event> attached;
    Child server([&] {
      SendBack send_back;
      const int door = make_door(send_back);
      while (::fattach(door, path.c_str()) == 0) {
        attached->happens();
        std::this_thread::sleep_for(1ms);
        EXPECT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
      }
      ADD_FAILURE() << std::strerror(errno);
    });
    ASSERT_TRUE(attached->wait()) << "round " << i;
    std::minstd_rand random(static_cast<unsigned>(i) + 1);
    Killer killer(server.pid(), kBusy, static_cast<unsigned>(i));
    // Whatever happens meanwhile, the path opens, and is a door or none.
    std::int64_t longest = 0;
    const std::int64_t end = now_ns() + 4'000'000;
    do {
      const std::int64_t before = now_ns();
      const UniqueFd fd(::open(path.c_str(), O_RDONLY));
      longest = std::max(longest, now_ns() - before);
      ASSERT_GE(fd.get(), 0) << std::strerror(errno);
      const int error = error_of(fd.get(), "12345678");
      ASSERT_TRUE(error == 0 || error == EBADF || error == EINTR) << std::strerror(error);
    } while (now_ns() < end);
    killer.join();
    const int status = server.join();
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_LT(longest, std::int64_t{10'000'000'000} * (kSlow > 1 ? 2 : 1));
  }
}

TEST(DoorKill, NothingIsLeftOnTheMachine) {
  give_up_after(250s);
  if (kSlow > 1) GTEST_SKIP() << "sanitizers leave files of their own";
  using Namespace = farcall::channel::test::Sandbox;
  Child child([] {
    if (!Namespace::enter()) ::_exit(77);
    for (int i = 0; i < 50; ++i) {
      SendBack send_back;
      ScopedServer server([&] { return make_door(send_back); });
      Child client([&] { call_until_failure(server.door(), static_cast<unsigned>(i), true); });
      std::minstd_rand random(static_cast<unsigned>(i) + 1);
      pause_up_to(kBusy, random);
      if (i % 2 == 0) {
        client.kill();
      } else {
        server.kill();
      }
    }
    EXPECT_EQ(Namespace::leftovers(), "");
  });
  const int status = child.join(30s);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "this system permits no namespaces";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farcall::door::test
