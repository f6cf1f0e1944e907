// SPDX-License-Identifier: Apache-2.0
//
// What a client would wait for: sockets that are full, and descriptors in place of a session.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <thread>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "harness/lingering.hpp"

namespace farcall::call::test {
namespace {

// Fills the socket at whose other end nobody reads.
void fill(int socket) {
  while (::send(socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
  }
}

Outcome call_for_a_moment(Client& client, std::size_t bytes) {
  const std::vector<std::byte> request(bytes);
  CallResults results;
  return client.call({.data = request, .descriptors = {}}, results, Deadline::after(20ms));
}

// In place of a session: so many descriptors that are long in closing. The client asks, gives up,
// and looks again when nobody else has them any more.
void expect_no_wait(std::size_t count) {
  in_child([count] {
    const auto [server, port] = packet_socket_pair();
    Client client(port.get());
    ASSERT_EQ(call_for_a_moment(client, 1), Outcome::timed_out);
    Packet asked = take_packet(server.get());
    ASSERT_EQ(asked.descriptors.size(), 2U);
    {
      std::vector<UniqueFd> slow;
      std::vector<int> numbers;
      for (std::size_t i = 0; i < count; ++i)
        numbers.push_back(slow.emplace_back(lingering(60)).get());
      send_descriptors(asked.descriptors[1].get(), numbers);
    }
    EXPECT_EQ(call_for_a_moment(client, 1), Outcome::broken);
  });
}
TEST(Deadlines, HoldWhereThereComesMoreThanASession) { expect_no_wait(3); }
TEST(Deadlines, HoldWhereAnotherSocketComesThanASessions) { expect_no_wait(1); }

TEST(Deadlines, HoldWhereAPortIsFull) {
  const auto [server, port] = packet_socket_pair();
  fill(port.get());
  Client client(port.get());
  EXPECT_EQ(call_for_a_moment(client, 1), Outcome::timed_out);
}

// No server that means well takes so long to empty it.
TEST(Deadlines, WhoHasMoreTimeThanAFullPortIsGivenIsToldOfIt) {
  const auto [server, port] = packet_socket_pair();
  fill(port.get());
  Client client(port.get());
  CallResults results;
  EXPECT_EQ(error_of([&] { (void)client.call({}, results, Deadline::after(60s)); }), EAGAIN);
}

TEST(Deadlines, HoldWhereASessionIsFull) {
  const auto [server, port] = packet_socket_pair();
  const auto [mine, theirs] = packet_socket_pair();
  Client client(port.get());
  Packet packet;  // what it holds is the server's end
  std::thread letting_in([&, inner = server.get(), end = theirs.get()] {
    pollfd asked{.fd = inner, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&asked, 1, static_cast<int>(kPatience.count())), 1);
    packet = take_packet(inner);
    ASSERT_EQ(packet.descriptors.size(), 2U);
    fill(end);
    send_descriptors(packet.descriptors[1].get(), std::array{end});
  });
  Terms terms{};
  EXPECT_EQ(client.terms(terms, Deadline::after(kPatience)), Outcome::ok);
  letting_in.join();
  EXPECT_EQ(call_for_a_moment(client, kInlineBytes + 1), Outcome::timed_out);
}

}  // namespace
}  // namespace farcall::call::test
