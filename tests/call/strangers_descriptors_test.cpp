// SPDX-License-Identifier: Apache-2.0
//
// What other users send a server and nobody has asked for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/transfer.hpp"
#include "harness/ancillary_message.hpp"
#include "harness/lingering.hpp"
#include "harness/nothing_is_closed.hpp"

namespace farcall::call::test {
namespace {

struct DescriptorsOfStrangers : ::testing::Test {
  static constexpr std::size_t kTable = 1024;
  // Of no other test.
  const uid_t kAnother = kNobody + 10'000;

  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    if (kAddressSanitizer)
      GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit usual{.rlim_cur = kTable, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  }
  void TearDown() override {
    if (before_.rlim_cur != 0) ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
};

// Sends packets that are as large as may be, and mean nothing.
void send_rubbish(uid_t user, std::span<const int> sockets, std::uint8_t purpose) {
  in_child([&] {
    ASSERT_TRUE(become(user));
    const std::vector<int> many(kPacketDescriptors, STDERR_FILENO);
    for (const int socket : sockets) send_descriptors(socket, many, purpose);
  });
}

// A packet of the library's form, which says that it brings `claimed` descriptors.
void send_lie(int socket, std::span<const int> descriptors, std::uint16_t claimed,
              std::uint8_t purpose) {
  const struct {
    std::uint32_t magic = 0x70637266;
    std::uint8_t purpose;
    std::uint8_t more = 0;
    std::uint16_t claimed;
  } header{.purpose = purpose, .claimed = claimed};
  ASSERT_EQ(farcall::test::send_with_descriptors(socket, std::as_bytes(std::span(&header, 1)),
                                                 descriptors),
            static_cast<ssize_t>(sizeof header));
}

// Calls `body` in a child, with as many descriptors as a packet may bring. The last is a socket of
// the child alone, whose last close takes longer than any test: as far as they find no room in a
// table, the kernel closes them where they are taken.
template <class Body>
void in_child_with_many(Body body) {
  const auto [go, wait] = socket_pair();
  UniqueFd lingers = lingering(300);
  Child child([&, &wait = wait] {
    char byte = 0;
    ASSERT_EQ(::read(wait.get(), &byte, sizeof byte), 1);
    std::vector<int> all(kPacketDescriptors - 1, STDERR_FILENO);
    all.push_back(lingers.get());
    body(all, lingers);
  });
  lingers.reset();
  ASSERT_EQ(::write(go.get(), "", 1), 1);
  EXPECT_EQ(child.join(), 0);
}

void expect_served(int port) {
  Client client(port);
  EXPECT_EQ(ask(client, "still"), "still");
}

TEST_F(DescriptorsOfStrangers, ThatOpenNothingStayOutOfTheTable) {
  Server server;
  const auto endpoint = server.port.open_endpoint({}, {});
  const std::array<uid_t, 3> users{kNobody, kNobody + 1, kAnother};
  const UniqueFd for_all = endpoint->branch();
  const std::size_t before = open_descriptors();
  {
    const NothingIsClosedOf held(users);
    std::vector<UniqueFd> ways_in;
    for (const uid_t user : users) {
      ways_in.push_back(endpoint->branch({}, nullptr, {}, user));
      const int way_in = ways_in.back().get();
      send_rubbish(user, std::array{way_in, way_in}, kPurposeSession);
    }
    EXPECT_TRUE(eventually([&] { return endpoint->unsolicited().descriptors != 0; }));
    in_child([port = for_all.get(), user = kAnother + 1] {
      ASSERT_TRUE(become(user));
      Client client(port);
      EXPECT_EQ(ask(client, "still"), "still");
    });
    EXPECT_LE(open_descriptors(), before + 50);
  }
  EXPECT_TRUE(eventually([&] {
    return endpoint->unsolicited().descriptors == 2 * users.size() * kPacketDescriptors;
  })) << "all is thrown away in the end";
}

// The reactor, which lets everybody in, is not there when they are closed; nor do forks wait.
struct HeldUpByStrangers : DescriptorsOfStrangers {
  void expect_none(std::uint16_t claimed) const {
    Server server;
    const auto endpoint = server.port.open_endpoint({}, {});
    const UniqueFd for_all = endpoint->branch();
    UniqueFd way_in = endpoint->branch({}, nullptr, {}, kAnother);
    in_child_with_many([&, socket = way_in.get()](std::span<const int> many, UniqueFd&) {
      ASSERT_TRUE(become(kAnother));
      for (int i = 0; i < 3; ++i) send_lie(socket, many, claimed, kPurposeSession);
    });
    way_in.reset();  // that it has gone is no reason to look without end
    const rlimit small{.rlim_cur = 256, .rlim_max = kTable};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
    expect_served(for_all.get());
    EXPECT_TRUE(eventually([&] { return endpoint->unsolicited().descriptors >= claimed; }));
    expect_served(for_all.get());
    in_child([] {});
  }
};
TEST_F(HeldUpByStrangers, IsNoReactorByWhatTheySayThatTheySend) { expect_none(kPacketDescriptors); }
TEST_F(HeldUpByStrangers, IsNoReactorByMoreThanTheySay) { expect_none(2); }

// Neither is the only thread that serves.
TEST_F(DescriptorsOfStrangers, ThatFindNoRoomAreNotWaitedForByWhoServes) {
  rlimit small{.rlim_cur = 128, .rlim_max = kTable};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  Server server(farcall::test::echo, 1);
  in_child_with_many(
      [&, port = server.port.descriptor()](std::span<const int> many, UniqueFd& lingers) {
        ASSERT_TRUE(become(kAnother));
        RawSession session(port);
        ASSERT_TRUE(session.welcome());
        send_lie(session.socket.get(), many, 1, kPurposeData);
        lingers.reset();
        session.give(Kind::request, 1, 0, kDescriptors);
        pollfd end{.fd = session.socket.get(), .events = POLLRDHUP, .revents = 0};
        EXPECT_EQ(::poll(&end, 1, static_cast<int>(kPatience.count())), 1) << "it goes on";
      });
  expect_served(server.port.descriptor());
}

// It is told, and comes again when there is room.
TEST_F(DescriptorsOfStrangers, WhoseTableIsFullRefusesThem) {
  Server server;
  const auto [go, wait] = socket_pair();
  Child client([&, &wait = wait, port = server.port.descriptor()] {
    ASSERT_TRUE(become(kAnother));
    Client asking(port);
    EXPECT_EQ(ask(asking, "x"), "x");
    const std::array one{STDERR_FILENO};
    CallArguments arguments;
    arguments.descriptors = one;
    const auto call = [&] {
      return error_of([&] {
        CallResults results;
        EXPECT_EQ(asking.call(arguments, results, Deadline::after(kPatience)), Outcome::ok);
      });
    };
    EXPECT_EQ(::write(wait.get(), "", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(wait.get(), &byte, 1), 1);
    EXPECT_EQ(call(), EMFILE);
    EXPECT_EQ(ask(asking, "without"), "without");
    EXPECT_EQ(::write(wait.get(), "", 1), 1);
    EXPECT_EQ(::read(wait.get(), &byte, 1), 1);
    EXPECT_TRUE(eventually([&] { return call() == 0; }));
  });
  char byte = 0;
  EXPECT_EQ(::read(go.get(), &byte, 1), 1);
  {
    std::vector<UniqueFd> taken;
    for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
    EXPECT_EQ(::write(go.get(), "", 1), 1);
    EXPECT_EQ(::read(go.get(), &byte, 1), 1);
  }
  EXPECT_EQ(::write(go.get(), "", 1), 1);
  EXPECT_EQ(client.join(), 0);
}

// Takes all the room of this process's table but so much.
std::vector<UniqueFd> fill_table(std::size_t but) {
  std::vector<UniqueFd> taken;
  for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
  taken.resize(taken.size() - but);
  return taken;
}

// Others close what has come before, and make room by that.
void expect_no_more_than(std::size_t descriptors) {
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; }));
}

// What a call comes to that brings so many descriptors, and so many bytes.
int error_of_call(Client& client, std::size_t count, std::size_t size) {
  const std::vector<int> descriptors(count, STDERR_FILENO);
  const std::vector<std::byte> data(size);
  std::vector<std::byte> buffer(size);
  CallResults results;
  results.buffer = buffer;
  return error_of([&] {
    EXPECT_EQ(client.call({.data = data, .descriptors = descriptors}, results,
                          Deadline::after(kPatience)),
              Outcome::ok);
  });
}

// No more is lost than that one call, of whichever kind it was.
TEST_F(DescriptorsOfStrangers, ThatFindNoRoomForAMomentCostOneCall) {
  struct Case {
    std::size_t room;
    std::size_t descriptors;
    std::size_t size;
  };
  static constexpr std::array kCases{
      Case{2, 5, 1},
      Case{0, 0, 100'000},
      Case{2, kPacketDescriptors + 5, 1},
      Case{kPacketDescriptors + 2, kPacketDescriptors + 5, 1},
      Case{0, 5, 3'000'000},  // more memory, and descriptors after it
  };
  PortLimits limits;
  limits.descriptors_per_user = kTable / 2;
  Server server(echo, 1, WaitMode::adaptive, limits);
  const auto [go, wait] = socket_pair();
  (void)server.port.descriptor();
  const std::size_t before = open_descriptors() + kSessionDescriptors;
  const auto await_turn = [](int socket) {
    char byte = 0;
    EXPECT_EQ(::write(socket, "", 1), 1);
    EXPECT_EQ(::read(socket, &byte, 1), 1);
  };
  Child client([&, &wait = wait, port = server.port.descriptor()] {
    ASSERT_TRUE(become(kAnother));
    Client asking(port);
    EXPECT_EQ(ask(asking, "x"), "x");
    for (const auto& [room, count, size] : kCases) {
      await_turn(wait.get());
      EXPECT_EQ(error_of_call(asking, count, size), EMFILE) << room << ", " << count;
      EXPECT_EQ(ask(asking, "without"), "without");
      await_turn(wait.get());
      EXPECT_EQ(error_of_call(asking, count, size), 0) << room << ", " << count;
    }
    await_turn(wait.get());
  });
  char byte = 0;
  EXPECT_EQ(::read(go.get(), &byte, 1), 1);
  for (const auto& each : kCases) {
    expect_no_more_than(before);
    {
      const std::vector<UniqueFd> taken = fill_table(each.room);
      await_turn(go.get());
    }
    expect_no_more_than(before);
    await_turn(go.get());
  }
  EXPECT_EQ(server.port.sessions(), 1U) << "it is the same session";
  EXPECT_EQ(::write(go.get(), "", 1), 1);
  EXPECT_EQ(client.join(), 0);
}

// Who has sent what stays waits until it is closed; the only thread that serves does not.
TEST_F(DescriptorsOfStrangers, ThatStayInASessionHoldUpNobodyWhoServes) {
  std::vector<UniqueFd> taken;
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (text_of(incoming.data()) == "fill") taken = fill_table(2);
    echo(thread, incoming);
  });
  in_child_with_many(
      [&, port = server.port.descriptor()](std::span<const int> many, UniqueFd& lingers) {
        ASSERT_TRUE(become(kAnother));
        Client other(port);
        RawSession session(port);
        ASSERT_TRUE(session.welcome());
        EXPECT_EQ(ask(other, "fill"), "fill");
        send_lie(session.socket.get(), many.last(5), 5, kPurposeData);
        lingers.reset();
        session.give(Kind::request, 1, 0, kDescriptors);
        for (int i = 0; i < 20; ++i) EXPECT_EQ(ask(other, "still"), "still");
        EXPECT_FALSE(session.ended());
      });
}

// The server is told, and the client waits for another answer.
TEST_F(DescriptorsOfStrangers, ThatAClientHasNoRoomForLeaveItWaitingForAnotherReply) {
  auto [here, there] = packet_socket_pair();
  const auto [stop, stopped] = socket_pair();
  Child child([&, &there = there, &stopped = stopped] {
    ASSERT_TRUE(become(kAnother));
    Server server([](ServerThread& thread, Incoming& incoming) {
      if (text_of(incoming.data()) == "plain") return echo(thread, incoming);
      const std::array three{STDERR_FILENO, STDERR_FILENO, STDERR_FILENO};
      const int error = error_of([&] { thread.reply(incoming, bytes_of("with"), three); });
      if (error != 0) thread.reply(incoming, bytes_of(error == EMFILE ? "instead" : "wrong"));
    });
    send_descriptors(there.get(), std::array{server.port.descriptor()}, 0);
    char byte = 0;
    EXPECT_EQ(::read(stopped.get(), &byte, 1), 1);
  });
  pollfd sent{.fd = here.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&sent, 1, static_cast<int>(kPatience.count())), 1);
  const UniqueFd port = take_only_descriptor(here.get());
  Client client(port.get());
  const std::size_t before = open_descriptors() + kSessionDescriptors;
  EXPECT_EQ(ask(client, "plain"), "plain");
  for (int i = 0; i < 3; ++i) {
    expect_no_more_than(before);
    {
      const std::vector<UniqueFd> taken = fill_table(1);
      EXPECT_EQ(ask(client, "x"), "instead");
    }
    EXPECT_EQ(ask(client, "x"), "with");
  }
  EXPECT_EQ(::write(stop.get(), "", 1), 1);
  EXPECT_EQ(child.join(), 0);
}

TEST_F(DescriptorsOfStrangers, ThatAreFewAreAllTakenByASmallTable) {
  rlimit small{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &small), 0);
  small.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  Server server(echo, 4);
  const int port = server.port.descriptor();
  std::vector<std::unique_ptr<Child>> clients;
  for (uid_t i = 0; i < 4; ++i)
    clients.push_back(std::make_unique<Child>([&] {
      ASSERT_TRUE(become(kNobody + 2 * i));
      Client client(port);
      const std::array two{STDERR_FILENO, STDERR_FILENO};
      for (int j = 0; j < 200; ++j) {
        std::array<std::byte, 4> buffer{};
        CallResults results;
        results.buffer = buffer;
        CallArguments arguments;
        arguments.data = buffer;
        arguments.descriptors = two;
        ASSERT_EQ(error_of([&] {
                    EXPECT_EQ(client.call(arguments, results, Deadline::after(2 * kPatience)),
                              Outcome::ok);
                  }),
                  0);
      }
    }));
  for (const auto& client : clients) EXPECT_EQ(client->join(), 0);
}

}  // namespace
}  // namespace farcall::call::test
