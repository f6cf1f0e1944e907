// SPDX-License-Identifier: Apache-2.0
//
// What a client keeps from one call to the next, and what it says of a call that failed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"

namespace farcall::call::test {
namespace {

// The number may stand for something else by the time that a session is opened there.
TEST(Client, SendsNothingToAnotherSocketThanItsPorts) {
  Server server;
  const int port = server.port.descriptor();
  Client other(port);
  other.set_socket(socket_cookie(port) + 1);
  CallResults results;
  EXPECT_EQ(error_of([&] { other.call({}, results, before_long()); }), EBADF);
  EXPECT_EQ(server.port.sessions(), 0U);
  Client client(port);
  client.set_socket(socket_cookie(port));
  EXPECT_EQ(ask(client, "hello"), "hello");
}

TEST(Client, KeepsItsSession) {
  Server server;
  Client client(server.port.descriptor());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(client, "hello"), "hello");
  EXPECT_EQ(server.port.sessions(), 1U);
}

// Whoever has asked for it may not be who calls next.
TEST(Client, ASessionThatWasAskedForBeforeAChangeOfIdsServesOneCall) {
  for (const bool changes : {false, true}) {
    Server server;
    Client client(server.port.descriptor());
    AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = {}});
    if (changes) forget_credentials();
    std::array<std::byte, 100> buffer;
    CallResults results;
    results.buffer = buffer;
    ASSERT_EQ(call.take(results, before_long()), Outcome::ok);
    EXPECT_TRUE(call.dispatched());
    EXPECT_TRUE(eventually([&] { return server.port.sessions() == (changes ? 0 : 1); }));
  }
}

// Nor is it kept for who calls next, where the one call has been given up.
TEST(Client, AsksAnewAfterAChangeOfIds) {
  for (const bool changes : {false, true}) {
    const auto [server, port] = packet_socket_pair();
    Client client(port.get());
    CallResults results;
    EXPECT_EQ(client.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
    const Packet first = take_packet(server.get());
    EXPECT_EQ(first.descriptors.size(), 2U);
    if (changes) forget_credentials();
    EXPECT_EQ(client.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
    EXPECT_EQ(take_packet(server.get()).kind,
              changes ? Packet::Kind::descriptors : Packet::Kind::nothing);
  }
}

// Short calls and long ones: those that take a session at hand, and those that look for one.
TEST(Client, AnIdleSessionOfAnotherUserIsNotUsed) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server([](ServerThread& thread, Incoming& incoming) {
    const uid_t user = incoming.caller().uid;
    thread.reply(incoming, std::as_bytes(std::span(&user, 1)));
  });
  for (const std::size_t size : {10U, 10'000U})
    in_child([&, port = server.port.descriptor()] {
      Client client(port);
      const std::vector<std::byte> request(size);
      const auto seen_as = [&] {
        uid_t user = 0;
        CallResults results;
        results.buffer = std::as_writable_bytes(std::span(&user, 1));
        EXPECT_EQ(client.call({.data = request, .descriptors = {}}, results, before_long()),
                  Outcome::ok);
        return user;
      };
      for (int i = 0; i < 3; ++i) EXPECT_EQ(seen_as(), 0U);
      ASSERT_TRUE(become(kNobody));
      forget_credentials();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(seen_as(), kNobody);
    });
}

// Also where the call is so quick that its session is put back without a look at others.
TEST(Client, ASessionInUseClosesWhereTheClientRetiresMeanwhile) {
  std::optional<Client> client;
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (text_of(incoming.data()) == "retire") client->retire();
    thread.reply(incoming, {});
  });
  client.emplace(server.port.descriptor());
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 10; ++k) (void)ask(*client, "stay");
    ASSERT_EQ(server.port.sessions(), 1U);
    (void)ask(*client, "retire");
    ASSERT_TRUE(eventually([&] { return server.port.sessions() == 0; }));
  }
}

TEST(Client, AllIdleSessionsCloseWhereItRetires) {
  std::latch both(2);
  Server server(
      [&](ServerThread& thread, Incoming& incoming) {
        both.arrive_and_wait();
        thread.reply(incoming, {});
      },
      2);
  Client client(server.port.descriptor());
  std::jthread other([&] { EXPECT_EQ(ask(client, "1"), ""); });
  EXPECT_EQ(ask(client, "2"), "");
  other.join();
  ASSERT_EQ(server.port.sessions(), 2U);
  client.retire();
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 0; }));
}

// The kernel says of each id that it is the client's, also where it differs alone.
TEST(Client, SaysAllOfItsIds) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server([](ServerThread& thread, Incoming& incoming) {
    const CallerIdentity& who = *incoming.identity();
    const std::array ids{who.real_uid, who.effective.uid, who.saved_uid,
                         who.real_gid, who.effective.gid, who.saved_gid};
    thread.reply(incoming, std::as_bytes(std::span(ids)));
  });
  constexpr std::size_t kIds = 6;
  for (std::size_t other = 0; other <= kIds; ++other) {
    in_child([&, port = server.port.descriptor()] {
      std::array<uid_t, kIds> ids{};
      if (other < kIds) ids[other] = kNobody;
      ASSERT_EQ(::setresgid(ids[3], ids[4], ids[5]), 0);
      ASSERT_EQ(::setresuid(ids[0], ids[1], ids[2]), 0);
      Client client(port);
      std::array<uid_t, kIds> seen{};
      CallResults results;
      results.buffer = std::as_writable_bytes(std::span(seen));
      ASSERT_EQ(client.call({}, results, before_long()), Outcome::ok);
      EXPECT_EQ(seen, ids) << other;
    });
  }
}

// ---- calls that fail ----

TEST(Client, WhoDoesNotWaitIsToldThatItWouldHaveTo) {
  const auto [server, port] = packet_socket_pair();
  Client client(port.get());
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::now()), Outcome::would_block);
  // Nor where there is no room to ask.
  while (::send(port.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
  }
  Client second(port.get());
  EXPECT_EQ(second.call({}, results, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(second.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
}

TEST(Client, KnowsWhetherACallThatFailedWasDispatched) {
  Server server([](ServerThread&, Incoming& incoming) { incoming.refuse(EDOM); });
  Client client(server.port.descriptor());
  CallResults results;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { client.call({}, results, before_long()); }), EDOM);
    EXPECT_TRUE(Client::dispatched());
    EXPECT_EQ(error_of([&] {
                client.call({.data = {}, .descriptors = std::array{-1}}, results, before_long());
              }),
              EBADF);
    EXPECT_FALSE(Client::dispatched());
  }
}

// What could not be sent is not waited for by what is sent next: neither where sending failed nor
// where it did not begin, because there is no memory for it.
TEST(Client, SendsAgainWhereNothingHasBeenSent) {
  Server server;
  Client client(server.port.descriptor());
  const std::vector<std::byte> lengthy(100'000);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ask(client, "hello"), "hello");
    EXPECT_EQ(
        error_of([&] { client.send({.data = {}, .descriptors = std::array{-1}}, before_long()); }),
        EBADF);
    EXPECT_EQ(ask(client, "hello"), "hello");
    const rlimit little{.rlim_cur = 4096, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    const int error =
        error_of([&] { client.send({.data = lengthy, .descriptors = {}}, before_long()); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(error, EFBIG);
  }
  EXPECT_EQ(ask(client, "hello"), "hello");
}

// The server would write its answer over what is sent next.
TEST(Client, ASessionWhoseMessageIsJustBeingTakenIsUsedNoMore) {
  const auto [server, port] = packet_socket_pair();
  Client client(port.get());
  ServerEnds ends;
  std::thread taking([&, inner = server.get()] {
    pollfd entry{.fd = inner, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, static_cast<int>(kPatience.count())), 1);
    Packet asked = take_packet(inner);
    ASSERT_EQ(asked.descriptors.size(), 2U);
    const Mapping session = SharedMemory::adopt(std::move(asked.descriptors[0])).map();
    auto& slot = reinterpret_cast<SessionControl*>(session.data())->slot;
    ends = let_in(asked);
    Turn turn;
    ASSERT_TRUE(eventually([&] {
      turn = Turn::unpack(slot.turn);
      return turn.kind == Kind::one_way;
    }));
    turn.kind = Kind::taking;  // and it never answers
    slot.turn = turn.pack();
  });
  EXPECT_EQ(client.send({.data = {}, .descriptors = {}, .until_taken = true}, Deadline::after(2s)),
            Outcome::ok);
  taking.join();
  EXPECT_TRUE(eventually([&] {
    pollfd end{.fd = ends.socket.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&end, 1, 0) == 1;
  }));
}

// A session that has got a part of a request is not used for the next.
TEST(Client, BeginsAnewWhereAPartHasBeenSent) {
  std::atomic<std::size_t> came{0};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    came = incoming.descriptors().size();
    thread.reply(incoming, {});
  });
  Client client(server.port.descriptor());
  std::vector<int> many(kPacketDescriptors + 10, STDERR_FILENO);
  many.back() = -1;
  CallResults results;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(
        error_of([&] { client.call({.data = {}, .descriptors = many}, results, before_long()); }),
        EBADF);
    EXPECT_FALSE(Client::dispatched());
    EXPECT_EQ(
        client.call({.data = {}, .descriptors = std::array{STDERR_FILENO}}, results, before_long()),
        Outcome::ok);
    EXPECT_EQ(came, 1U);
  }
}

TEST(Client, HasNoMoreDescriptorsInACallThanAreTaken) {
  Server server;
  Client client(server.port.descriptor());
  CallResults results;
  const std::vector<int> many(kCallDescriptors + 1, STDERR_FILENO);
  for (const bool known : {false, true}) {
    EXPECT_EQ(
        error_of([&] { client.call({.data = {}, .descriptors = many}, results, before_long()); }),
        ENFILE)
        << known;
    EXPECT_EQ(ask(client, "hello"), "hello");
  }
}

// However far it comes: the server's answer needs one, too.
TEST(Client, WithoutDescriptorsForASessionIsToldSo) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  Server server;
  in_child([port = server.port.descriptor()] {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const UniqueFd next(::dup(STDERR_FILENO));
    int failures = 0;
    int error = EMFILE;
    for (rlim_t more = 1; error != 0 && more < 20; ++more) {
      limit.rlim_cur = static_cast<rlim_t>(next.get()) + more;
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      error = error_of([&] {
        Client client(port);
        CallResults results;
        EXPECT_EQ(client.call({}, results, before_long()), Outcome::ok) << more;
      });
      EXPECT_TRUE(error == 0 || error == EMFILE) << std::strerror(error) << " with " << more;
      failures += error != 0 ? 1 : 0;
    }
    EXPECT_EQ(error, 0);
    EXPECT_GT(failures, 3);
  });
}

TEST(Client, KnowsNoTermsOfAPortThatHasClosed) {
  Server server;
  Client client(server.port.descriptor());
  Terms terms{};
  EXPECT_EQ(ask(client, "hello"), "hello");
  EXPECT_EQ(client.terms(terms, before_long()), Outcome::ok);
  server.port.close();
  // A thread that has served it may still look for its next request.
  EXPECT_TRUE(eventually([&] { return client.terms(terms, before_long()) == Outcome::peer_gone; }));
}

// A signal that a call has been told of, and stays in spite of, does not end it again.
TEST(Client, StaysInSpiteOfOneSignalOnce) {
  struct Policy final : RetryPolicy {
    bool stay(Outcome outcome, Deadline&) override {
      EXPECT_EQ(outcome, Outcome::interrupted);
      ++times;
      return true;
    }
    [[nodiscard]] bool before_dispatch() const noexcept override { return true; }
    int times = 0;
  } policy;
  Server server([](ServerThread& thread, Incoming& incoming) {
    std::this_thread::sleep_for(50ms);
    thread.reply(incoming, {});
  });
  Client client(server.port.descriptor());
  CallResults results;
  ASSERT_EQ(client.call({}, results, before_long()), Outcome::ok) << "it has a session";
  const SignalCount since = SignalCount::now();
  note_signal();
  const CallArguments arguments{.data = {}, .descriptors = {}, .retry_policy = &policy};
  EXPECT_EQ(client.call(arguments, results, before_long(), since), Outcome::ok);
  EXPECT_EQ(policy.times, 1);
}

// ---- what a server takes ----

// Short requests lie in what they were taken with.
TEST(Request, IsMovedWithItsData) {
  Port port;
  const int descriptor = port.descriptor();
  std::array<RawSession, 2> sessions{RawSession(descriptor), RawSession(descriptor)};
  ServerThread thread(port);
  Incoming incoming;
  std::vector<Incoming> kept;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    RawSession& session = sessions[i];
    ASSERT_TRUE(session.welcome());
    const std::string text = "number " + std::to_string(i);
    std::memcpy(session.control().slot.data, text.data(), text.size());
    session.give(Kind::request, 1, static_cast<std::uint16_t>(text.size()));
    ASSERT_EQ(thread.receive(incoming, before_long()), Outcome::ok);
    kept.push_back(std::move(incoming));
  }
  for (std::size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(text_of(kept[i].data()), "number " + std::to_string(i));
}

TEST(Request, ThatWantsNoReplyIsTakenOnlyWhereAPortSaysSo) {
  for (const bool one_way : {true, false}) {
    std::atomic<int> served{0};
    Server server(
        [&](ServerThread& thread, Incoming& incoming) {
          if (incoming.wants_reply())
            thread.reply(incoming, {});
          else
            ++served;
        },
        1, WaitMode::adaptive, {.one_way = one_way});
    Client client(server.port.descriptor());
    // That it has been looked at does not mean that it is served.
    (void)client.send({.data = {}, .descriptors = {}, .until_taken = true}, before_long());
    EXPECT_TRUE(eventually([&] { return served == (one_way ? 1 : 0); }));
    EXPECT_TRUE(eventually([&] { return server.port.sessions() == (one_way ? 1 : 0); }));
    Client other(server.port.descriptor());
    EXPECT_EQ(ask(other, ""), "");
    EXPECT_EQ(served, one_way ? 1 : 0);
  }
}

// Nobody is left with what has come with it.
TEST(Request, ThatIsNotTakenLeavesNothingOfWhatHasComeWithIt) {
  Port port({.one_way = false});
  ServerThread thread(port);
  Incoming incoming;
  std::thread sender([&port, descriptor = port.descriptor()] {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    Client client(descriptor);
    EXPECT_EQ(client.send({.data = {}, .descriptors = std::array{write_end.get()}}, before_long()),
              Outcome::ok);
    write_end.reset();
    pollfd end{.fd = read_end.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&end, 1, static_cast<int>(kPatience.count())), 1);
    EXPECT_EQ(end.revents, POLLHUP);
    port.close();
  });
  EXPECT_EQ(thread.receive(incoming, Deadline::after(2 * kPatience)), Outcome::finished);
  sender.join();
}

}  // namespace
}  // namespace farcall::call::test
