// SPDX-License-Identifier: Apache-2.0
//
// What a server answers to who asks for a session.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>

#include "call/raw.hpp"
#include "call/server.hpp"

namespace farcall::call::test {
namespace {

// By hand. Returns what the call comes to: an outcome, or an errno.
template <class Answer>
std::pair<Outcome, int> call_of_server(Answer answer) {
  const auto [server, port] = packet_socket_pair();
  Client client(port.get());
  CallResults results;
  // It has asked, and goes on with that the next time.
  EXPECT_EQ(client.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
  Packet asked = take_packet(server.get());
  EXPECT_EQ(asked.descriptors.size(), 2U);
  const Mapping session = SharedMemory::adopt(std::move(asked.descriptors[0])).map();
  answer(*reinterpret_cast<SessionControl*>(session.data()), asked.descriptors[1].get());
  Outcome outcome = Outcome::ok;
  const int error = error_of([&] { outcome = client.call({}, results, Deadline::after(100ms)); });
  EXPECT_FALSE(Client::dispatched());
  return {outcome, error};
}

TEST(SessionAnswer, ARefusalIsAnErrno) {
  const auto refused = [](std::uint32_t error) {
    return call_of_server([error](SessionControl& control, int answers) {
      control.terms.refusal = error;
      send_descriptors(answers, {});
    });
  };
  EXPECT_EQ(refused(EAGAIN), std::pair(Outcome::ok, EAGAIN));
  EXPECT_EQ(refused(EHWPOISON), std::pair(Outcome::ok, EHWPOISON));
  for (const std::uint32_t none : {0U, EHWPOISON + 1U, 512U, ~0U})
    EXPECT_EQ(refused(none), std::pair(Outcome::broken, 0)) << none;
}

TEST(SessionAnswer, IsOneSocketOfPackets) {
  const auto sent = [](std::initializer_list<int> descriptors) {
    return call_of_server([&](SessionControl&, int answers) {
      send_descriptors(answers, std::span(descriptors.begin(), descriptors.size()));
    });
  };
  const auto [here, there] = packet_socket_pair();
  const auto [stream, other] = socket_pair();
  EXPECT_EQ(sent({here.get()}), std::pair(Outcome::timed_out, 0)) << "which nobody serves";
  EXPECT_EQ(sent({here.get(), here.get()}), std::pair(Outcome::broken, 0));
  EXPECT_EQ(sent({stream.get()}), std::pair(Outcome::broken, 0));
}

// Who throws the request away has no room for it, as long as the port is there.
TEST(SessionAnswer, ThatNeverComesIsAWantOfRoom) {
  auto [server, port] = packet_socket_pair();
  Client client(port.get());
  CallResults results;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
    { const Packet asked = take_packet(server.get()); }
    EXPECT_EQ(error_of([&] { client.call({}, results, before_long()); }), EAGAIN);
  }
  EXPECT_EQ(client.call({}, results, Deadline::after(1ms)), Outcome::timed_out);
  server.reset();
  EXPECT_EQ(client.call({}, results, before_long()), Outcome::peer_gone);
}

TEST(SessionAnswer, IsARefusalWhereAPortHasAllThatItMayHave) {
  Server server(echo, 1, WaitMode::adaptive, {.sessions = 2});
  const int port = server.port.descriptor();
  CallResults results;
  Client first(port);
  EXPECT_EQ(ask(first, "1"), "1");
  {
    Client second(port);
    EXPECT_EQ(ask(second, "2"), "2");
    Client third(port);
    EXPECT_EQ(error_of([&] { third.call({}, results, before_long()); }), EAGAIN);
  }
  // As soon as one has gone there is room, however often.
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(eventually([&] { return server.port.sessions() == 1; }));
    Client other(port);
    EXPECT_EQ(ask(other, "2"), "2");
  }
}

TEST(SessionAnswer, IsARefusalWhereAUserHasAllThatItMayHave) {
  Server server(echo, 1, WaitMode::adaptive, {.sessions_per_user = 1});
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(eventually([&] { return server.port.sessions() == 0; }));
    Client other(server.port.descriptor());
    EXPECT_EQ(ask(other, "1"), "1");
  }
}

}  // namespace
}  // namespace farcall::call::test
