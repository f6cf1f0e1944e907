// SPDX-License-Identifier: Apache-2.0
//
// Calls whose reply is taken later, by who polls for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "harness/child.hpp"

namespace farcall::call::test {
namespace {

// For as long as it lives, this process may not have so much of that.
class Lowered {
 public:
  Lowered(__rlimit_resource resource, rlim_t most) : resource_(resource) {
    EXPECT_EQ(::getrlimit(resource, &before_), 0);
    const rlimit little{.rlim_cur = most, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(resource, &little), 0);
  }
  ~Lowered() { EXPECT_EQ(::setrlimit(resource_, &before_), 0); }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_{};
};

// What another session would need.
std::string ask_without_descriptors(Client& client, std::string_view question) {
  const Lowered none(RLIMIT_NOFILE, 3);
  return ask(client, question);
}

TEST(AsyncCall, BringsAllThatItWasGivenHoweverItIsSent) {
  std::atomic<std::int32_t> word{0};
  std::atomic<int> priority{0};
  std::atomic<std::uint32_t> origin{0};
  std::atomic<int> written{0};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    word = incoming.word();
    priority = incoming.priority();
    origin = incoming.origin();
    for (const UniqueFd& fd : incoming.descriptors())
      if (::write(fd.get(), "x", 1) == 1) ++written;
    thread.reply(incoming, {});
  });
  Client client(server.port.descriptor());
  for (const int sent : {7, 8}) {  // at once only where there is a session
    UniqueFd file(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    const int number = file.get();
    AsyncCall call(client, {.data = bytes_of("hello"),
                            .descriptors = std::span(&number, 1),
                            .word = -sent,
                            .priority = static_cast<std::uint8_t>(sent),
                            .origin = static_cast<std::uint32_t>(sent) << 16});
    file.reset();  // it stays the caller's
    CallResults results;
    written = 0;
    EXPECT_EQ(call.take(results, before_long(), SignalCount::now()), Outcome::ok);
    EXPECT_EQ(word, -sent);
    EXPECT_EQ(priority, sent);
    EXPECT_EQ(origin, static_cast<std::uint32_t>(sent) << 16);
    EXPECT_EQ(written, 1);
  }
}

TEST(AsyncCall, RefusesMoreDescriptorsThanACallMayHave) {
  Server server;
  Client client(server.port.descriptor());
  const std::vector<int> many(kCallDescriptors + 1, STDIN_FILENO);
  EXPECT_EQ(error_of([&] {
              const AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = many});
            }),
            ENFILE);
}

TEST(AsyncCall, WithoutADescriptorForTheServersAnswerIsToldSo) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  Server server;
  in_child([port = server.port.descriptor()] {
    Client client(port);
    AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = {}});
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 3;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    CallResults results;
    EXPECT_EQ(error_of([&] { call.take(results, before_long(), SignalCount::now()); }), EMFILE);
  });
}

// What was sent one way and has not been taken yet is taken before it, and not written over.
TEST(AsyncCall, LeavesWhatWasSentOneWayToBeTaken) {
  Port port;
  Client client(port.descriptor());
  ASSERT_EQ(client.send({.data = bytes_of("first"), .descriptors = {}}, before_long()),
            Outcome::ok);
  AsyncCall call(client, {.data = bytes_of("second"), .descriptors = {}});
  ServerThread thread(port);
  Incoming incoming;
  ASSERT_EQ(thread.receive(incoming, before_long()), Outcome::ok);
  EXPECT_FALSE(incoming.wants_reply());
  EXPECT_EQ(text_of(incoming.data()), "first");
  std::vector<std::byte> buffer(20);
  CallResults results;
  results.buffer = buffer;
  std::jthread caller(
      [&] { EXPECT_EQ(call.take(results, before_long(), SignalCount::now()), Outcome::ok); });
  EXPECT_EQ(thread.receive(incoming, before_long()), Outcome::ok);
  EXPECT_EQ(text_of(incoming.data()), "second");
  EXPECT_EQ(thread.reply(incoming, bytes_of("done")), Outcome::ok);
  caller.join();
  EXPECT_EQ(text_of(results.data), "done");
}

TEST(AsyncCall, IsPolledForTheServersAnswerAndThenForTheReply) {
  const auto [server, port] = packet_socket_pair();
  Client client(port.get());
  AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = {}});
  EXPECT_EQ(call.prepare_poll(), Outcome::would_block);
  call.finish_poll();
  Packet asked = take_packet(server.get());
  ASSERT_EQ(asked.descriptors.size(), 2U);
  const ServerEnds ends = let_in(asked);
  EXPECT_EQ(call.prepare_poll(), Outcome::ok);
  call.finish_poll();
  CallResults results;
  EXPECT_EQ(call.take(results, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(call.prepare_poll(), Outcome::would_block) << "there is no reply";
  call.finish_poll();
}

TEST(AsyncCall, IsNotBegunWhereThePortIsFull) {
  const auto [server, port] = packet_socket_pair();
  while (::send(port.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
  }
  Client client(port.get());
  EXPECT_EQ(error_of([&] {
              const AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = {}},
                                   Deadline::after(1ms));
            }),
            EAGAIN);
}

// Neither where it is asked before there is a session nor where there is one.
TEST(AsyncCall, IsNotSentWhereItIsNotAdmitted) {
  struct Never final : Admission {
    int admit(LiveTerms) override { return EPERM; }
  } never;
  std::atomic<int> served{0};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (!incoming.data().empty()) ++served;
    thread.reply(incoming, {});
  });
  const CallArguments arguments{.data = bytes_of("hello"), .descriptors = {}, .admission = &never};
  CallResults results;
  Client client(server.port.descriptor());
  AsyncCall call(client, arguments);
  EXPECT_EQ(error_of([&] { call.take(results, before_long()); }), EPERM);
  EXPECT_FALSE(call.dispatched());
  EXPECT_EQ(ask_without_descriptors(client, ""), "") << "the session is kept";
  EXPECT_EQ(error_of([&] { const AsyncCall other(client, arguments); }), EPERM);
  EXPECT_EQ(ask_without_descriptors(client, ""), "") << "the session is kept";
  EXPECT_EQ(served, 0);
}

TEST(AsyncCall, ThatIsRefusedWasDispatchedAndLeavesItsSession) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  Server server([](ServerThread&, Incoming& incoming) { incoming.refuse(EDOM); });
  Client client(server.port.descriptor());
  CallResults results;
  AsyncCall call(client, {.data = bytes_of("hello"), .descriptors = {}});
  EXPECT_EQ(error_of([&] { call.take(results, before_long()); }), EDOM);
  EXPECT_TRUE(call.dispatched());
  const Lowered none(RLIMIT_NOFILE, 3);
  EXPECT_EQ(error_of([&] { client.call({}, results, before_long()); }), EDOM);
}

TEST(AsyncCall, OfWhichNothingHasBeenSentLeavesItsSession) {
  Server server;
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, "hello"), "hello");
  const std::vector<std::byte> lengthy(100'000);
  {
    const Lowered little(RLIMIT_FSIZE, 4096);
    EXPECT_EQ(error_of([&] { const AsyncCall call(client, {.data = lengthy, .descriptors = {}}); }),
              EFBIG);
  }
  EXPECT_EQ(ask_without_descriptors(client, "hello"), "hello");
}

}  // namespace
}  // namespace farcall::call::test
