// SPDX-License-Identifier: Apache-2.0
//
// Calls that nobody waits in.
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "c/call.hpp"

namespace farcall::c::test {
namespace {

struct CloseCall {
  void operator()(farcall_call* call) const noexcept { farcall_call_close(call); }
};
using Call = std::unique_ptr<farcall_call, CloseCall>;

// A server that is kept from the processor for a tenth of a second takes nobody in meanwhile.
Call begin(const Client& client, std::string_view request, std::int64_t timeout = kLong) {
  farcall_call* call = nullptr;
  const auto options = calling([&](auto& o) { o.timeout = timeout; });
  int error = -EUSERS;
  for (int tries = 0; error == -EUSERS && tries < 100; ++tries)
    error = farcall_client_begin(client.get(), request.data(), request.size(), &options, &call);
  EXPECT_EQ(error, 0) << ::strerror(-error);
  return Call(call);
}

// The reply, or the symbolic name of the error.
std::string take(const Call& call, std::int64_t timeout = 0) {
  char room[64];
  auto answer = usual<farcall_answer>();
  answer.bytes = room;
  answer.room = sizeof room;
  const int error = farcall_call_take(call.get(), &answer, timeout);
  if (error != 0) return ::strerrorname_np(-error);
  std::string text(static_cast<const char*>(answer.bytes), answer.length);
  farcall_answer_free(&answer);
  return text;
}

int descriptor(const Call& call) { return farcall_call_poll_descriptor(call.get()); }

// What an event loop does with one call.
std::string answer(const Call& call) {
  for (int step = 0; step < 1'000; ++step) {
    if (farcall_call_poll_begin(call.get()) == 1) {
      EXPECT_TRUE(readable(descriptor(call), -1));
      farcall_call_poll_end(call.get());
    }
    std::string text = take(call);
    if (text != "EAGAIN") return text;
  }
  return "no end";
}

// Answers when it is told to. Calls may outlast a test.
struct Gate {
  struct State {
    std::atomic<bool> open{false};
    std::atomic<int> waiting{0};
  };
  const std::shared_ptr<State> state = std::make_shared<State>();

  [[nodiscard]] Procedure procedure() const {
    return [state = state](std::string_view request, farcall_call_reply* reply) {
      ++state->waiting;
      EXPECT_TRUE(eventually([&] { return state->open.load(); }));
      return send_back(request, reply);
    };
  }
  [[nodiscard]] bool is_reached() const {
    return eventually([&] { return state->waiting > 0; });
  }
  void open() const { state->open = true; }
};

struct CAsyncCall : CCall {};

TEST_F(CAsyncCall, IsAnswered) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  for (const std::string& text : {std::string("hello"), std::string(), std::string(5'000, 'x'),
                                  std::string(std::size_t{3} << 20, 'y')})
    for (int round = 0; round < 3; ++round)
      ASSERT_EQ(answer(begin(client, text)), "<" + text + ">");
  EXPECT_EQ(take(begin(client, "waited for"), FARCALL_FOREVER), "<waited for>");
  EXPECT_EQ(call(client, "blocking"), "<blocking>");
}

TEST_F(CAsyncCall, IsOverWhenItHasBeenTaken) {
  const Server server = serve(path, send_back);
  const Call call = begin(open(path), "its client is closed already");
  const int before = descriptor(call);
  EXPECT_GE(before, 0);
  EXPECT_EQ(take(call, kLong), "<its client is closed already>");
  EXPECT_EQ(take(call), "EINVAL");
  EXPECT_EQ(descriptor(call), -EINVAL);
  EXPECT_EQ(farcall_call_poll_begin(call.get()), 0);
  farcall_call_poll_end(call.get());
}

TEST_F(CAsyncCall, HasOneDescriptorFromBeginningToEnd) {
  const Gate gate;
  const Server server = serve(path, gate.procedure());
  const Client client = open(path);
  const Call call = begin(client, "x");
  const int first = descriptor(call);
  EXPECT_EQ(take(call, kShort), "EAGAIN");
  EXPECT_EQ(descriptor(call), first);
  ASSERT_TRUE(gate.is_reached());
  ASSERT_EQ(farcall_call_poll_begin(call.get()), 1);
  EXPECT_FALSE(readable(first, static_cast<int>(kGlance.count())));
  gate.open();
  EXPECT_TRUE(readable(first, -1));
  farcall_call_poll_end(call.get());
  EXPECT_EQ(take(call), "<x>");
}

TEST_F(CAsyncCall, TheRequestIsCopiedWhileItCannotBeSent) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  std::string request(100'000, 'a');
  const Call call = begin(client, request);
  std::ranges::fill(request, 'b');
  EXPECT_EQ(answer(call), "<" + std::string(100'000, 'a') + ">");
}

TEST_F(CAsyncCall, ManyAreInProgressAtOnce) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  // Two a call here, and two of the server's.
  const rlimit more{.rlim_cur = std::min<rlim_t>(4'096, files.rlim_max),
                    .rlim_max = files.rlim_max};
  const int count = static_cast<int>(std::min<rlim_t>(1'000, more.rlim_cur / 4));
  Child other([&] {
    ::setrlimit(RLIMIT_NOFILE, &more);
    const Server server = serve(path, [](std::string_view request, farcall_call_reply* reply) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      return send_back(request, reply);
    });
    ::pause();
  });
  ::setrlimit(RLIMIT_NOFILE, &more);
  {
    const Client client = open(path);
    for (int round = 0; round < 2; ++round) {
      std::vector<Call> calls;
      for (int i = 0; i < count; ++i) calls.push_back(begin(client, std::to_string(i)));
      std::vector<pollfd> polled;
      std::vector<bool> done(calls.size(), false);
      std::size_t left = calls.size();
      while (left > 0) {
        polled.clear();
        bool at_once = false;
        for (std::size_t i = 0; i < calls.size(); ++i) {
          if (done[i]) continue;
          at_once |= farcall_call_poll_begin(calls[i].get()) == 0;
          polled.push_back({.fd = descriptor(calls[i]), .events = POLLIN, .revents = 0});
        }
        if (!at_once) ::poll(polled.data(), polled.size(), -1);
        for (std::size_t i = 0; i < calls.size(); ++i) {
          if (done[i]) continue;
          farcall_call_poll_end(calls[i].get());
          const std::string text = take(calls[i]);
          if (text == "EAGAIN") continue;
          ASSERT_EQ(text, "<" + std::to_string(i) + ">");
          done[i] = true;
          --left;
        }
      }
    }
  }
  ::setrlimit(RLIMIT_NOFILE, &files);
}

TEST_F(CAsyncCall, GivenUpIsSeenByTheServer) {
  std::atomic<bool> called{false};
  std::atomic<bool> gone{false};
  const Server server = serve(path, [&](std::string_view request, farcall_call_reply* reply) {
    if (request != "give up") return send_back(request, reply);
    called = true;
    auto caller = usual<farcall_caller>();
    gone = eventually([&] { return farcall_caller_get(&caller) == -EINVAL; });
    return 0;
  });
  const Client client = open(path);
  Call given_up = begin(client, "give up");
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(take(given_up), "EAGAIN");
    return called.load();
  }));
  given_up.reset();
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  EXPECT_EQ(call(client, "next"), "<next>");
}

TEST_F(CAsyncCall, EndsWhenItsTimeIsUp) {
  const Gate gate;
  const Server server = serve(path, gate.procedure());
  const Client client = open(path);
  const std::int64_t start = now_ns();
  const Call call = begin(client, "late", kShort);
  // Unless its time was up before anybody asked.
  std::string end = take(call, 1);
  if (end == "EAGAIN") end = take(call, FARCALL_FOREVER);
  EXPECT_EQ(end, "ETIMEDOUT");
  EXPECT_GE(now_ns() - start, kShort);
  EXPECT_EQ(take(call), "EINVAL");
  const Call polled = begin(client, "late", 1);
  EXPECT_EQ(farcall_call_poll_begin(polled.get()), 0);
  EXPECT_EQ(take(polled), "ETIMEDOUT");
  gate.open();
}

TEST_F(CAsyncCall, OfAServerThatDiesEnds) {
  const Shared<Event> called;
  Child child([&] { serve_without_an_answer(path, *called); });
  const Client client = open(path);
  const Call dying = begin(client, "die");
  while (!called->wait(kGlance)) ASSERT_EQ(take(dying), "EAGAIN");
  ASSERT_EQ(farcall_call_poll_begin(dying.get()), 1);
  ::kill(child.pid(), SIGKILL);
  EXPECT_TRUE(readable(descriptor(dying), -1));
  farcall_call_poll_end(dying.get());
  EXPECT_EQ(answer(dying), "ECONNABORTED");
  farcall_call* none = nullptr;
  EXPECT_TRUE(eventually([&] {
    const int error = farcall_client_begin(client.get(), "x", 1, nullptr, &none);
    return error == -EPIPE || (error == 0 && answer(Call(none)) == "EPIPE");
  }));
}

TEST_F(CAsyncCall, OfAServerThatIsStoppedDoesNotBlock) {
  const Shared<Event> serving;
  Child child([&] {
    const Server server = serve(path, send_back);
    serving->happens();
    ::pause();
  });
  ASSERT_TRUE(serving->wait());
  const Client client = open(path);
  ASSERT_EQ(answer(begin(client, "one")), "<one>");
  ::kill(child.pid(), SIGSTOP);
  ASSERT_EQ(::waitpid(child.pid(), nullptr, WUNTRACED), child.pid());
  const struct GoOn {
    pid_t pid;
    ~GoOn() { ::kill(pid, SIGCONT); }
  } go_on{child.pid()};
  std::vector<Call> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(begin(client, std::to_string(i)));
  for (const Call& call : calls) {
    ASSERT_EQ(take(call), "EAGAIN");
    ASSERT_EQ(farcall_call_poll_begin(call.get()), 1);
  }
  // The server's socket has room for so many, and the calls after them are refused.
  int refused = 0;
  for (int i = 0; i < 2'000 && refused == 0; ++i) {
    farcall_call* call = nullptr;
    refused = farcall_client_begin(client.get(), "x", 1, nullptr, &call);
    if (refused == 0) calls.emplace_back(call);
  }
  EXPECT_TRUE(refused == -EUSERS || refused == -EMFILE || refused == -ETOOMANYREFS) << refused;
  ::kill(child.pid(), SIGCONT);
  for (int i = 0; i < 50; ++i) {
    farcall_call_poll_end(calls[static_cast<std::size_t>(i)].get());
    ASSERT_EQ(answer(calls[static_cast<std::size_t>(i)]), "<" + std::to_string(i) + ">");
  }
}

// What it has not read makes the next that sends learn of its end as of a reset, where it ends just
// then.
TEST_F(CAsyncCall, ToAServerThatIsKilledMeanwhileHasNotBeenSeen) {
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    const Shared<Event> serving;
    Child child([&] {
      const Server server = serve(path, send_back);
      serving->happens();
      ::usleep(static_cast<unsigned>(200 * round));
      ::kill(::getpid(), SIGKILL);
    });
    ASSERT_TRUE(serving->wait());
    farcall_client* opened = nullptr;
    if (farcall_client_open(path.c_str(), 0, &opened) != 0) continue;  // it has been quick
    const Client client(opened);
    std::vector<Call> calls;
    const std::string request(100'000, 'x');
    int error = 0;
    while (error == 0) {
      farcall_call* call = nullptr;
      error = farcall_client_begin(client.get(), request.data(), request.size(), nullptr, &call);
      if (error == 0) calls.emplace_back(call);
      // Not more at once than the server lets in; those that end leave a session for others.
      if (calls.size() > 20 || error != 0) {
        for (const Call& begun : calls) (void)take(begun);
        calls.clear();
      }
    }
    EXPECT_EQ(error, -EPIPE);
    (void)child.join();
  }
}

TEST_F(CAsyncCall, OfAClientThatIsKilledIsSeenByTheServer) {
  const Shared<Event> called;
  std::atomic<bool> gone{false};
  const Server server = serve(path, [&](std::string_view request, farcall_call_reply* reply) {
    if (request != "die") return send_back(request, reply);
    called->happens();
    auto caller = usual<farcall_caller>();
    gone = eventually([&] { return farcall_caller_get(&caller) == -EINVAL; });
    return 0;
  });
  Child child([&] {
    const Client client = open(path);
    const Call call = begin(client, "die");
    (void)answer(call);
  });
  ASSERT_TRUE(called->wait());
  ::kill(child.pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  EXPECT_EQ(call(open(path), "next"), "<next>");
}

TEST_F(CAsyncCall, IsItsProcesssAlone) {
  const Gate gate;
  const Server server = serve(path, gate.procedure());
  const Client client = open(path);
  Call mine = begin(client, "mine");
  ASSERT_EQ(take(mine, kShort), "EAGAIN");
  in_child([&] {
    EXPECT_EQ(take(mine), "EBUSY");
    EXPECT_EQ(descriptor(mine), -EBUSY);
    EXPECT_EQ(farcall_call_poll_begin(mine.get()), -EBUSY);
    farcall_call_poll_end(mine.get());
    mine.reset();
    const Call own = begin(client, "a child's own", kShort);
    EXPECT_EQ(take(own, FARCALL_FOREVER), "ETIMEDOUT");
  });
  gate.open();
  EXPECT_EQ(answer(mine), "<mine>");
}

TEST_F(CAsyncCall, LeavesNoSessionToWhoHasBecomeSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const Server server = serve(path, [](std::string_view, farcall_call_reply* reply) {
    auto caller = usual<farcall_caller>();
    EXPECT_EQ(farcall_caller_get(&caller), 0);
    return write(reply, std::to_string(caller.uid));
  });
  in_child([&] {
    constexpr uid_t kNobody = 65534;
    const Client client = open(path);
    const Call begun = begin(client, "as root");
    ASSERT_EQ(::seteuid(kNobody), 0);
    const Call second = begin(client, "as nobody");
    EXPECT_EQ(answer(begun), "0");
    EXPECT_EQ(answer(begin(client, "as nobody")), std::to_string(kNobody));
    EXPECT_EQ(answer(second), std::to_string(kNobody));
  });
}

TEST_F(CAsyncCall, SurvivesASignal) {
  struct sigaction action {};
  action.sa_handler = [](int) { farcall_note_signal(); };
  ::sigaction(SIGUSR1, &action, nullptr);
  const Gate gate;
  const pthread_t self = ::pthread_self();
  const Server server = serve(path, gate.procedure());
  const Call call = begin(open(path), "go on");
  // The server may have the call before it is waited for: again until a signal comes in that wait.
  std::atomic<bool> over{false};
  std::thread signaller([&] {
    EXPECT_TRUE(gate.is_reached());
    for (; !over; std::this_thread::sleep_for(kGlance)) ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(take(call, FARCALL_FOREVER), "EINTR");
  over = true;
  signaller.join();
  gate.open();
  EXPECT_EQ(answer(call), "<go on>");
}

TEST_F(CAsyncCall, FailsAsACallDoes) {
  const Server server = serve(
      path,
      [](std::string_view request, farcall_call_reply* reply) {
        return request == "fail" ? -1 : send_back(request, reply);
      },
      serving([](auto& o) { o.longest = 4; }));
  const Client client = open(path);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answer(begin(client, "fail")), "ECONNABORTED");
    EXPECT_EQ(answer(begin(client, "do")), "<do>");
  }
  // Known at once where a session says so.
  farcall_call* call = nullptr;
  EXPECT_EQ(farcall_client_begin(client.get(), "fives", 5, nullptr, &call), -EMSGSIZE);
  EXPECT_EQ(answer(begin(open(path), "fives")), "EMSGSIZE") << "else it is found out later";
  EXPECT_EQ(answer(begin(client, "do")), "<do>");
}

TEST_F(CAsyncCall, ALongReplyThatCannotBeMappedIsAWantOfMemory) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  const Server server = serve(path, send_back);
  in_child([&] {
    const Client client = open(path);
    const std::string text(1 << 20, 'x');
    ASSERT_EQ(answer(begin(client, text)).size(), text.size() + 2);
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};  // less than is mapped
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    EXPECT_EQ(answer(begin(client, text)), "ENOMEM");
    EXPECT_EQ(answer(begin(client, "x")), "<x>");
  });
}

TEST_F(CAsyncCall, ArgumentsThatCannotBeAreRefused) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  farcall_call* call = nullptr;
  EXPECT_EQ(farcall_client_begin(nullptr, "x", 1, nullptr, &call), -EINVAL);
  EXPECT_EQ(farcall_client_begin(client.get(), nullptr, 1, nullptr, &call), -EINVAL);
  EXPECT_EQ(farcall_client_begin(client.get(), "x", 1, nullptr, nullptr), -EINVAL);
  const auto begin_with = [&](auto set) {
    const farcall_call_options options = calling(set);
    return farcall_client_begin(client.get(), "x", 1, &options, &call);
  };
  EXPECT_EQ(begin_with([](auto& o) { o.ask_after = 1; }), -EINVAL);
  EXPECT_EQ(begin_with([](auto& o) { o.give_up = [](void*) { return 0; }; }), -EINVAL);
  EXPECT_EQ(begin_with([&](auto& o) { o.context = &call; }), -EINVAL);
  auto answer = usual<farcall_answer>();
  EXPECT_EQ(farcall_call_take(nullptr, &answer, 0), -EINVAL);
  EXPECT_EQ(farcall_call_poll_descriptor(nullptr), -EINVAL);
  EXPECT_EQ(farcall_call_poll_begin(nullptr), -EINVAL);
  farcall_call_poll_end(nullptr);
  farcall_call_close(nullptr);
  EXPECT_EQ(farcall_call_take(begin(client, "x").get(), nullptr, 0), -EINVAL);
}

TEST_F(CAsyncCall, NothingIsLeftOfManyThatAreGivenUp) {
  const Server server = serve(path, send_back);
  const Client client = open(path);
  const auto give_up = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const Call call = begin(client, "x");
      if (i % 2 == 0) {
        ASSERT_NE(take(call, i % 4 == 0 ? 1'000 : 0), "EPIPE");
      }
    }
  };
  give_up(200);
  ASSERT_EQ(call(client, "x"), "<x>");
  const auto before = open_descriptors();
  give_up(10'000);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 4; }))
      << open_descriptors() << " of " << before;
  EXPECT_EQ(call(client, "x"), "<x>");
}

}  // namespace
}  // namespace farcall::c::test
