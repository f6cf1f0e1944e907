// SPDX-License-Identifier: Apache-2.0
//
// An idle thread that sleeps on the words of few sessions at once: it must miss nothing that comes
// in another way, and leave nothing behind, wherever it ends.
#include "call/futex_multi_wait.hpp"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "call/port.hpp"
#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/watched.hpp"
#include "harness/child.hpp"
#include "harness/descriptors.hpp"
#include "harness/forbidden_call.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using call::FutexMultiWait;
using call::test::RawSession;
using test::ask;
using test::asleep_in;
using test::eventually;
using test::open_descriptors;
using test::Server;
using test::Watched;

bool kernel_can() {
  return ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) == -1 &&
         errno == EINVAL;
}

class FutexMultiWaitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernel_can()) GTEST_SKIP() << "the kernel has no futex_waitv(2), or it is forbidden here";
  }
};

using Clients = std::vector<std::unique_ptr<Client>>;
void add_clients(Clients& clients, Port& port, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    clients.push_back(std::make_unique<Client>(port.descriptor()));
}
void ask_all(const Clients& clients) {
  for (const auto& client : clients) ASSERT_EQ(ask(*client, "there?"), "there?");
}
// Such a wait, where it has needed the reactor too often or was ended by nothing, as on a busy
// machine, is followed by a rest, as long as that takes.
bool comes_to_wait_for_all(const Watched& server, const Clients& clients) {
  return eventually([&] {
    if (server.waits_for_all()) return true;
    for (const auto& client : clients) {
      EXPECT_EQ(ask(*client, "there?"), "there?");
      std::this_thread::sleep_for(1ms);
    }
    return server.waits_for_all();
  });
}

TEST_F(FutexMultiWaitTest, IsForFewSessionsAndEachOfThemWakes) {
  Watched server;
  Clients clients;
  add_clients(clients, server.port, FutexMultiWait::kMostSessions);
  EXPECT_TRUE(comes_to_wait_for_all(server, clients));
  for (int round = 0; round < 20; ++round)
    for (const auto& client : clients) {
      ASSERT_EQ(ask(*client, "there?"), "there?");
      ASSERT_TRUE(comes_to_wait_for_all(server, clients)) << round;
    }
}

// A thread that serves the session meanwhile sleeps on another word: else its wake-ups would go
// astray.
TEST_F(FutexMultiWaitTest, SleepsOnAWordOfItsOwn) {
  Watched server;
  RawSession client(server.port.descriptor());
  ASSERT_TRUE(client.welcome());
  client.give(call::Kind::request, 1);
  ASSERT_TRUE(client.answered(1));
  ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
  EXPECT_EQ(client.control().server.parked, WaitState::kOnBell);
}

TEST_F(FutexMultiWaitTest, ManySessionsAreLeftToEpoll) {
  Watched server;
  Clients clients;
  add_clients(clients, server.port, FutexMultiWait::kMostSessions + 1);
  ask_all(clients);
  EXPECT_TRUE(eventually([&] { return server.sleeps_on_epoll(); }));
  ask_all(clients);
  clients.resize(2);
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 2; }));
  EXPECT_TRUE(comes_to_wait_for_all(server, clients));
}

TEST_F(FutexMultiWaitTest, NewClientsAreSeen) {
  Watched server;
  Clients clients;
  for (std::size_t i = 0; i < FutexMultiWait::kMostSessions + 2; ++i) {
    add_clients(clients, server.port, 1);
    if (i < 3) {
      ASSERT_EQ(ask(*clients.back(), "new"), "new");
      ASSERT_TRUE(eventually([&] { return server.waits_for_all(); })) << i;
    }
  }
  ask_all(clients);
}

TEST_F(FutexMultiWaitTest, OneWayRequestsAreSeen) {
  std::atomic<int> taken{0};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    thread.set_restartable(true);
    if (!incoming.wants_reply()) ++taken;
    test::echo(thread, incoming);
  });
  Client client(server.port.descriptor());
  ask(client, "a session");
  for (int i = 1; i <= 20; ++i) {
    std::this_thread::sleep_for(2ms);
    ASSERT_EQ(client.send({.data = test::bytes_of("x"), .descriptors = {}}, Deadline::after(5s)),
              Outcome::ok);
    ASSERT_TRUE(eventually([&] { return taken == i; })) << i;
  }
}

TEST_F(FutexMultiWaitTest, NoticesAreSeen) {
  Watched server;
  Client client(server.port.descriptor());
  ask(client, "a session");
  ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
  const auto endpoint = server.port.open_endpoint({}, {});
  for (int i = 1; i <= 20; ++i) {
    server.port.post(endpoint);
    ASSERT_TRUE(eventually([&] { return server.notices == i; })) << i;
    // A client that comes before the thread sleeps again makes another loss.
    if (i < 3) {
      ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
    }
    ask(client, "once more");
    if (i < 3) {
      ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
    }
  }
}

TEST_F(FutexMultiWaitTest, IsNotWhereItWouldChangeWhatReceiveDoes) {
  for (const auto& [by_priority, restartable] : {std::pair(true, true), std::pair(false, false)}) {
    Watched server(by_priority, restartable);
    Client client(server.port.descriptor());
    for (int i = 0; i < 5; ++i) {
      ask(client, "x");
      ASSERT_TRUE(eventually([&] { return server.sleeps_on_epoll(); })) << by_priority;
    }
  }
}

TEST_F(FutexMultiWaitTest, EndsWithThePort) {
  Watched server;
  Client client(server.port.descriptor());
  ask(client, "a session");
  ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
  server.port.close();
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(5s)), Outcome::peer_gone);
}  // and its thread ends, or this would

// Also where a client writes to the word that the server sleeps on, all the time.
TEST_F(FutexMultiWaitTest, EndsAtTheDeadline) {
  for (const bool rung : {false, true}) {
    Port port;
    ServerThread thread(port);
    thread.set_restartable(true);
    Incoming incoming;
    RawSession client(port.descriptor());
    ASSERT_TRUE(client.welcome());
    std::atomic<bool> over{false};
    std::thread liar([&] {
      while (rung && !over) ++client.control().server.bell;
    });
    const std::int64_t before = monotonic_ns();
    EXPECT_EQ(thread.receive(incoming, Deadline::after(30ms)), Outcome::timed_out);
    EXPECT_GE(monotonic_ns() - before, 30'000'000);
    over = true;
    liar.join();
  }
}

// What has come before the deadline is received, however late.
TEST_F(FutexMultiWaitTest, LooksAroundBeforeItTimesOut) {
  struct Pulses final : Source {
    explicit Pulses(Port& its_port) : port(its_port), endpoint(port.open_endpoint({}, {})) {}
    std::size_t on_readable() noexcept override {
      std::uint64_t count = 0;
      if (::read(fd.get(), &count, sizeof count) > 0) port.post(endpoint);
      return 0;
    }
    Port& port;
    std::shared_ptr<Endpoint> endpoint;
    UniqueFd fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  };
  Port port;
  ServerThread thread(port);
  thread.set_restartable(true);
  Incoming incoming;
  RawSession client(port.descriptor());
  ASSERT_TRUE(client.welcome());
  const auto pulses = std::make_shared<Pulses>(port);
  const std::uint64_t source = port.listen(pulses->fd.get(), pulses, ::getuid(), 0);
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(pulses->fd.get(), &one, sizeof one), 8);
  bool received = false;
  for (int i = 0; i < 100 && !received; ++i)
    received = thread.receive(incoming, Deadline::after(1us)) == Outcome::ok && incoming.notice();
  EXPECT_TRUE(received);
  port.forget(pulses->fd.get(), source);
}

TEST_F(FutexMultiWaitTest, SignalsInterruptIt) {
  struct sigaction quiet {};
  struct sigaction before {};
  quiet.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &quiet, &before);
  {
    Watched server;
    Client client(server.port.descriptor());
    ask(client, "a session");
    ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
    server.signal(SIGUSR1);
    EXPECT_TRUE(eventually([&] { return server.interruptions == 1; }));
    EXPECT_EQ(ask(client, "and on"), "and on");
  }
  quiet.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &quiet, nullptr);
  {
    Watched server(false, false);  // all of them do, unless the thread says otherwise
    Client client(server.port.descriptor());
    ask(client, "a session");
    ASSERT_TRUE(eventually([&] { return server.sleeps_on_epoll(); }));
    server.signal(SIGUSR1);
    EXPECT_TRUE(eventually([&] { return server.interruptions == 1; }));
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

std::atomic<bool> handler_runs;
std::atomic<int> ends_handler;  // by a byte that can be read there

// The kernel goes on with the sleep of who comes back from it, and wakes nobody else meanwhile.
TEST_F(FutexMultiWaitTest, ASignalHandlerKeepsNobodyWaitingWhileAnotherThreadIsIdle) {
  FARCALL_SKIP_UNDER_TSAN("runs handlers when it pleases");
  const auto handlers = packet_socket_pair();
  struct sigaction long_one {};
  struct sigaction before {};
  long_one.sa_handler = [](int) {
    handler_runs = true;
    char byte = 0;
    (void)!::read(ends_handler, &byte, 1);
  };
  long_one.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &long_one, &before);
  handler_runs = false;
  ends_handler = handlers.first.get();
  {
    Watched server;
    Clients clients;
    add_clients(clients, server.port, 1);
    ASSERT_TRUE(comes_to_wait_for_all(server, clients));
    std::thread other([&] {
      ServerThread thread(server.port);
      Incoming incoming;
      while (thread.receive(incoming, Deadline::never()) != Outcome::finished)
        if (incoming.wants_reply()) thread.reply(incoming, incoming.data());
    });
    EXPECT_TRUE(eventually([&] { return server.port.idle_threads() == 2; }));
    EXPECT_TRUE(eventually([&] { return server.waits_for_all(); }));
    server.signal(SIGUSR1);
    EXPECT_TRUE(eventually([] { return handler_runs.load(); }));
    EXPECT_EQ(ask(*clients.front(), "there?"), "there?");
    EXPECT_EQ(server.asleep_in_call(), SYS_read) << "the handler has come back";
    EXPECT_EQ(::write(handlers.second.get(), "x", 1), 1);
    server.port.close();
    other.join();
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(FutexMultiWaitTest, LetsGoOfSessionsWhoseClientsHaveGone) {
  Watched server;
  Client steady(server.port.descriptor());
  ask(steady, "a session");
  ASSERT_TRUE(eventually([&] { return server.waits_for_all(); }));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    Clients clients;
    add_clients(clients, server.port, 3);
    ask_all(clients);
    clients.clear();
    ASSERT_TRUE(eventually([&] { return open_descriptors() <= before; })) << i;
  }
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 1; }));
}

TEST_F(FutexMultiWaitTest, ClientsThatLieAboutItCostOnlyWakeUps) {
  Watched server;
  Clients clients;
  add_clients(clients, server.port, 1);
  Client& honest = *clients.front();
  RawSession liar(server.port.descriptor());
  ASSERT_TRUE(liar.welcome());
  std::atomic<bool> over{false};
  std::thread lying([&] {
    std::mt19937 random(1);
    while (!over) {
      WaitState& side = liar.control().server;
      auto& word = random() % 2 == 0 ? side.parked : side.bell;
      word = static_cast<std::uint32_t>(random() % 4);
      if (random() % 2 == 0) ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
  });
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(ask(honest, "still there?"), "still there?");
    if (i % 3 == 0) std::this_thread::sleep_for(300us);
  }
  over = true;
  lying.join();
  EXPECT_TRUE(comes_to_wait_for_all(server, clients));
}

// A thread that waits so and is cancelled leaves the sessions to the others.
TEST_F(FutexMultiWaitTest, CancelledThreadsLeaveNothingBehind) {
  Port port;
  Client client(port.descriptor());
  for (int round = 0; round < 10; ++round) {
    std::atomic<pid_t> id{0};
    std::atomic<bool> over{false};
    const auto serve = [&](bool first) {
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
      ServerThread thread(port);
      thread.set_cancellable(first);
      thread.set_restartable(true);
      Incoming incoming;
      if (first) id = ::gettid();
      while (!over)
        if (thread.receive(incoming, Deadline::after(first ? 20s : 2ms)) == Outcome::ok)
          thread.reply(incoming, incoming.data());
    };
    std::thread cancelled(serve, true);
    EXPECT_TRUE(eventually([&] {
      EXPECT_EQ(ask(client, "first"), "first");
      std::this_thread::sleep_for(1ms);
      return asleep_in(id) == SYS_futex_waitv;
    })) << round;
    // With a call at the same time, whichever comes first.
    std::thread caller;
    if (round % 2 == 0) caller = std::thread([&] { ask(client, "second"); });
    ::pthread_cancel(cancelled.native_handle());
    cancelled.join();
    std::thread other(serve, false);
    if (caller.joinable())
      caller.join();
    else
      ASSERT_EQ(ask(client, "third"), "third");
    over = true;
    other.join();
  }
}

// Of a session that another thread has left to its doorbell, while the one that slept for it has
// not come to notice.
TEST(FutexMultiWaitLeft, ACancelledThreadLooksAtWhatAnotherOneStillSleepsFor) {
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  const UniqueFd way = endpoint->branch();
  RawSession session(way.get());
  ASSERT_TRUE(session.welcome());
  call::PortState& state = *call::inside(*endpoint).port;
  {
    const std::lock_guard guard(state.lock);
    state.sessions.begin()->second.session->in_multi_wait = true;
  }
  session.give(call::Kind::request, 1, 5);
  epoll_event event{};  // with which a thread is cancelled
  ASSERT_EQ(::epoll_wait(state.epoll.get(), &event, 1, 20'000), 1);
  state.look_again();
  ServerThread thread(port);
  Incoming incoming;
  ASSERT_EQ(thread.receive(incoming, Deadline::after(20s)), Outcome::ok);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
}

// Whether the process has known before that it could, or not.
TEST_F(FutexMultiWaitTest, WhereItIsForbiddenEpollDoes) {
  for (const bool known : {false, true}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      bool good = true;
      if (known) {
        Watched before;
        Client client(before.port.descriptor());
        good = ask(client, "x") == "x" && eventually([&] { return before.waits_for_all(); });
      }
      good = good && test::forbid_call(SYS_futex_waitv);
      {
        Watched server;
        Client client(server.port.descriptor());
        for (int i = 0; i < 10; ++i)
          good = good && ask(client, "x") == "x" &&
                 eventually([&] { return server.sleeps_on_epoll(); });
      }
      ::_exit(good && !testing::Test::HasFailure() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << known;
  }
}

// Threads, clients and pauses in all mixtures, so that such waits begin and end at any moment.
TEST(FutexMultiWaitStress, NothingIsMissed) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    const auto handler = [](ServerThread& thread, Incoming& incoming) {
      thread.set_restartable(true);
      test::echo(thread, incoming);
    };
    Server server(handler, 1 + static_cast<int>(random() % 3));
    const int port = server.port.descriptor();
    std::vector<std::thread> threads;
    const unsigned clients =
        1 + static_cast<unsigned>(random() % (FutexMultiWait::kMostSessions + 2));
    for (unsigned i = 0; i < clients; ++i)
      threads.emplace_back([port, seed = random()] {
        std::mt19937 mine(seed);
        std::unique_ptr<Client> client;
        for (int call = 0; call < 60; ++call) {
          if (!client || mine() % 20 == 0) client = std::make_unique<Client>(port);
          const std::string question(mine() % 100, 'q');
          ASSERT_EQ(ask(*client, question), question);
          if (mine() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(mine() % 900));
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace farcall
