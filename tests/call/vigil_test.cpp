// SPDX-License-Identifier: Apache-2.0
//
// An idle thread that sleeps on the words of few sessions at once: it must miss nothing that comes
// in another way, and leave nothing behind, wherever it ends.
#include "call/vigil.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "door/usage.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using call::Vigil;
using call::test::RawSession;
using door::test::eventually;
using door::test::open_descriptors;
using test::ask;
using test::Server;

// The number of the system call in which a thread of this process sleeps, or -1.
long asleep_in(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  long number = -1;
  file >> number;
  return file ? number : -1;
}

// A port with one thread whose name is known.
class Watched {
 public:
  explicit Watched(bool by_priority = false)
      : port({.by_priority = by_priority}), thread_([this] { serve(); }) {
    EXPECT_TRUE(eventually([this] { return id_ != 0; }));
  }
  ~Watched() {
    port.close();
    thread_.join();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  [[nodiscard]] bool keeps_vigil() const { return asleep_in(id_) == SYS_futex_waitv; }
  [[nodiscard]] bool sleeps_on_epoll() const {
    return asleep_in(id_) == SYS_epoll_pwait2 || asleep_in(id_) == SYS_epoll_pwait;
  }

  Port port;
  std::atomic<int> notices{0};

 private:
  void serve() {
    id_ = ::gettid();
    ServerThread thread(port);
    Incoming incoming;
    for (;;) {
      const Outcome outcome = thread.receive(incoming, Deadline::never());
      if (outcome == Outcome::finished) return;
      if (outcome != Outcome::ok) continue;
      if (incoming.notice()) ++notices;
      if (incoming.wants_reply()) thread.reply(incoming, incoming.data());
    }
  }

  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

bool kernel_can() {
  return ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) == -1 &&
         errno == EINVAL;
}

class VigilTest : public ::testing::Test {
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

TEST_F(VigilTest, IsKeptOverFewSessionsAndEachOfThemWakes) {
  Watched server;
  Clients clients;
  add_clients(clients, server.port, Vigil::kMostSessions);
  for (int round = 0; round < 20; ++round)
    for (const auto& client : clients) {
      ASSERT_EQ(ask(*client, "there?"), "there?");
      ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); })) << round;
    }
}

TEST_F(VigilTest, ManySessionsAreLeftToEpoll) {
  Watched server;
  Clients clients;
  add_clients(clients, server.port, Vigil::kMostSessions + 1);
  ask_all(clients);
  EXPECT_TRUE(eventually([&] { return server.sleeps_on_epoll(); }));
  ask_all(clients);
  clients.resize(2);
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 2; }));
  ask_all(clients);
  EXPECT_TRUE(eventually([&] { return server.keeps_vigil(); }));
}

TEST_F(VigilTest, NewClientsAreHeard) {
  Watched server;
  Clients clients;
  for (std::size_t i = 0; i < Vigil::kMostSessions + 2; ++i) {
    add_clients(clients, server.port, 1);
    ASSERT_EQ(ask(*clients.back(), "new"), "new");
    if (i < Vigil::kMostSessions) {
      ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); })) << i;
    }
  }
}

TEST_F(VigilTest, OneWayRequestsAreHeard) {
  std::atomic<int> taken{0};
  Server server([&](ServerThread& thread, Incoming& incoming) {
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

TEST_F(VigilTest, NoticesAreHeard) {
  for (const bool by_priority : {false, true}) {
    Watched server(by_priority);
    Client client(server.port.descriptor());
    ask(client, "a session");
    const auto entrance = server.port.open_entrance({}, {});
    for (int i = 1; i <= 20; ++i) {
      ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); }));
      server.port.post(entrance);
      ASSERT_TRUE(eventually([&] { return server.notices == i; })) << i;
    }
  }
}

TEST_F(VigilTest, EndsWithThePort) {
  Watched server;
  Client client(server.port.descriptor());
  ask(client, "a session");
  ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); }));
  server.port.close();
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(5s)), Outcome::peer_gone);
}  // and its thread ends, or this would

TEST_F(VigilTest, EndsAtTheDeadline) {
  Port port;
  std::atomic<bool> asked{false};
  std::thread caller([&] {
    Client client(port.descriptor());
    ask(client, "x");
    asked = true;
    ask(client, "y");
  });
  ServerThread thread(port);
  Incoming incoming;
  ASSERT_EQ(thread.receive(incoming, Deadline::after(20s)), Outcome::ok);
  thread.reply(incoming, incoming.data());
  ASSERT_EQ(thread.receive(incoming, Deadline::after(20s)), Outcome::ok);
  const std::int64_t before = monotonic_ns();
  thread.reply(incoming, incoming.data());
  caller.join();
  EXPECT_EQ(thread.receive(incoming, Deadline::after(30ms)), Outcome::timed_out);
  EXPECT_GE(monotonic_ns() - before, 30'000'000);
}

TEST_F(VigilTest, SignalsInterruptIt) {
  struct sigaction quiet {};
  struct sigaction before {};
  quiet.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &quiet, &before);
  Port port;
  std::atomic<pid_t> id{0};
  std::atomic<int> interruptions{0};
  std::thread server([&] {
    id = ::gettid();
    ServerThread thread(port);
    Incoming incoming;
    for (;;) {
      const Outcome outcome = thread.receive(incoming, Deadline::never());
      if (outcome == Outcome::finished) return;
      if (outcome == Outcome::interrupted) ++interruptions;
      if (outcome == Outcome::ok) thread.reply(incoming, incoming.data());
    }
  });
  Client client(port.descriptor());
  ask(client, "a session");
  ASSERT_TRUE(eventually([&] { return asleep_in(id) == SYS_futex_waitv; }));
  ::pthread_kill(server.native_handle(), SIGUSR1);
  EXPECT_TRUE(eventually([&] { return interruptions == 1; }));
  EXPECT_EQ(ask(client, "and on"), "and on");
  port.close();
  server.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(VigilTest, LetsGoOfSessionsWhoseClientsHaveGone) {
  Watched server;
  Client steady(server.port.descriptor());
  ask(steady, "a session");
  ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); }));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    Clients clients;
    add_clients(clients, server.port, 3);
    ask_all(clients);
    ASSERT_TRUE(eventually([&] { return server.keeps_vigil(); }));
    clients.clear();
    ASSERT_TRUE(eventually([&] { return open_descriptors() <= before; })) << i;
  }
  EXPECT_EQ(server.port.sessions(), 1U);
}

TEST_F(VigilTest, ClientsThatLieAboutItCostOnlyWakeUps) {
  Watched server;
  Client honest(server.port.descriptor());
  ask(honest, "a session");
  RawSession liar(server.port.descriptor());
  ASSERT_TRUE(liar.welcome());
  std::atomic<bool> over{false};
  std::thread lying([&] {
    std::mt19937 random(1);
    while (!over) {
      auto& word = liar.control().server.parked;
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
  EXPECT_TRUE(eventually([&] { return server.keeps_vigil(); }));
}

// A thread that keeps the vigil and is cancelled leaves the sessions to the others.
TEST_F(VigilTest, CancelledThreadsLeaveNothingBehind) {
  Port port;
  Client client(port.descriptor());
  for (int round = 0; round < 50; ++round) {
    std::atomic<pid_t> id{0};
    std::atomic<bool> over{false};
    const auto serve = [&](bool first) {
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
      ServerThread thread(port);
      thread.set_cancellable(first);
      Incoming incoming;
      if (first) id = ::gettid();
      while (!over)
        if (thread.receive(incoming, Deadline::after(first ? 20s : 2ms)) == Outcome::ok)
          thread.reply(incoming, incoming.data());
    };
    std::thread cancelled(serve, true);
    ASSERT_EQ(ask(client, "first"), "first");
    ASSERT_TRUE(eventually([&] { return asleep_in(id) == SYS_futex_waitv; })) << round;
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

bool forbid_waiting_for_several() {
  const std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = const_cast<sock_filter*>(filter.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Whether the process has known before that it could, or not.
TEST_F(VigilTest, WhereItIsForbiddenEpollDoes) {
  for (const bool known : {false, true}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      bool good = true;
      if (known) {
        Watched before;
        Client client(before.port.descriptor());
        good = ask(client, "x") == "x" && eventually([&] { return before.keeps_vigil(); });
      }
      good = good && forbid_waiting_for_several();
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

// Threads, clients and pauses in all mixtures, so that vigils begin and end at any moment.
TEST(VigilStress, NothingIsMissed) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    Server server(test::echo, 1 + static_cast<int>(random() % 3), WaitMode::adaptive,
                  {.by_priority = random() % 2 == 0});
    const int port = server.port.descriptor();
    std::vector<std::thread> threads;
    const unsigned clients = 1 + static_cast<unsigned>(random() % (Vigil::kMostSessions + 2));
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
