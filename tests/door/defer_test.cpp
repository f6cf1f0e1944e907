// SPDX-License-Identifier: Apache-2.0
//
// door_defer(): calls that are answered later, by other threads than the one that took them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "door/scoped_server.hpp"
#include "farcall/doors.h"
#include "farcall/limits.h"

namespace farcall::door::test {
namespace {

// Deferred calls, until somebody answers them.
class Pile {
 public:
  void put(door_deferred_t* call) {
    const std::lock_guard guard(lock_);
    calls_.push_back(call);
    changed_.notify_all();
  }
  // The last of at least so many.
  door_deferred_t* take(std::size_t least = 1) {
    std::unique_lock guard(lock_);
    if (!changed_.wait_for(guard, kPatience, [&] { return calls_.size() >= least; })) {
      std::fprintf(stderr, "%zu deferred calls of %zu\n", calls_.size(), least);
      std::abort();
    }
    door_deferred_t* const call = calls_.back();
    calls_.pop_back();
    return call;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<door_deferred_t*> calls_;
};

void defer(void* cookie, char*, size_t, door_desc_t*, uint_t) {
  door_deferred_t* call = nullptr;
  if (::door_defer(&call) != 0) ::door_refuse(errno);
  static_cast<Pile*>(cookie)->put(call);
  ::door_return(nullptr, 0, nullptr, 0);
}

int answer_with_request(door_deferred_t* call) {
  return ::door_deferred_return(call, call->data_ptr, call->data_size, nullptr, 0);
}

// One thread serves all doors of the process, however long that takes.
void make_no_thread(door_info_t*) {}
void serve_by_one_thread() {
  ::door_server_create(make_no_thread);
  std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
}

std::string ask(int door, std::string request) {
  std::vector<char> room(64);
  door_arg_t arguments{.data_ptr = request.data(),
                       .data_size = request.size(),
                       .desc_ptr = nullptr,
                       .desc_num = 0,
                       .rbuf = room.data(),
                       .rsize = room.size()};
  if (::door_call(door, &arguments) != 0) return "!" + std::string(::strerrorname_np(errno));
  std::string reply(arguments.data_ptr, arguments.data_size);
  if (arguments.rbuf != room.data()) ::munmap(arguments.rbuf, arguments.rsize);
  return reply;
}

TEST(DoorDefer, OneThreadHasManyCallsInProgressAndTheLastIsAnsweredFirst) {
  constexpr int kClients = 8;
  const Shared<std::atomic<int>> answered;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    serve_by_one_thread();
    std::thread([&] {
      for (int left = kClients; left > 0; --left) {
        EXPECT_EQ(answer_with_request(pile.take(static_cast<std::size_t>(left))), 0);
        const int now = kClients - left + 1;
        EXPECT_TRUE(eventually([&] { return answered->load() == now; }));
      }
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      // Also one that does not fit beside the turn.
      const std::string request(i % 2 == 0 ? 5 : 100'000, static_cast<char>('a' + i));
      EXPECT_EQ(ask(server.door(), request), request);
      ++*answered;
    });
  for (std::thread& each : clients) each.join();
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, SessionsGoOnAfterIt) {
  constexpr int kCalls = 2000;
  const ScopedServer server([] {
    auto& pile = lasting<Pile>();
    for (int i = 0; i < 2; ++i)
      std::thread([&] {
        for (;;) EXPECT_EQ(answer_with_request(pile.take()), 0);
      }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&, i] {
      for (int k = 0; k < kCalls / kSlow; ++k) {
        const std::string request = std::to_string(i) + "/" + std::to_string(k);
        ASSERT_EQ(ask(server.door(), request), request);
      }
    });
  for (std::thread& each : clients) each.join();
}

TEST(DoorDefer, ItMayEndWithAnError) {
  ScopedServer server([] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      for (const int none : {0, -1, EHWPOISON + 1, 4095})
        EXPECT_EQ(ERROR_OF(::door_deferred_refuse(call, none)), EINVAL) << none;
      EXPECT_EQ(::door_deferred_refuse(call, EDOM), 0);
      EXPECT_EQ(::door_deferred_refuse(pile.take(), EHWPOISON), 0);
      EXPECT_EQ(answer_with_request(pile.take()), 0);
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  EXPECT_EQ(ask(server.door(), "x"), "!EDOM");
  EXPECT_EQ(ask(server.door(), "x"), "!EHWPOISON");
  EXPECT_EQ(ask(server.door(), "y"), "y");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, WhatCannotBeTheAnswerLeavesItWaiting) {
  ScopedServer server([] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      EXPECT_EQ(ERROR_OF(::door_deferred_return(call, reinterpret_cast<char*>(8), 5, nullptr, 0)),
                EFAULT);
      door_desc_t none{};
      none.d_attributes = DOOR_DESCRIPTOR;
      none.d_data.d_desc.d_descriptor = 9999;
      EXPECT_EQ(ERROR_OF(::door_deferred_return(call, nullptr, 0, &none, 1)), EINVAL);
      EXPECT_EQ(answer_with_request(call), 0);
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  EXPECT_EQ(ask(server.door(), "at last"), "at last");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, DescriptorsGoWithTheAnswer) {
  const Shared<Event> released;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_desc_t null{};
      null.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
      null.d_data.d_desc.d_descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(::door_deferred_return(pile.take(), nullptr, 0, &null, 1), 0);
      EXPECT_LT(::fcntl(null.d_data.d_desc.d_descriptor, F_GETFD), 0) << "released";
      released->happens();
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  std::array<char, 256> room{};
  door_arg_t arguments{};
  arguments.rbuf = room.data();
  arguments.rsize = room.size();
  ASSERT_EQ(::door_call(server.door(), &arguments), 0);
  ASSERT_EQ(arguments.desc_num, 1U);
  struct stat status {};
  EXPECT_EQ(::fstat(arguments.desc_ptr[0].d_data.d_desc.d_descriptor, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  ::close(arguments.desc_ptr[0].d_data.d_desc.d_descriptor);
  EXPECT_TRUE(released->wait());
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

void happens(void* event) { static_cast<Event*>(event)->happens(); }

TEST(DoorDefer, TheClientsDeathIsTold) {
  const Shared<Event> deferred;
  const Shared<Event> told;
  const Shared<Event> dead;
  const Shared<Event> told_late;
  const Shared<Event> over;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* call = pile.take();
      EXPECT_EQ(::door_deferred_watch(call, &happens, told.get()), 0);
      deferred->happens();
      EXPECT_TRUE(dead->wait());
      EXPECT_EQ(answer_with_request(call), 0) << "nobody cares any more";
      call = pile.take();
      deferred->happens();
      EXPECT_TRUE(dead->wait());
      // Where it has happened before, too.
      EXPECT_TRUE(eventually([&] {
        EXPECT_EQ(::door_deferred_watch(call, &happens, told_late.get()), 0);
        return told_late->wait(1ms);
      }));
      EXPECT_EQ(::door_deferred_refuse(call, EDOM), 0);
      over->happens();
      EXPECT_EQ(answer_with_request(pile.take()), 0);
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  for (const bool watched : {true, false}) {
    Child client([&] { ask(server.door(), "x"); });
    ASSERT_TRUE(deferred->wait());
    client.kill();
    EXPECT_TRUE(!watched || told->wait());
    dead->happens();
  }
  ASSERT_TRUE(over->wait());
  EXPECT_FALSE(told->wait(0ms)) << "once";
  EXPECT_EQ(ask(server.door(), "others"), "others");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, WhatIsAnsweredIsWatchedNoMore) {
  const Shared<Event> told;
  const Shared<Event> answered;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      EXPECT_EQ(::door_deferred_watch(call, &happens, told.get()), 0);
      EXPECT_EQ(answer_with_request(call), 0);
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  Child client([&] {
    EXPECT_EQ(ask(server.door(), "x"), "x");
    answered->happens();
    ::pause();
  });
  ASSERT_TRUE(answered->wait());
  client.kill();
  EXPECT_FALSE(told->wait(kGlance));
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, WhatIsWatchedIsWatchedNoMoreOnceThatIsTakenBack) {
  const Shared<Event> told;
  const Shared<Event> watched;
  const Shared<Event> dead;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      EXPECT_EQ(::door_deferred_watch(call, &happens, told.get()), 0);
      EXPECT_EQ(::door_deferred_watch(call, nullptr, nullptr), 0);
      watched->happens();
      EXPECT_TRUE(dead->wait());
      EXPECT_EQ(answer_with_request(call), 0) << "nobody cares any more";
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  Child client([&] { ask(server.door(), "x"); });
  ASSERT_TRUE(watched->wait());
  client.kill();
  EXPECT_FALSE(told->wait(kGlance));
  dead->happens();
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, WhoIsToldMayWatchTheSameCall) {
  static door_deferred_t* call = nullptr;
  const Shared<Event> watched;
  const Shared<Event> told;
  ScopedServer server([&] {
    auto& pile = lasting<Pile>();
    std::thread([&] {
      const auto gone = [](void* event) {
        EXPECT_EQ(::door_deferred_watch(call, nullptr, nullptr), 0);
        EXPECT_EQ(::door_deferred_watch(call, &happens, event), 0);
      };
      call = pile.take();
      EXPECT_EQ(::door_deferred_watch(call, gone, told.get()), 0);
      watched->happens();
      EXPECT_EQ(answer_with_request(pile.take()), 0);
      EXPECT_EQ(answer_with_request(call), 0) << "nobody cares any more";
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  Child client([&] { ask(server.door(), "x"); });
  ASSERT_TRUE(watched->wait());
  client.kill();
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(ask(server.door(), "others"), "others");
  EXPECT_FALSE(told->wait(0ms)) << "once";
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, NobodyWaitsForTheAnswerToANotice) {
  static Event told;
  static std::atomic<int> error{-1};
  const auto notice = [](void*, char* data, size_t, door_desc_t*, uint_t) {
    if (static_cast<void*>(data) == DOOR_UNREF_DATA) {
      door_deferred_t* call = nullptr;
      error = ERROR_OF(::door_defer(&call));
      told.happens();
    }
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = ::door_create(notice, nullptr, DOOR_UNREF);
  ::close(::dup(door));
  ASSERT_TRUE(told.wait());
  EXPECT_EQ(error, EINVAL);
}

TEST(DoorDefer, AClientThatIsStoppedKeepsNoThreadThatAnswers) {
  if (over_module()) GTEST_SKIP() << "there is none";  // the kernel passes descriptors on itself
  const Shared<Event> deferred;
  const Shared<Event> stopped;
  const Shared<Event> answered;
  ScopedServer server([&] {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.patience_ns = 60'000'000'000;  // beyond the test's own
    EXPECT_EQ(::door_limits_set(&limits), 0);
    auto& pile = lasting<Pile>();
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      deferred->happens();
      EXPECT_TRUE(stopped->wait());
      door_desc_t null{};
      null.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE;
      null.d_data.d_desc.d_descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(::door_deferred_return(call, nullptr, 0, &null, 1), 0);
      answered->happens();
    }).detach();
    return ::door_create(&defer, &pile, 0);
  });
  Child client([&] { ask(server.door(), "x"); });
  ASSERT_TRUE(deferred->wait());
  ASSERT_TRUE(stop_process(client.pid()));
  stopped->happens();
  EXPECT_TRUE(answered->wait());
  client.kill();
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, AChildOfTheServerCannotAnswer) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  ScopedServer server([] {
    auto& pile = lasting<Pile>();
    const int door = ::door_create(&defer, &pile, 0);
    std::thread([&] {
      door_deferred_t* const call = pile.take();
      Child child([&] {
        EXPECT_EQ(ERROR_OF(answer_with_request(call)), EINVAL);
        EXPECT_EQ(ERROR_OF(::door_deferred_refuse(call, EDOM)), EINVAL);
        EXPECT_EQ(ERROR_OF(::door_deferred_watch(call, &happens, nullptr)), EINVAL);
      });
      EXPECT_EQ(child.join(), 0);
      EXPECT_EQ(answer_with_request(call), 0);
    }).detach();
    return door;
  });
  EXPECT_EQ(ask(server.door(), "the parent"), "the parent");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, ARevokedDoorStillAnswers) {
  ScopedServer server([] {
    auto& pile = lasting<Pile>();
    const int door = ::door_create(&defer, &pile, DOOR_PRIVATE);
    const int own = ::dup(door);
    std::thread([&pile, own] {
      door_deferred_t* const call = pile.take();
      EXPECT_EQ(::door_revoke(own), 0);
      EXPECT_EQ(answer_with_request(call), 0);
    }).detach();
    std::thread([own] {
      EXPECT_EQ(::door_bind(own), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    return door;
  });
  EXPECT_EQ(ask(server.door(), "before"), "before");
  EXPECT_EQ(ask(server.door(), "after"), "!EBADF");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

TEST(DoorDefer, NothingElseCanBeDeferred) {
  door_deferred_t* call = nullptr;
  EXPECT_EQ(ERROR_OF(::door_defer(&call)), EINVAL) << "no call";
  EXPECT_EQ(ERROR_OF(::door_defer(nullptr)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_deferred_return(nullptr, nullptr, 0, nullptr, 0)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_deferred_refuse(nullptr, EDOM)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_deferred_watch(nullptr, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(call, nullptr);

  ScopedServer server([] {
    static const auto twice = [](void*, char*, size_t, door_desc_t*, uint_t) {
      door_deferred_t* first = nullptr;
      door_deferred_t* second = nullptr;
      EXPECT_EQ(::door_defer(&first), 0);
      EXPECT_EQ(ERROR_OF(::door_defer(&second)), EINVAL);
      EXPECT_EQ(answer_with_request(first), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    };
    return ::door_create(twice, nullptr, 0);
  });
  EXPECT_EQ(ask(server.door(), "x"), "x");
  EXPECT_EQ(server.exit(), 0) << "what the server expects";
}

}  // namespace
}  // namespace farcall::door::test
