// SPDX-License-Identifier: Apache-2.0
//
// Strangers that send what is long in closing: a client to a server whose threads serve others, and
// a server to a client that has a deadline.
#include <gtest/gtest.h>

#include <array>

#include "call/raw.hpp"
#include "harness/lingering.hpp"
#include "message/channel.hpp"
#include "message/names.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

using call::kDescriptors;
using call::Kind;
using call::kPurposeData;
using call::Turn;
using call::test::RawSession;

constexpr int kLong = 60;  // seconds that a close takes; more than any test waits

// Sends several at once; nobody else has them from then on.
void send_lingering(int socket, std::size_t others = 0) {
  const UniqueFd slow = lingering(kLong);
  std::vector<int> all(others, STDERR_FILENO);
  all.push_back(slow.get());
  send_descriptors(socket, all, kPurposeData);
}

// ---- clients ----

class MessageUntrustedClient : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    give_up_after(60s);
  }
  // One thread serves, and receives by `receive_one`; a stranger sends it `others` descriptors and
  // one that lingers.
  template <class Receive>
  void serve(std::size_t others, Receive receive_one) {
    const std::string name = unique_name("untrusted");
    const int channel = farcall_name_attach(name.c_str(), 0, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    const Shared<Event> sent;
    Child stranger([&] {
      ASSERT_TRUE(become(kNobody));
      const int connection = farcall_name_open(("0/" + name).c_str());
      ASSERT_GT(connection, 0);
      RawSession session(farcall_connection_descriptor(connection));
      ASSERT_TRUE(session.welcome());
      send_lingering(session.socket.get(), others);
      session.give(Kind::request, 1, 1, kDescriptors);
      sent->happens();
      for (;;) ::pause();
    });
    ASSERT_TRUE(sent->wait());
    std::thread server([&] {
      for (int i = 0; i < 2; ++i) {
        const std::int64_t id = receive_one(channel);
        EXPECT_EQ(answer(id, 0, "ok"), 0) << std::strerror(errno);
      }
    });
    in_child([&] {
      const int connection = farcall_name_open(name.c_str());
      farcall_timeout(std::chrono::nanoseconds(kPatience).count());
      EXPECT_EQ(send(connection, "x").text, "ok");
    });
    server.join();
    farcall_channel_destroy(channel);
  }
};

TEST_F(MessageUntrustedClient, SendsDescriptorsThatNobodyAsksForAndHoldsNobodyUp) {
  serve(0, [](int channel) { return farcall_receive(channel, nullptr, 0, nullptr); });
}

TEST_F(MessageUntrustedClient, SendsMoreDescriptorsThanAreHandedOutAndHoldsNobodyUp) {
  serve(FARCALL_DESCRIPTORS, [](int channel) {
    const Message message = receive(channel);
    for (unsigned i = 0; i < message.info.descriptor_count; ++i)
      ::close(message.info.descriptors[i]);
    return message.id;
  });
}

// ---- servers ----

// What a hostile server has of its client; ends the process where there is none.
struct Client {
  explicit Client(int inner) {
    pollfd asked{.fd = inner, .events = POLLIN, .revents = 0};
    (void)::poll(&asked, 1, static_cast<int>(kPatience.count()));
    Packet packet = take_packet(inner);
    if (packet.descriptors.size() != 2) ::_exit(1);
    memory = call::adopt_session(std::move(packet.descriptors[0]));
    answers = std::move(packet.descriptors[1]);
  }
  [[nodiscard]] call::SessionControl& control() const {
    return *reinterpret_cast<call::SessionControl*>(memory.data());
  }
  process::PrivateMapping memory;
  UniqueFd answers;
};

class MessageUntrustedServer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  }
  // While somebody who has the name does `body` with the first who connects, and goes on living.
  template <class Body, class Victim>
  void beside(Body body, Victim victim) {
    const Shared<Event> ready;
    Child hostile([&] {
      ::signal(SIGPIPE, SIG_IGN);
      ASSERT_TRUE(become(kNobody));
      const UniqueFd listener = listen_at(kOpenPrefix, name_);
      ready->happens();
      pollfd comes{.fd = listener.get(), .events = POLLIN, .revents = 0};
      (void)::poll(&comes, 1, static_cast<int>(kPatience.count()));
      UniqueFd line(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      body(line);
      done_->happens();
      for (;;) ::pause();
    });
    ASSERT_TRUE(ready->wait());
    in_child(victim);
  }
  // Opens the name, and sends with a deadline, which comes to `error`. Where the server does `body`
  // in place of letting it in, it asks, gives up, and looks again when that is done.
  template <class Body>
  void expect_of_send(int error, Body body, bool is_let_in = true) {
    const auto serve = [&](const UniqueFd& line) {
      // These last as long as the process.
      static const UniqueFd inner = give_connection(line.get());
      static const Client client(inner.get());
      body(client);
    };
    beside(serve, [&] {
      const int connection = farcall_name_open(name_.c_str());
      ASSERT_GT(connection, 0) << std::strerror(errno);
      if (!is_let_in) {
        farcall_timeout(10'000'000);
        EXPECT_EQ(send(connection, "x").error, ETIMEDOUT);
        gave_up_->happens();
        ASSERT_TRUE(done_->wait());
      }
      // What must come has time, as long as that is less than a close takes.
      farcall_timeout(std::chrono::nanoseconds(error == ETIMEDOUT ? 500ms : kPatience).count());
      EXPECT_EQ(send(connection, "x").error, error);
      EXPECT_EQ(farcall_disconnect(connection), 0);
    });
  }
  // Returns the other end of what the client gets.
  static UniqueFd give_connection(int line) {
    auto [inner, outer] = packet_socket_pair();
    const AbstractAddress address(std::string(kConnectionPrefix) + std::to_string(::getpid()) +
                                  "-untrusted/0");
    EXPECT_EQ(::bind(outer.get(), address.get(), address.size()), 0);
    message::answer(line, 0, std::move(outer));
    return std::move(inner);
  }

  std::string name_ = std::to_string(kNobody) + "/" + unique_name("untrusted");
  const Shared<Event> done_;
  const Shared<Event> gave_up_;
};

TEST_F(MessageUntrustedServer, SendsNothingWithANameThatItsClientWaitsFor) {
  const auto several = [](const UniqueFd& line) {
    FdMessage fd_message;
    fd_message.bytes.resize(sizeof(int));
    for (int i = 0; i < 3; ++i) fd_message.descriptors.push_back(lingering(kLong));
    send_fd_message(line.get(), fd_message);
  };
  beside(several, [&] {
    farcall_timeout(500'000'000);
    EXPECT_EQ(farcall_name_open(name_.c_str()), -1);
    EXPECT_TRUE(errno == EPROTO || errno == ETIMEDOUT) << std::strerror(errno);
  });
}

TEST_F(MessageUntrustedServer, LeavesNothingBehindANameThatItsClientWaitsFor) {
  const Shared<Event> ready;
  const Shared<Event> connected;
  const Shared<Event> stopped;
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    UniqueFd slow = lingering(kLong);
    const UniqueFd listener = listen_at(kOpenPrefix, name_);
    ready->happens();
    pollfd comes{.fd = listener.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&comes, 1, static_cast<int>(kPatience.count()));
    const UniqueFd line(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    connected->happens();
    ASSERT_TRUE(stopped->wait());
    const UniqueFd inner = give_connection(line.get());
    FdMessage one_more;
    one_more.descriptors.push_back(std::move(slow));
    send_fd_message(line.get(), one_more);
    one_more.descriptors.clear();
    done_->happens();
    for (;;) ::pause();
  });
  ASSERT_TRUE(ready->wait());
  // All is there before it looks.
  Child victim([&] {
    const int connection = farcall_name_open(name_.c_str());
    EXPECT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(farcall_disconnect(connection), 0);
  });
  ASSERT_TRUE(connected->wait());
  ASSERT_TRUE(stop_process(victim.pid()));
  stopped->happens();
  ASSERT_TRUE(done_->wait());
  ::kill(victim.pid(), SIGCONT);
  EXPECT_EQ(victim.join(), 0);
}

TEST_F(MessageUntrustedServer, LeavesNothingInAConnectionThatItsClientWaitsFor) {
  const auto leave = [&](UniqueFd& line) {
    const UniqueFd inner = give_connection(line.get());
    for (int i = 0; i < 3; ++i) send_lingering(inner.get());
  };
  beside(leave, [&] {
    const int connection = farcall_name_open(name_.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    ASSERT_TRUE(done_->wait());
    EXPECT_EQ(farcall_disconnect(connection), 0);
  });
}

TEST_F(MessageUntrustedServer, SendsNothingInPlaceOfASessionThatItsClientWaitsFor) {
  const auto several = [&](const Client& client) {
    ASSERT_TRUE(gave_up_->wait());
    send_lingering(client.answers.get(), 2);
  };
  expect_of_send(EPROTO, several, false);
}

TEST_F(MessageUntrustedServer, SendsNoOtherSocketInPlaceOfASessionsThatItsClientWaitsFor) {
  const auto other = [&](const Client& client) {
    ASSERT_TRUE(gave_up_->wait());
    send_lingering(client.answers.get());
  };
  expect_of_send(EPROTO, other, false);
}

TEST_F(MessageUntrustedServer, SendsNothingInAReplyThatItsClientWaitsFor) {
  expect_of_send(0, [](const Client& client) {
    auto [mine, theirs] = packet_socket_pair();
    send_descriptors(client.answers.get(), std::array{theirs.get()});
    Turn asked{};
    if (!eventually([&] {
          asked = Turn::unpack(client.control().slot.turn.load());
          return asked.kind == Kind::request;
        }))
      ::_exit(1);
    for (int i = 0; i < 2; ++i) send_lingering(client.answers.get());
    client.control().slot.extra = 0;
    client.control().slot.turn =
        Turn{.number = asked.number, .kind = Kind::reply, .flags = kDescriptors}.pack();
    (void)!::send(client.answers.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    // The reply is there when it is looked for, whatever the client slept on.
    Waiter(client.answers.get(), WaitMode::block)
        .wake(client.control().server, client.control().client);
    (void)mine.get();
  });
}

TEST_F(MessageUntrustedServer, LeavesNothingInASessionThatItsClientWaitsFor) {
  expect_of_send(ETIMEDOUT, [](const Client& client) {
    auto [mine, theirs] = packet_socket_pair();
    send_descriptors(client.answers.get(), std::array{theirs.get()});
    for (const int socket : {client.answers.get(), mine.get()}) send_lingering(socket);
    (void)mine.release();
  });
}

// ---- names ----

// Takes a name that may be of others, and lets nobody in: as many wait as may.
struct Squatter {
  UniqueFd listener;
  std::vector<UniqueFd> waiting;

  Squatter(const std::string& full_name, bool silent)
      : listener(listen_at(kOpenPrefix, full_name)) {
    if (!silent) return;
    EXPECT_EQ(::listen(listener.get(), 0), 0);
    const AbstractAddress address(std::string(kOpenPrefix) + full_name);
    for (;;) {
      UniqueFd one(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (::connect(one.get(), address.get(), address.size()) != 0) break;
      waiting.push_back(std::move(one));
    }
    EXPECT_EQ(errno, EAGAIN);
  }
};

class MessageSquatter : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  }
  // While a stranger has the name of a user, who does `body`.
  template <class Body>
  void beside(Body body) {
    const Shared<Event> ready;
    Child stranger([&] {
      ASSERT_TRUE(become(kNobody + 1));
      const Squatter squatter(std::to_string(kNobody) + "/" + name_, GetParam());
      ready->happens();
      for (;;) ::pause();
    });
    ASSERT_TRUE(ready->wait());
    in_child([&] {
      ASSERT_TRUE(become(kNobody));
      body();
    });
  }
  const std::string name_ = unique_name("squatted");
};

TEST_P(MessageSquatter, HidesNoServerOfRoots) {
  const int channel = farcall_name_attach(name_.c_str(), 0, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  auto echo = std::make_unique<Echo>(channel);
  beside([&] {
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    const int connection = farcall_name_open(name_.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "x").text, "x");
  });
  farcall_channel_destroy(channel);
}

TEST_P(MessageSquatter, IsNotWaitedFor) {
  beside([&] {
    // For ever: who waited for it would be ended by the test.
    farcall_timeout(std::chrono::nanoseconds(1h).count());
    EXPECT_EQ(farcall_name_open(name_.c_str()), -1);
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(farcall_name_open((std::to_string(kNobody) + "/" + name_).c_str()), -1);
    EXPECT_EQ(errno, EACCES);
  });
}

INSTANTIATE_TEST_SUITE_P(Names, MessageSquatter, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Silent" : "Listening"; });

TEST(MessageName, AServerThatLetsNobodyInIsWaitedForUntilTheDeadline) {
  const std::string name = unique_name("full");
  in_child([&] {
    const Squatter own(std::to_string(::geteuid()) + "/" + name, true);
    farcall_timeout(100'000'000);
    EXPECT_EQ(farcall_name_open(name.c_str()), -1);
    EXPECT_EQ(errno, ETIMEDOUT);
  });
}

}  // namespace
}  // namespace farcall::message::test
