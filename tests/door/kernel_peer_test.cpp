// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a door of the kernel, and of those who use it, when one side dies, forks, has no
// room or loses its descriptors. For the emulated machine, where the module is: see
// kernel/vm/doors.sh.
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <sys/syscall.h>

#include <mutex>
#include <random>
#include <thread>

#include "door/attached.hpp"
#include "door/engines.hpp"
#include "process/process.hpp"

namespace farcall::door::test {
namespace {

constexpr int kRounds = 60;

// Does what the request says.
struct Servant {
  Answer operator()(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
    const std::string wish(data, size);
    if (wish == "count") {
      answer_number(open_descriptors());
    } else if (wish == "lose all") {
      ::syscall(SYS_close_range, 3U, ~0U, 0U);
      ::door_return(nullptr, 0, nullptr, 0);
    } else if (wish == "die") {
      ::kill(::getpid(), SIGKILL);
    } else if (wish == "fork") {
      in_child([] {
        // Its parent's doors are none of its own, and its own are none of its parent's.
        const int door = ::door_create(echo, nullptr, 0);
        EXPECT_EQ(call(door, "mine").data, "mine");
      });
    }
    std::vector<door_desc_t> back(descriptors, descriptors + count);
    for (door_desc_t& descriptor : back) descriptor.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
    return Answer(std::move(back), wish);
  }
};

int make_servant(uint_t attributes = 0) {
  choose("kernel");
  static Servant servant;
  return make_door(servant, attributes);
}

void close_all(const Reply& reply) {
  for (const door_desc_t& descriptor : reply.descriptors) ::close(fd_of(descriptor));
}
// Calls until a call fails, with which errno it does.
int call_until_failure(int door, unsigned seed) {
  std::minstd_rand random(seed + 1);
  for (;;) {
    const std::string request(1 + random() % (random() % 8 == 0 ? 100'000 : 200), 'x');
    const std::vector<door_desc_t> descriptors(random() % 4, pass(0));
    const Reply reply = call(door, request, descriptors);
    close_all(reply);
    if (reply.error != 0) return reply.error;
    if (reply.data != request || reply.descriptors.size() != descriptors.size()) return ENOMSG;
  }
}

TEST(DoorOfTheKernel, KeepsNothingOfClientsThatDieInCalls) {
  const ScopedServer server([] { return make_servant(DOOR_NO_CANCEL); });
  const auto before = call(server.door(), "count").number<std::size_t>();
  std::minstd_rand random(1);
  for (int round = 0; round < kRounds; ++round) {
    Child client([&] {
      ADD_FAILURE() << std::strerror(
          call_until_failure(server.door(), static_cast<unsigned>(round)));
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    client.kill();
    ASSERT_EQ(call(server.door(), "alive").data, "alive");
  }
  EXPECT_TRUE(
      eventually([&] { return call(server.door(), "count").number<std::size_t>() <= before; }));
}

// Threads that wait for calls, and are cancelled there.
struct CancelledThreads {
  std::mutex lock;
  std::vector<pthread_t> waiting;  // protected by lock
  std::atomic<bool> over{false};
};

// Whatever comes to a thread at the moment at which it is cancelled goes with it.
TEST(DoorOfTheKernel, KeepsNothingOfCallsThatFindTheirThreadCancelled) {
  static CancelledThreads& threads = lasting<CancelledThreads>();
  static auto start = [](door_info_t*) {
    std::thread([] {
      {
        const std::lock_guard guard(threads.lock);
        threads.waiting.push_back(::pthread_self());
      }
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
  };
  static auto cancel_some = [] {
    for (int i = 0; i < 300; ++i) {
      std::this_thread::sleep_for(1ms);
      const std::lock_guard guard(threads.lock);
      if (threads.waiting.empty()) continue;
      ::pthread_cancel(threads.waiting.front());
      threads.waiting.erase(threads.waiting.begin());
      start(nullptr);
    }
    threads.over = true;
  };
  struct Procedure {
    Answer operator()(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
      const std::string_view wish(data, size);
      if (wish == "over") return threads.over ? "yes" : "no";
      if (wish == "begin") std::thread(cancel_some).detach();
      return Servant()(data, size, descriptors, count);
    }
  };
  const ScopedServer server([] {
    choose("kernel");
    ::door_server_create(start);
    static Procedure procedure;
    return make_door(procedure);
  });
  const auto before = call(server.door(), "count").number<std::size_t>();
  ASSERT_EQ(call(server.door(), "begin").data, "begin");
  while (call(server.door(), "over").data != "yes") {
    const Reply reply = call(server.door(), "x", std::vector<door_desc_t>(3, pass(0)));
    ASSERT_TRUE(reply.error == 0 || reply.error == EINTR) << std::strerror(reply.error);
    close_all(reply);
  }
  EXPECT_TRUE(
      eventually([&] { return call(server.door(), "count").number<std::size_t>() <= before; }));
}

// Such a thread is cancelled, and others are made.
TEST(DoorOfTheKernel, ServesOnWhereThreadsAreCancelled) {
  const ScopedServer server([] { return make_servant(); });
  std::minstd_rand random(2);
  for (int round = 0; round < kRounds; ++round) {
    Child client([&] {
      ADD_FAILURE() << std::strerror(
          call_until_failure(server.door(), static_cast<unsigned>(round)));
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    client.kill();
    ASSERT_EQ(call(server.door(), "alive").data, "alive");
  }
}

TEST(DoorOfTheKernel, TellsEveryClientOfTheServersDeath) {
  std::minstd_rand random(3);
  for (int round = 0; round < kRounds; ++round) {
    ScopedServer server([] { return make_servant(); });
    std::array<std::unique_ptr<Caller>, 3> callers;
    for (auto& caller : callers)
      caller = std::make_unique<Caller>([&server, round] {
        Reply reply;
        reply.error = call_until_failure(server.door(), static_cast<unsigned>(round));
        return reply;
      });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    server.kill();
    for (auto& caller : callers) {
      const int error = caller->reply().error;
      EXPECT_TRUE(error == EINTR || error == EBADF) << std::strerror(error);
    }
    EXPECT_EQ(error_of(server.door()), EBADF);
  }
}

TEST(DoorOfTheKernel, IsNotItsChildrens) {
  const ScopedServer server([] {
    const int door = make_servant();
    EXPECT_EQ(call(door, "x").data, "x");  // over the library's descriptors of this process
    in_child([&] {
      EXPECT_EQ(info_of(door).di_attributes & DOOR_LOCAL, 0U);
      EXPECT_EQ(ERROR_OF(::door_revoke(door)), EPERM);
      EXPECT_EQ(call(door, "from the child").data, "from the child");
    });
    return door;
  });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(call(server.door(), "fork").data, "fork");
}

TEST(DoorOfTheKernel, RevokedDuringCallsLetsThoseEndThatAreServed) {
  for (int round = 0; round < kRounds; ++round) {
    choose("kernel");
    const int door = make_servant(DOOR_PRIVATE);
    ASSERT_GE(door, 0) << std::strerror(errno);
    std::array<std::unique_ptr<Caller>, 3> callers;
    const UniqueFd copy(::dup(door));
    for (auto& caller : callers)
      caller = std::make_unique<Caller>([&copy, round] {
        Reply reply;
        reply.error = call_until_failure(copy.get(), static_cast<unsigned>(round));
        return reply;
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
    EXPECT_EQ(::door_revoke(door), 0);
    for (auto& caller : callers) EXPECT_EQ(caller->reply().error, EBADF);
  }
}

TEST(DoorOfTheKernel, FailsOnlyTheCallOfAClientWithAFullTable) {
  const ScopedServer server([] { return make_servant(); });
  const auto before = call(server.door(), "count").number<std::size_t>();
  {
    const FewDescriptors few(3);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(error_of(server.door(), "x", std::vector<door_desc_t>(4, pass(0))), EMFILE);
      const Reply reply = call(server.door(), "x", std::vector<door_desc_t>(3, pass(0)));
      EXPECT_EQ(reply.descriptors.size(), 3U) << "what was refused has left descriptors";
      close_all(reply);
    }
  }
  EXPECT_TRUE(
      eventually([&] { return call(server.door(), "count").number<std::size_t>() <= before; }));
}

TEST(DoorOfTheKernel, GivesEoverflowWhereTheClientHasNoRoomForAResult) {
  static constexpr std::size_t kLong = std::size_t{8} << 20;
  struct Long {
    Answer operator()(char*, size_t, door_desc_t*, uint_t) { return std::string(kLong, 'r'); }
  };
  const ScopedServer server([] {
    choose("kernel");
    static Long procedure;
    return make_door(procedure);
  });
  in_child([&] {
    EXPECT_EQ(call(server.door()).data.size(), kLong);
    // Pages of address space, those that are taken first.
    std::size_t taken = 0;
    std::ifstream("/proc/self/statm") >> taken;
    const std::size_t bytes = taken * static_cast<std::size_t>(::getpagesize()) + kLong / 2;
    const rlimit few{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &few), 0);
    EXPECT_EQ(error_of(server.door()), EOVERFLOW);
  });
  EXPECT_EQ(call(server.door()).data.size(), kLong) << "the server noticed nothing";
}

// A program that closes all that it has knows nothing of what the library has.
TEST(DoorOfTheKernel, EndsWithThePoolThatItsServerHasClosed) {
  const ScopedServer server([] { return make_servant(); });
  const int error = error_of(server.door(), "lose all");
  EXPECT_TRUE(error == 0 || error == EINTR || error == EBADF) << std::strerror(error);
  EXPECT_TRUE(eventually([&] { return error_of(server.door(), "x") == EBADF; }));
}

TEST(DoorOfTheKernel, IsFoundByPathsOfWhoHasLostTheDevice) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const ScopedServer server([&] {
    const int door = make_servant();
    EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    return door;
  });
  in_child([&] {
    const door_id_t id = id_of(server.door());
    EXPECT_TRUE(opens_as(path, id));
    ::syscall(SYS_close_range, 3U, ~0U, 0U);
    EXPECT_TRUE(opens_as(path, id));
    // Now with something else in its place.
    ::syscall(SYS_close_range, 3U, ~0U, 0U);
    for (int i = 0; i < 50; ++i) ::dup(0);
    EXPECT_TRUE(opens_as(path, id));
  });
}

// It has its parent's memory, and descriptors of its own.
TEST(DoorOfTheKernel, IsFoundByAChildOfVforkThatLeavesItsParentNothing) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const ScopedServer server([&] {
    const int door = make_servant();
    EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    return door;
  });
  in_child([&] {
    const pid_t child = ::vfork();
    if (child == 0) {
      struct stat status {};
      ::_exit(::stat(path.c_str(), &status) == 0 && S_ISDOOR(status.st_mode) ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    // No number is taken for one of the library's that no child is to have.
    std::vector<int> mine(20);
    for (int& fd : mine) fd = ::dup(0);
    in_child([&] {
      for (const int fd : mine) EXPECT_GE(::fcntl(fd, F_GETFD), 0);
    });
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
  });
}

}  // namespace
}  // namespace farcall::door::test
