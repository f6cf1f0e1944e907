// SPDX-License-Identifier: Apache-2.0
//
// The end of a port, whatever its threads are doing.
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <future>
#include <memory>

#include "call/port.hpp"
#include "call/raw.hpp"
#include "call/server.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using test::bytes_of;

// Closes its port while a thread of it is about to queue a client that it has found.
class Closing final : public EndpointOwner {
 public:
  explicit Closing(Port& port) : port_(port) {}
  std::uint8_t bounded(std::uint8_t claimed, const Credentials&, std::uint32_t) noexcept override {
    if (armed.exchange(false)) port_.close();
    return claimed;
  }

  std::atomic<bool> armed{false};

 private:
  Port& port_;
};

// A client that sleeps on its futex hears nothing of a socket that closes.
TEST(CallClose, WakesAClientWhoseCallIsDropped) {
  test::Server server([](ServerThread&, Incoming& incoming) { incoming = Incoming(); });
  call::test::RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  WaitState& client = session.control().client;
  client.parked = WaitState::kOnFutex;
  session.give(call::Kind::request, 1);
  EXPECT_TRUE(test::eventually([&] { return session.ended(); }));
  EXPECT_EQ(client.parked, WaitState::kAwake);
  EXPECT_EQ(session.control().server.state, WaitState::kFinished);
}

TEST(CallClose, EndsTheWaitOfAClientThatIsJustBeingQueued) {
  Port port({.by_priority = true});
  const auto owner = std::make_shared<Closing>(port);
  const auto endpoint = port.open_endpoint(owner, {});
  const UniqueFd branch = endpoint->branch();
  const auto call = [&] {
    Client client(branch.get());
    CallResults results;
    return client.call({.data = bytes_of("x"), .descriptors = {}, .priority = 9}, results,
                       Deadline::after(20s));
  };
  auto one = std::async(std::launch::async, call);
  auto other = std::async(std::launch::async, call);
  const Deadline soon = Deadline::after(10s);
  while (port.waiting().size() < 2 && monotonic_ns() < soon.at()) std::this_thread::sleep_for(1ms);
  owner->armed = true;
  ServerThread thread(port);
  Incoming incoming;
  EXPECT_EQ(thread.receive(incoming, soon), Outcome::finished);
  EXPECT_FALSE(owner->armed);
  EXPECT_EQ(one.get(), Outcome::peer_gone);
  EXPECT_EQ(other.get(), Outcome::peer_gone);
}

// What it has sent one way would still be taken, were it not for the end.
TEST(CallClose, EndsTheSessionOfAClientThatIsFoundTogetherWithTheEnd) {
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  const UniqueFd branch = endpoint->branch();
  call::test::RawSession session(branch.get());
  ASSERT_TRUE(session.welcome());
  session.give(call::Kind::one_way, 1);
  // As far as it comes before it looks for sessions.
  call::PortState& state = *call::inside(*endpoint).port;
  state.closed = true;
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(state.closing.get(), &one, sizeof one), ssize_t{sizeof one});
  Outcome outcome = Outcome::ok;
  EXPECT_FALSE(state.next(Deadline::now(), outcome, {}));
  EXPECT_EQ(outcome, Outcome::finished);
  EXPECT_EQ(port.sessions(), 0U);
  EXPECT_TRUE(session.ended());
  endpoint->close();
}

// Who holds it from before the end learns of that, and so does who gets one afterwards.
TEST(CallClose, EveryWayToAnEndpointIsClosedWithIt) {
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  const UniqueFd before = endpoint->branch();
  endpoint->close();
  const UniqueFd afterwards = endpoint->branch();
  for (const int way : {before.get(), afterwards.get()}) {
    Client client(way);
    CallResults results;
    EXPECT_EQ(client.call({}, results, Deadline::after(20s)), Outcome::peer_gone);
    EXPECT_FALSE(Client::dispatched());
  }
  EXPECT_EQ(port.sessions(), 0U);
}

// Who polls is told of what waits, and not of what has been taken.
TEST(CallPoll, NothingIsToldOfWhatHasBeenTaken) {
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  ServerThread thread(port);
  Incoming incoming;
  const auto told = [&] {
    pollfd any{.fd = port.poll_descriptor(), .events = POLLIN, .revents = 0};
    return ::poll(&any, 1, 0) == 1;
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(told());
    for (int i = 0; i < 2; ++i) port.post(endpoint, 1);
    EXPECT_TRUE(told());
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(thread.receive(incoming, Deadline::now()), Outcome::ok);
      EXPECT_TRUE(incoming.notice());
    }
    EXPECT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
  }
  EXPECT_FALSE(told());
}

class Silent final : public Source {
 public:
  std::size_t on_readable() noexcept override { return 0; }
};

// What cannot be listened to is not kept, and what is forgotten is kept no longer.
TEST(CallClose, NothingIsKeptOfWhatIsNotListenedTo) {
  Port port;
  auto source = std::make_shared<Silent>();
  const std::weak_ptr<Silent> kept = source;
  EXPECT_THROW(port.listen(-1, std::move(source), ::geteuid(), 0), SystemError);
  EXPECT_TRUE(kept.expired());
  auto other = std::make_shared<Silent>();
  const std::weak_ptr<Silent> listened = other;
  const auto [here, there] = packet_socket_pair();
  const std::uint64_t number = port.listen(here.get(), std::move(other), ::geteuid(), 0);
  EXPECT_FALSE(listened.expired());
  port.forget(here.get(), number);
  EXPECT_TRUE(listened.expired());
}

TEST(CallClose, NothingIsKeptOfNoticesThatNobodyHasTaken) {
  std::weak_ptr<Endpoint> kept;
  {
    Port port;
    const auto endpoint = port.open_endpoint({}, {});
    kept = endpoint;
    port.post(endpoint);
  }
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace farcall
