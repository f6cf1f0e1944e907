// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is at a port with one thread. The test is that thread, so that nobody is served
// before all wait; what is counted is turns.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "call/raw.hpp"
#include "farcall/call.hpp"

namespace farcall::call::test {
namespace {

const uid_t kStranger = kNobody;
const uid_t kHonest = kNobody + 1;

struct CallFairness : ::testing::Test {
  explicit CallFairness(const PortLimits& limits = {}) : port(limits) {}

  Port port;
  ServerThread thread{port};
  Incoming incoming;
  int descriptor = port.descriptor();

  void SetUp() override { give_up_after(std::chrono::seconds(60)); }
  // A process of that user that asks through so many sessions at once.
  Child asking(uid_t user, int sessions, Event& asked) const {
    return Child([this, user, sessions, &asked] {
      ASSERT_TRUE(become(user));
      std::deque<RawSession> all;
      for (int i = 0; i < sessions; ++i) ASSERT_TRUE(all.emplace_back(descriptor).welcome());
      for (RawSession& session : all) session.give(Kind::request, 1, 5);
      asked.happens();
      for (;;) ::pause();
    });
  }
  void receive() { ASSERT_EQ(thread.receive(incoming, Deadline::after(kPatience)), Outcome::ok); }
  // Serves whoever's turn it is.
  uid_t serve(std::chrono::milliseconds time = 0ms) {
    receive();
    if (HasFatalFailure()) return 0;
    std::this_thread::sleep_for(time);
    const uid_t user = incoming.caller().uid;
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
    return user;
  }
  int turns_before(uid_t user, std::chrono::milliseconds time = 0ms) {
    int turns = 0;
    while (!HasFatalFailure() && serve(time) != user) ++turns;
    return turns;
  }
};

TEST_F(CallFairness, ManySessionsOfOneUserTakeTurnsWithOneOfAnother) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr int kSessions = 60;
  const Shared<Event> asked;
  Child crowd = asking(kStranger, kSessions, *asked);
  ASSERT_TRUE(asked->wait());
  // So much more than what it costs to let the other one in, even if that is interrupted.
  EXPECT_EQ(serve(50ms), kStranger);
  Child client = asking(kHonest, 1, *asked);
  ASSERT_TRUE(asked->wait());
  EXPECT_LE(turns_before(kHonest), 2);
  for (int i = 1; i < kSessions - 2; ++i) EXPECT_EQ(serve(), kStranger);
}

TEST_F(CallFairness, WhoAsksWithoutPauseIsNotServedUntilOthersHaveBeen) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const Shared<Event> asked;
  Child hot([&] {
    ASSERT_TRUE(become(kStranger));
    RawSession session(descriptor);
    ASSERT_TRUE(session.welcome());
    for (std::uint32_t number = 1;; ++number) {
      session.give(Kind::request, number, 5);
      if (number == 1) asked->happens();
      while (session.turn().kind != Kind::reply) std::this_thread::yield();
    }
  });
  ASSERT_TRUE(asked->wait());
  EXPECT_EQ(serve(), kStranger);
  Child client = asking(kHonest, 1, *asked);
  ASSERT_TRUE(asked->wait());
  // Each serve takes more than a turn.
  EXPECT_LE(turns_before(kHonest, 1ms), 2);
}

// Asks for the whole of that memory to be copied.
void give_all(RawSession& session, const SharedMemory& memory, Kind kind = Kind::request,
              std::span<const int> descriptors = {}) {
  send_descriptors(session.socket.get(), std::array{memory.fd()}, kPurposeData);
  if (!descriptors.empty()) send_descriptors(session.socket.get(), descriptors, kPurposeData);
  const std::uint64_t bytes = memory.size();
  std::memcpy(session.control().slot.data, &bytes, sizeof bytes);
  const int flags = kTransfer | kTransferComes | (descriptors.empty() ? 0 : kDescriptors);
  session.give(kind, 1, 0, static_cast<std::uint8_t>(flags));
}

constexpr std::size_t kLong = std::size_t{16} << 20;

TEST_F(CallFairness, ALongRequestIsCopiedWhileOthersAreServed) {
  const SharedMemory memory = SharedMemory::create(kLong);
  {
    const Mapping mapping = memory.map();
    for (std::size_t i = 0; i < kLong; i += 4096) mapping.data()[i] = std::byte(i >> 12);
  }
  RawSession large(descriptor);
  RawSession small(descriptor);
  ASSERT_TRUE(large.welcome());
  ASSERT_TRUE(small.welcome());
  give_all(large, memory);
  small.give(Kind::request, 1, 5);
  receive();
  ASSERT_EQ(incoming.data().size(), 5U) << "the small one is served before the copy is whole";
  // What its client does to the slot meanwhile makes no difference.
  large.control().slot.extra = -1;
  std::memset(large.control().slot.data, 0xff, 8);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  receive();
  ASSERT_EQ(incoming.data().size(), kLong);
  EXPECT_EQ(incoming.word(), 0);
  for (std::size_t i = 0; i < kLong; i += 4096)
    ASSERT_EQ(incoming.data()[i], std::byte(i >> 12)) << i;
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  EXPECT_TRUE(large.answered(1));
}

TEST_F(CallFairness, ALongRequestKeepsItsDescriptorsWhileOthersAreServed) {
  const SharedMemory memory = SharedMemory::create(kLong);
  RawSession large(descriptor);
  RawSession small(descriptor);
  ASSERT_TRUE(large.welcome());
  ASSERT_TRUE(small.welcome());
  give_all(large, memory, Kind::request, std::array{STDERR_FILENO});
  small.give(Kind::request, 1, 5);
  receive();
  ASSERT_EQ(incoming.data().size(), 5U);
  EXPECT_TRUE(incoming.descriptors().empty());
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  receive();
  ASSERT_EQ(incoming.data().size(), kLong);
  EXPECT_EQ(incoming.descriptors().size(), 1U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
}

TEST_F(CallFairness, OfOneUsersLongRequestsFewAreCopiedAtATime) {
  std::deque<SharedMemory> memories;
  std::deque<RawSession> large;
  for (std::size_t i = 0; i < 4; ++i) {
    memories.push_back(SharedMemory::create(kLong + i * page_size()));
    ASSERT_TRUE(large.emplace_back(descriptor).welcome());
  }
  RawSession small(descriptor);
  ASSERT_TRUE(small.welcome());
  for (std::size_t i = 0; i < 4; ++i) give_all(large[i], memories[i]);
  small.give(Kind::request, 1, 5);
  // The first one lets those go first who wait. Of these, none of the long ones does so: or there
  // would soon be as many copies as there are requests.
  for (const std::size_t size : {memories[1].size(), memories[2].size(), memories[3].size(),
                                 std::size_t{5}, memories[0].size()}) {
    receive();
    EXPECT_EQ(incoming.data().size(), size);
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  }
}

TEST_F(CallFairness, AClientMayGoWhileItsRequestIsBeingCopied) {
  RawSession small(descriptor);
  ASSERT_TRUE(small.welcome());
  {
    const SharedMemory memory = SharedMemory::create(kLong);
    RawSession large(descriptor);
    ASSERT_TRUE(large.welcome());
    give_all(large, memory);
    small.give(Kind::request, 1, 5);
    receive();
    ASSERT_EQ(incoming.data().size(), 5U);
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  }
  small.give(Kind::request, 2, 4);
  receive();
  // Whichever is first: that of who has gone may have been copied before that was known.
  if (incoming.data().size() != 4U) {
    (void)thread.reply(incoming, {});
    receive();
  }
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  EXPECT_TRUE(eventually([&] {
    (void)thread.receive(incoming, Deadline::now());
    return port.sessions() == 1;
  }));
}

TEST_F(CallFairness, WhatHasBeenCopiedInPartWhenThePortClosesHasNotBeenDispatched) {
  const SharedMemory memory = SharedMemory::create(kLong);
  RawSession large(descriptor);
  RawSession small(descriptor);
  ASSERT_TRUE(large.welcome());
  ASSERT_TRUE(small.welcome());
  give_all(large, memory);
  small.give(Kind::request, 1, 5);
  receive();
  ASSERT_EQ(incoming.data().size(), 5U);
  EXPECT_EQ(small.control().taken, 1U);
  port.close();
  EXPECT_TRUE(eventually([&] { return large.ended(); }));
  EXPECT_EQ(large.control().taken, 0U) << "its client would believe that it may have been served";
}

TEST_F(CallFairness, WhatHasBeenSentOneWayIsCopiedToTheEndWhenItsClientHasGone) {
  RawSession small(descriptor);
  ASSERT_TRUE(small.welcome());
  {
    const SharedMemory memory = SharedMemory::create(kLong);
    RawSession large(descriptor);
    ASSERT_TRUE(large.welcome());
    give_all(large, memory, Kind::one_way);
    small.give(Kind::request, 1, 5);
    receive();
    ASSERT_EQ(incoming.data().size(), 5U);
  }
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  receive();
  EXPECT_EQ(incoming.data().size(), kLong);
  EXPECT_FALSE(incoming.wants_reply());
  EXPECT_TRUE(eventually([&] {
    (void)thread.receive(incoming, Deadline::now());
    return port.sessions() == 1;
  }));
}

struct CallFairnessUnconfirmed : CallFairness {
  // So short a time that whoever waits for it at all finds it over.
  CallFairnessUnconfirmed() : CallFairness({.patience = 1ns}) {}
};

TEST_F(CallFairnessUnconfirmed, AThreadThatOthersNeedDoesNotBeginToWaitForAConfirmation) {
  RawSession silent(descriptor);
  RawSession other(descriptor);
  ASSERT_TRUE(silent.welcome());
  ASSERT_TRUE(other.welcome());
  silent.give(Kind::request, 1, 5);
  receive();
  other.give(Kind::request, 1, 4);
  EXPECT_EQ(thread.reply(incoming, {}, std::array{STDERR_FILENO}), Outcome::ok);
  receive();
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  EXPECT_FALSE(silent.ended());
}

// What a client sends beside its requests.
class Signals final : public Source, public EndpointOwner {
 public:
  explicit Signals(Port& port) : port_(port) {}
  std::size_t on_readable() noexcept override {
    std::uint64_t count = 0;
    if (::read(fd.get(), &count, sizeof count) < 0) return 0;
    for (; count != 0; --count) port_.post(endpoint, kPriority);
    return 0;
  }
  bool take_sent_before(const Credentials&) noexcept override {
    on_readable();
    return true;
  }
  void send() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(fd.get(), &one, sizeof one), 8);
  }

  static constexpr std::uint8_t kPriority = 20;
  const UniqueFd fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::shared_ptr<Endpoint> endpoint;

 private:
  Port& port_;
};

TEST_F(CallFairness, TimeThatANoticeTakesIsThatOfWhoSentIt) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::int64_t begun = monotonic_ns();
  const Shared<Event> asked;
  Child crowd = asking(kHonest, 30, *asked);
  ASSERT_TRUE(asked->wait());
  const auto endpoint = port.open_endpoint({}, {});
  for (int i = 0; i < 2; ++i) port.post(endpoint, 0, kStranger);
  const auto requests_before_notice = [&] {
    int requests = 0;
    for (receive(); !HasFatalFailure() && !incoming.notice(); receive(), ++requests)
      EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
    return requests;
  };
  (void)requests_before_notice();
  // What the server does about the first: longer than it took to let the others in.
  constexpr auto kWork = 100ms;
  std::this_thread::sleep_for(kWork + std::chrono::nanoseconds(monotonic_ns() - begun));
  const std::int64_t since = monotonic_ns();
  const int requests = requests_before_notice();
  // Fewer where serving them took as long, by a thread that was kept from the processor.
  EXPECT_TRUE(requests >= 10 || monotonic_ns() - since > std::chrono::nanoseconds(kWork).count())
      << requests;
}

// With the priority at which its descriptor waits.
struct CallFairnessByPriority : CallFairness, ::testing::WithParamInterface<std::uint8_t> {
  CallFairnessByPriority() : CallFairness({.by_priority = true}) {}
};
INSTANTIATE_TEST_SUITE_P(Each, CallFairnessByPriority,
                         ::testing::Values(0, Signals::kPriority, Signals::kPriority + 1));

TEST_P(CallFairnessByPriority, ARequestDoesNotOvertakeWhatHasToWaitForItsUsersTurn) {
  const auto signals = std::make_shared<Signals>(port);
  signals->endpoint = port.open_endpoint(signals, {});
  const UniqueFd way_in = signals->endpoint->branch();
  RawSession session(way_in.get());
  ASSERT_TRUE(session.welcome());
  const std::uint64_t source = port.listen(signals->fd.get(), signals, ::geteuid(), GetParam());
  session.control().slot.extra = Signals::kPriority;
  session.give(Kind::request, 1, 5);
  receive();
  // It has had so much time now that what its client sends otherwise is not listened to at once.
  std::this_thread::sleep_for(5ms);
  signals->send();
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  session.control().slot.extra = Signals::kPriority;
  session.give(Kind::request, 2, 4, kAfterOthers);
  receive();
  EXPECT_TRUE(incoming.notice());
  receive();
  EXPECT_FALSE(incoming.notice());
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  // Nor is it lost later.
  signals->send();
  receive();
  EXPECT_TRUE(incoming.notice());
  port.forget(signals->fd.get(), source);
}

// What is readable, and brings nothing.
class Quiet final : public Source {
 public:
  std::size_t on_readable() noexcept override {
    std::uint64_t count = 0;
    (void)!::read(fd.get(), &count, sizeof count);
    return 0;
  }
  const UniqueFd fd{::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST(CallFairnessOfMany, ARequestIsNotLostBehindAsManyDescriptorsAsAreServedAtATime) {
  give_up_after(std::chrono::seconds(60));
  constexpr std::size_t kAtATime = 64;  // with the request
  Port port({.by_priority = true});
  ServerThread thread(port);
  Incoming incoming;
  const auto signals = std::make_shared<Signals>(port);
  signals->endpoint = port.open_endpoint(signals, {});
  const UniqueFd way_in = signals->endpoint->branch();
  RawSession session(way_in.get());
  ASSERT_TRUE(session.welcome());
  session.give(Kind::request, 1, 5);
  ASSERT_EQ(thread.receive(incoming, Deadline::after(kPatience)), Outcome::ok);
  // It has had so much time now that what its client sends otherwise is not listened to at once.
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  thread.leave();
  std::vector<std::shared_ptr<Quiet>> all(kAtATime - 1);
  std::vector<std::uint64_t> sources;
  for (auto& one : all) {
    one = std::make_shared<Quiet>();
    sources.push_back(port.listen(one->fd.get(), one, ::geteuid(), 0));
  }
  session.give(Kind::request, 2, 4, kAfterOthers);
  ASSERT_EQ(thread.receive(incoming, Deadline::after(kPatience)), Outcome::ok);
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  for (std::size_t i = 0; i < all.size(); ++i) port.forget(all[i]->fd.get(), sources[i]);
}

TEST_F(CallFairness, WhoRingsInVainAgainAndAgainIsListenedToMoreSeldom) {
  RawSession idle(descriptor);
  RawSession other(descriptor);
  ASSERT_TRUE(idle.welcome());
  ASSERT_TRUE(other.welcome());
  const auto ring = [&] { (void)!::send(idle.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); };
  constexpr int kRings = 2000;
  int woken = 0;
  for (int i = 0; i < kRings; ++i) {
    ring();
    pollfd any{.fd = port.poll_descriptor(), .events = POLLIN, .revents = 0};
    woken += ::poll(&any, 1, 0);
    ASSERT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
  }
  EXPECT_LT(woken, kRings / 10);
  EXPECT_GT(woken, 0);
  other.give(Kind::request, 1, 4);
  receive();
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  // It is answered in the end, and once it has asked as well as anybody.
  for (std::uint32_t number = 1; number < 4; ++number) {
    idle.give(Kind::request, number, 5);
    receive();
    EXPECT_EQ(incoming.data().size(), 5U);
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  }
}

TEST_F(CallFairness, WhoRingsWhileItWaitsForItsTurnIsListenedToMoreSeldom) {
  RawSession waiting(descriptor);
  ASSERT_TRUE(waiting.welcome());
  waiting.give(Kind::request, 1, 5);
  receive();  // which is not answered
  int woken = 0;
  constexpr int kRings = 2000;
  Incoming none;
  ServerThread second(port);
  for (int i = 0; i < kRings; ++i) {
    (void)!::send(waiting.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    pollfd any{.fd = port.poll_descriptor(), .events = POLLIN, .revents = 0};
    woken += ::poll(&any, 1, 0);
    ASSERT_EQ(second.receive(none, Deadline::now()), Outcome::would_block);
  }
  EXPECT_LT(woken, kRings / 10);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  waiting.give(Kind::request, 2, 4);
  receive();
  EXPECT_EQ(incoming.data().size(), 4U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
}

// Several rest at a time, each until a moment of its own, and none for long.
TEST_F(CallFairness, EachThatHasRungInVainIsListenedToAgainBeforeLong) {
  constexpr std::size_t kSessions = 8;
  std::deque<RawSession> sessions;
  while (sessions.size() < kSessions) ASSERT_TRUE(sessions.emplace_back(descriptor).welcome());
  const auto rests = [&](const RawSession& session) {
    (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    pollfd any{.fd = port.poll_descriptor(), .events = POLLIN, .revents = 0};
    const bool told = ::poll(&any, 1, 0) != 0;
    EXPECT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
    return !told;
  };
  for (const RawSession& session : sessions)
    ASSERT_TRUE(eventually([&] { return rests(session); }));
  for (const RawSession& session : sessions) session.give(Kind::request, 1, 5);
  for (std::size_t i = 0; i < kSessions; ++i) {
    ASSERT_EQ(thread.receive(incoming, Deadline::after(5s)), Outcome::ok) << i;
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  }
}

TEST_F(CallFairness, WhoHasRestedOnceRestsAgain) {
  RawSession session(descriptor);
  ASSERT_TRUE(session.welcome());
  const auto rests = [&] {
    (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    pollfd any{.fd = port.poll_descriptor(), .events = POLLIN, .revents = 0};
    const bool told = ::poll(&any, 1, 0) != 0;
    EXPECT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
    return !told;
  };
  for (int times = 0; times < 3; ++times) {
    EXPECT_TRUE(eventually(rests)) << times;
    EXPECT_TRUE(eventually([&] { return !rests(); })) << times;
  }
}

// Such words are for ports that listen to them.
TEST_F(CallFairness, WhoCallsItselfUrgentIsNotServedFirst) {
  RawSession first(descriptor);
  RawSession second(descriptor);
  ASSERT_TRUE(first.welcome());
  ASSERT_TRUE(second.welcome());
  first.give(Kind::request, 1, 5);
  second.control().slot.extra = INT64_MAX;
  second.give(Kind::request, 1, 4);
  for (const std::size_t expected : {5U, 4U}) {
    receive();
    EXPECT_EQ(incoming.data().size(), expected);
    EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  }
}

}  // namespace
}  // namespace farcall::call::test
