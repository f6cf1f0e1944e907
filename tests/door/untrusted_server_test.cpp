// SPDX-License-Identifier: Apache-2.0
//
// What a server of another user cannot keep its clients from: a call ends when a signal comes, and
// when the server hangs up.
#include <gtest/gtest.h>

#include "door/raw.hpp"
#include "harness/lingering.hpp"
#include "harness/stalled_page.hpp"

namespace farcall::door::test {
namespace {

// What a hostile server has of its client.
struct Client {
  explicit Client(int inner) {
    pollfd asked{.fd = inner, .events = POLLIN, .revents = 0};
    (void)::poll(&asked, 1, static_cast<int>(kPatience.count()));
    Packet packet = take_packet(inner);
    if (packet.descriptors.size() != 2) ::_exit(1);
    memory = call::adopt_session(std::move(packet.descriptors[0]));
    // Smallest and largest request, most descriptors, and more.
    for (std::size_t i = 1; i < kTerms; ++i) control().terms.words[i] = UINT64_MAX;
    answers = std::move(packet.descriptors[1]);
    std::tie(mine, theirs) = packet_socket_pair();
    send_descriptors(answers.get(), std::array{theirs.get()});
  }
  [[nodiscard]] call::SessionControl& control() const {
    return *reinterpret_cast<call::SessionControl*>(memory.data());
  }
  // Until the client has sent a request.
  void await_request() const {
    if (!eventually([&] {
          return call::Turn::unpack(control().slot.turn.load()).kind == call::Kind::request;
        }))
      ::_exit(1);
  }
  void reply(std::uint8_t flags) const {
    const auto asked = call::Turn::unpack(control().slot.turn.load());
    control().slot.turn =
        call::Turn{.number = asked.number, .kind = call::Kind::reply, .flags = flags}.pack();
  }
  // Through all that may lead to where it reads: wakes it; and what takes its time to close.
  void ring() const {
    for (const int socket : {answers.get(), mine.get()})
      (void)!::send(socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void send_lingering() const {
    for (const int socket : {answers.get(), mine.get()})
      send_descriptors(socket, std::array{lingering(30).get()}, call::kPurposeData);
  }

  process::PrivateMapping memory;
  UniqueFd answers;
  UniqueFd mine;
  UniqueFd theirs;
};

class DoorUntrustedServer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  }
  // Calls the door of a server that does `body`. Returns the call's errno.
  template <class Body>
  int error_of_call(Body body, bool interrupted) {
    const Shared<std::atomic<int>> error;
    const Shared<Event> ready;
    const Shared<Event> served;
    Child hostile([&] {
      const StalledPage page;
      ASSERT_TRUE(page);
      ASSERT_TRUE(become(kNobody));
      const FakeDoor fake(1);
      hand_over(line_.first.get(), fake.door.get());
      Client client(fake.inner.get());
      body(client, page);
      served->happens();
      ::pause();
    });
    const UniqueFd door(take_over(line_.second.get()));
    EXPECT_GE(door.get(), 0);
    Child victim([&] {
      Caller caller(door.get(), "x");
      ASSERT_TRUE(served->wait());
      *error = (interrupted ? caller.interrupt() : caller.reply()).error;
    });
    EXPECT_EQ(victim.join(), 0) << "the call does not end";
    return *error;
  }

 private:
  std::pair<UniqueFd, UniqueFd> line_ = packet_socket_pair();
};

TEST_F(DoorUntrustedServer, HoldsNoLockThatItsClientNeeds) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const auto hold_locks = [](Client& client, const StalledPage& page) {
    client.await_request();
    client.ring();
    for (const int socket : {client.theirs.get(), client.answers.get()}) page.hold_lock(socket);
    client.ring();
  };
  EXPECT_EQ(error_of_call(hold_locks, true), EAGAIN);
}

TEST_F(DoorUntrustedServer, LeavesNothingInASocketThatItsClientWaitsFor) {
  const auto hang_up = [](Client& client, const StalledPage&) {
    client.await_request();
    client.send_lingering();
    client.theirs.reset();
    client.mine.reset();
    client.answers.reset();
  };
  EXPECT_EQ(error_of_call(hang_up, false), EAGAIN) << "it is there, and may take another";
}

TEST_F(DoorUntrustedServer, SendsNothingInAReplyThatItsClientWaitsFor) {
  // As memory, and as what nobody has announced.
  const auto reply_badly = [](Client& client, const StalledPage&) {
    client.await_request();
    client.theirs.reset();
    for (int i = 0; i < 2; ++i) client.send_lingering();
    const std::uint64_t size = 5000;
    std::memcpy(client.control().slot.data, &size, sizeof size);
    client.reply(call::kTransfer | call::kTransferComes);
    client.ring();
  };
  EXPECT_EQ(error_of_call(reply_badly, false), EBADF);
}

}  // namespace
}  // namespace farcall::door::test
