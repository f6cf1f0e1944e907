// SPDX-License-Identifier: Apache-2.0
//
// Calls that end otherwise than by a reply: at their time, by a signal, with the port.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>

#include "call/server.hpp"
#include "farcall/call.hpp"
#include "farcall/error.hpp"
#include "harness/child.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using test::ask;
using test::bytes_of;
using test::eventually;
using test::Server;
using test::soon;
using test::text_of;

TEST(Call, EndsAtTheDeadlineAndTheServerIsTold) {
  std::atomic<bool> told{false};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (text_of(incoming.data()) != "slow") return test::echo(thread, incoming);
    told = eventually([&] { return incoming.abandoned(); });
    thread.reply(incoming, incoming.data());
  });
  Client client(server.port.descriptor());
  CallResults results;
  // Where the server has no processor for so long, once more with more time.
  for (auto time = 20ms; time < 20s; time *= 5) {
    EXPECT_EQ(
        client.call({.data = bytes_of("slow"), .descriptors = {}}, results, Deadline::after(time)),
        Outcome::timed_out);
    if (Client::dispatched()) break;
  }
  EXPECT_TRUE(Client::dispatched());
  EXPECT_EQ(ask(client, "next"), "next") << "the late answer must not be taken for this one";
  EXPECT_TRUE(told);
}

TEST(Call, WithoutAThreadIsNotDispatched) {
  Port port;
  Client client(port.descriptor());
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(20ms)), Outcome::timed_out);
  EXPECT_FALSE(Client::dispatched());
}

TEST(Call, IsInterruptedBySignals) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer runs handlers when it pleases";
#endif
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { note_signal(); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  Port port;
  Client client(port.descriptor());
  CallResults results;
  // Whenever it comes: even before the call, as long as that knows since when to look.
  for (const auto pause : {0us, 20us, 100us, 1000us, 20'000us, 40'000us}) {
    const SignalCount since = SignalCount::now();
    const pthread_t self = ::pthread_self();
    std::thread interrupter([&] {
      std::this_thread::sleep_for(pause);
      ::pthread_kill(self, SIGUSR1);
    });
    EXPECT_EQ(client.call({}, results, soon(), since), Outcome::interrupted);
    interrupter.join();
  }
  // Those of before are no business of the next one's.
  EXPECT_EQ(client.call({}, results, Deadline::after(20ms)), Outcome::timed_out);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Call, FailsWhenTheRequestIsDroppedWithoutAnAnswer) {
  Server server([](ServerThread& thread, Incoming& incoming) {
    if (text_of(incoming.data()) == "drop") {
      incoming = Incoming();
    } else {
      test::echo(thread, incoming);
    }
  });
  Client client(server.port.descriptor());
  CallResults results;
  EXPECT_EQ(client.call({.data = bytes_of("drop"), .descriptors = {}}, results, soon()),
            Outcome::peer_gone);
  EXPECT_TRUE(Client::dispatched());
  EXPECT_EQ(ask(client, "again"), "again");
}

TEST(Call, FailsWhenThePortIsClosed) {
  Server server;
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, "x"), "x");
  server.port.close();
  CallResults results;
  EXPECT_EQ(client.call({}, results, soon()), Outcome::peer_gone);
  EXPECT_EQ(client.call({}, results, soon()), Outcome::peer_gone);
  EXPECT_FALSE(Client::dispatched());
}

TEST(Call, WaitingClientsLearnThatThePortIsClosed) {
  Port port;
  std::thread closer([&] {
    std::this_thread::sleep_for(50ms);
    port.close();
  });
  Client client(port.descriptor());
  CallResults results;
  EXPECT_EQ(client.call({}, results, soon()), Outcome::peer_gone);
  EXPECT_FALSE(Client::dispatched());
  closer.join();
}

TEST(Call, InProgressFinishesAfterThePortIsClosed) {
  std::atomic<bool> started{false};
  std::atomic<bool> closed{false};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    started = true;
    while (!closed) std::this_thread::sleep_for(1ms);
    test::echo(thread, incoming);
  });
  std::thread closer([&] {
    while (!started) std::this_thread::sleep_for(1ms);
    server.port.close();
    closed = true;
  });
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, "still"), "still");
  closer.join();
}

TEST(ServerThread, ReceiveEndsAtTheDeadline) {
  Port port;
  ServerThread thread(port);
  Incoming incoming;
  EXPECT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(thread.receive(incoming, Deadline::after(5ms)), Outcome::timed_out);
  EXPECT_THROW(thread.reply(incoming, {}), MisuseError);
  port.close();
  EXPECT_EQ(thread.receive(incoming, Deadline::never()), Outcome::finished);
}

}  // namespace
}  // namespace farcall
