// SPDX-License-Identifier: Apache-2.0
#include "farcall/socket.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "harness/ancillary_message.hpp"
#include "harness/child.hpp"
#include "harness/descriptors.hpp"
#include "harness/error_of.hpp"
#include "harness/lingering.hpp"
#include "socket/doorbells.hpp"

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

namespace farcall {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::eventually;
using test::in_child;
using test::lingering;
using test::open_descriptors;

Deadline soon() { return Deadline::after(20s); }

std::string unique_name(const char* what) {
  return std::string("test-") + what + "-" + std::to_string(::getpid());
}

FdMessage fd_message_with(std::size_t bytes, std::size_t descriptors) {
  FdMessage fd_message;
  fd_message.bytes.assign(bytes, std::byte{7});
  for (std::size_t i = 0; i < descriptors; ++i)
    fd_message.descriptors.push_back(SharedMemory::create(1).fd() >= 0
                                         ? UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))
                                         : UniqueFd());
  return fd_message;
}

// What a message begins with.
struct Header {
  std::uint32_t magic = 0x6c637266;
  std::uint16_t bytes;
  std::uint16_t descriptors;
};
void announce(int socket, const Header& header) {
  ASSERT_EQ(::send(socket, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
}

TEST(FdMessage, BringsBytesAndDescriptors) {
  const auto [here, there] = socket_pair();
  SharedMemory memory = SharedMemory::create(2 * page_size());
  FdMessage sent;
  sent.bytes.assign(3, std::byte{9});
  sent.descriptors.push_back(std::move(memory).release());
  send_fd_message(here.get(), sent);
  auto got = receive_fd_message(there.get(), soon());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->bytes, sent.bytes);
  ASSERT_EQ(got->descriptors.size(), 1U);
  EXPECT_EQ(::fcntl(got->descriptors[0].get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(SharedMemory::adopt(std::move(got->descriptors[0])).size(), 2 * page_size());
}

TEST(FdMessage, ComesInOrderAndNeverMergesWithTheNext) {
  const auto [here, there] = socket_pair();
  for (std::size_t i = 0; i < 20; ++i) send_fd_message(here.get(), fd_message_with(i * 200, i % 4));
  for (std::size_t i = 0; i < 20; ++i) {
    const auto got = receive_fd_message(there.get(), soon());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->bytes.size(), i * 200);
    EXPECT_EQ(got->descriptors.size(), i % 4);
  }
}

TEST(FdMessage, LargestIsTakenAndLargerIsMisuse) {
  const auto [here, there] = socket_pair();
  send_fd_message(here.get(), fd_message_with(kFdMessageBytes, kFdMessageDescriptors));
  EXPECT_EQ(receive_fd_message(there.get(), soon())->descriptors.size(), kFdMessageDescriptors);
  EXPECT_THROW(send_fd_message(here.get(), fd_message_with(kFdMessageBytes + 1, 0)), MisuseError);
  EXPECT_THROW(send_fd_message(here.get(), fd_message_with(0, kFdMessageDescriptors + 1)),
               MisuseError);
}

TEST(FdMessage, WaitsNoLongerThanTheDeadline) {
  const auto [here, there] = socket_pair();
  EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), Deadline::after(10ms)); }), ETIMEDOUT);
}

TEST(FdMessage, ClosedPeerIsNoMessage) {
  auto [here, there] = socket_pair();
  here.reset();
  EXPECT_FALSE(receive_fd_message(there.get(), soon()));
  EXPECT_EQ(error_of([&] { send_fd_message(there.get(), {}); }), EPIPE);
}

TEST(FdMessage, APeerThatClosesInTheMiddleIsGone) {
  auto [here, there] = socket_pair();
  announce(here.get(), {.bytes = 4, .descriptors = 0});
  here.reset();
  EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), ECONNRESET);
}

// Where the kernel keeps it apart, whoever sends a byte so leaves it, and its descriptors, behind.
TEST(FdMessage, WhatIsSentOutOfBandBelongsToIt) {
  const auto [here, there] = socket_pair();
  announce(here.get(), {.bytes = 3, .descriptors = 0});
  const ssize_t sent = ::send(here.get(), "abc", 3, MSG_OOB);  // the last of them is the urgent one
  if (sent < 0 && errno == EOPNOTSUPP) GTEST_SKIP() << "no out-of-band data in local sockets here";
  ASSERT_EQ(sent, 3) << std::strerror(errno);
  const auto got = receive_fd_message(there.get(), soon());
  ASSERT_TRUE(got);
  EXPECT_EQ(std::memcmp(got->bytes.data(), "abc", 3), 0);
}

// It is refused by what it says that it is: the rest does not come.
TEST(FdMessage, MoreThanTheLargestIsNotWaitedFor) {
  const auto bytes = static_cast<std::uint16_t>(kFdMessageBytes + 1);
  const auto descriptors = static_cast<std::uint16_t>(kFdMessageDescriptors + 1);
  for (const Header& header :
       {Header{.bytes = bytes, .descriptors = 0}, Header{.bytes = 1, .descriptors = descriptors}}) {
    const auto [here, there] = socket_pair();
    announce(here.get(), header);
    EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
  }
}

TEST(FdMessage, GarbageIsRefusedAndItsDescriptorsAreClosed) {
  const std::size_t before = open_descriptors();
  {
    const auto [here, there] = socket_pair();
    // A message that claims one descriptor more than it brings, then bytes that are none.
    const Header header{.bytes = 0, .descriptors = 2};
    ASSERT_EQ(test::send_with_descriptors(here.get(), std::as_bytes(std::span(&header, 1)),
                                          std::array{here.get()}),
              static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
    ASSERT_EQ(::send(here.get(), "nonsense", 8, 0), 8);
    EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
    ASSERT_EQ(::send(here.get(), "x", 1, 0), 1);
    EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; })) << "by a thread of its own";
}

// Sends bytes and a descriptor, as anybody may who makes no message of them.
void send_raw(int socket, std::span<const std::byte> bytes, int fd) {
  ASSERT_EQ(test::send_with_descriptors(socket, bytes, std::array{fd}),
            static_cast<ssize_t>(bytes.size()));
}

TEST(FdMessage, DescriptorsWhereNoneBelongAreNotWaitedFor) {
  in_child([] {
    const auto [here, there] = socket_pair();
    announce(here.get(), {.bytes = 4, .descriptors = 0});
    // Beside the bytes, which come later than the rest.
    const std::array<std::byte, 4> bytes{};
    send_raw(here.get(), bytes, lingering(60).get());
    EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
  });
}

// A byte at a time, and no end to come.
TEST(FdMessage, MoreDescriptorsThanAnnouncedEndItAtOnce) {
  const auto [here, there] = socket_pair();
  announce(here.get(), {.bytes = 100, .descriptors = 2});
  const std::array<std::byte, 1> byte{};
  for (int i = 0; i < 3; ++i) send_raw(here.get(), byte, here.get());
  EXPECT_EQ(error_of([&] { receive_fd_message(there.get(), soon()); }), EPROTO);
}

TEST(ReceivedFds, ThatNobodyTakesAreNotWaitedFor) {
  in_child([] {
    const auto [here, there] = packet_socket_pair();
    for (int i = 0; i < 3; ++i) {
      send_descriptors(here.get(), std::array{lingering(60).get()});
      (void)take_packet(there.get());
    }
    send_descriptors(here.get(), std::array{lingering(60).get()});
    Packet packet = take_packet(there.get());
    packet.descriptors.clear();
    send_descriptors(here.get(), std::array{lingering(60).get()});
    packet.descriptors = take_packet(there.get()).descriptors;
    ASSERT_EQ(packet.descriptors.size(), 1U);
    packet = take_packet(there.get());
    EXPECT_TRUE(packet.descriptors.empty());
  });
}

TEST(ReceivedFds, ThatAreTakenAreTheCallers) {
  const auto [here, there] = packet_socket_pair();
  send_descriptors(here.get(), std::array{here.get(), here.get()});
  UniqueFd taken;
  std::vector<UniqueFd> rest;
  {
    Packet packet = take_packet(there.get());
    ASSERT_EQ(packet.descriptors.size(), 2U);
    taken = std::move(packet.descriptors[0]);
    rest = std::move(packet.descriptors);
    EXPECT_TRUE(packet.descriptors.empty());
  }
  ASSERT_EQ(rest.size(), 2U);
  for (const int fd : {taken.get(), rest[1].get()}) EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
}

TEST(Packet, LeavesWhatHadRoomToWhoTookIt) {
  const auto [here, there] = packet_socket_pair();
  send_descriptors(here.get(), std::array{here.get(), here.get(), here.get()}, 7);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<UniqueFd> taken;
  for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
  taken.resize(taken.size() - 2);
  const Packet packet = take_packet(there.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(packet.kind, Packet::Kind::overflow);
  EXPECT_EQ(packet.purpose, 7);
  EXPECT_EQ(packet.descriptors.size(), 2U);
}

TEST(Packet, OfAnotherLengthIsGarbage) {
  const auto [here, there] = packet_socket_pair();
  send_descriptors(here.get(), {}, 7);
  std::array<char, 64> bytes{};
  const ssize_t proper = ::recv(there.get(), bytes.data(), bytes.size(), 0);
  ASSERT_GT(proper, 2);
  for (const ssize_t size : {ssize_t{0}, proper - 1, proper, proper + 1, 2 * proper}) {
    const auto count = static_cast<std::size_t>(size);
    ASSERT_EQ(::send(here.get(), bytes.data(), count, 0), size);
    EXPECT_EQ(take_packet(there.get()).kind,
              size == proper ? Packet::Kind::descriptors : Packet::Kind::garbage)
        << size << " bytes";
  }
}

TEST(Packet, TellsOfControlMessagesThatNobodyHasAskedFor) {
  const auto [here, there] = packet_socket_pair();
  send_descriptors(here.get(), std::array{0});
  EXPECT_EQ(take_packet(there.get()).unsolicited, 0U);
  const int on = 1;
  ASSERT_EQ(::setsockopt(there.get(), SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on), 0);
  send_descriptors(here.get(), std::array{0});
  const Packet packet = take_packet(there.get());
  EXPECT_EQ(packet.kind, Packet::Kind::descriptors);
  EXPECT_EQ(packet.unsolicited, 1U);
  if (::setsockopt(there.get(), SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on) != 0)
    GTEST_SKIP() << "the kernel sends no pidfds (Linux 6.5)";
  // More than once: what came before may still be open, to be closed in the background.
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 16; ++i) {
    send_descriptors(here.get(), std::array{0});
    EXPECT_EQ(take_packet(there.get()).unsolicited, 2U);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << "a pidfd is left";
}

// The peer may have asked for it at the socket that it has made for both.
TEST(Doorbells, LeaveNothingOfWhatComesWithThem) {
  const auto [here, there] = socket_pair();
  const int on = 1;
  if (::setsockopt(there.get(), SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on) != 0)
    GTEST_SKIP() << "the kernel sends no pidfds (Linux 6.5)";
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(::send(here.get(), "", 1, MSG_NOSIGNAL), 1);
    take_doorbells(nullptr, there.get());
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << "a pidfd is left";
}

TEST(Named, ConnectsUnrelatedSocketsAndKnowsWhoTheyAre) {
  const std::string name = unique_name("who");
  NamedListener listener(name);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const UniqueFd socket = connect_named(name, soon());
    char end = 0;
    ::_exit(::recv(socket.get(), &end, 1, 0) == 0 ? 0 : 1);
  }
  {
    const UniqueFd client = listener.accept(soon());
    EXPECT_EQ(peer_credentials(client.get()).pid, child);
    EXPECT_EQ(peer_credentials(client.get()).uid, ::geteuid());
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Named, NameIsTakenOnceAndFreeAfterwards) {
  const std::string name = unique_name("taken");
  {
    const NamedListener listener(name);
    EXPECT_EQ(error_of([&] { NamedListener again(name); }), EADDRINUSE);
  }
  const NamedListener again(name);
}

TEST(Named, WaitsForAServerUntilTheDeadline) {
  const std::string name = unique_name("nobody");
  EXPECT_EQ(error_of([&] { connect_named(name, Deadline::now()); }), ECONNREFUSED);
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(error_of([&] { connect_named(name, Deadline::after(30ms)); }), ECONNREFUSED);
  EXPECT_GE(monotonic_ns() - start, 30'000'000);
}

TEST(Named, WhoTakesNobodyIsWaitedForUntilTheDeadline) {
  const std::string name = unique_name("full");
  const AbstractAddress address("farcall/" + std::to_string(::geteuid()) + "/" + name);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size()), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const UniqueFd first = connect_named(name, Deadline::now());
  EXPECT_EQ(error_of([&] { connect_named(name, Deadline::now()); }), ETIMEDOUT);
  const Deadline deadline = Deadline::after(50ms);
  EXPECT_EQ(error_of([&] { connect_named(name, deadline); }), ETIMEDOUT);
  EXPECT_GE(monotonic_ns(), deadline.at());
  // As soon as there is room.
  std::thread server([&] {
    std::this_thread::sleep_for(20ms);
    (void)UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  });
  EXPECT_EQ(error_of([&] { connect_named(name, soon()); }), 0);
  server.join();
}

// What is sent later waits as long as it takes.
TEST(Named, TheDeadlineOfConnectingGoesWithIt) {
  const std::string name = unique_name("connected");
  const NamedListener listener(name);
  const auto expect_no_timeout = [&](Deadline deadline, std::optional<SignalCount> since) {
    const UniqueFd socket = connect_named(name, deadline, since);
    timeval left{.tv_sec = 1, .tv_usec = 1};
    socklen_t size = sizeof left;
    ASSERT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &left, &size), 0);
    EXPECT_EQ(left.tv_sec, 0);
    EXPECT_EQ(left.tv_usec, 0);
  };
  expect_no_timeout(Deadline::now(), std::nullopt);
  expect_no_timeout(soon(), std::nullopt);
  expect_no_timeout(Deadline::never(), SignalCount::now());
}

TEST(Named, RefusesNamesThatCannotBe) {
  EXPECT_EQ(error_of([] { NamedListener listener(""); }), EINVAL);
  EXPECT_EQ(error_of([] { NamedListener listener(std::string(200, 'x')); }), EINVAL);
  EXPECT_EQ(error_of([] { connect_named(std::string(200, 'x'), Deadline::now()); }), EINVAL);
}

// With `full` it lets nobody in.
void expect_not_trusted(bool full) {
  const std::string name = unique_name("foreign");
  // The server runs as root with the name of user 65534; a client of that user trusts root, but a
  // client of user 65533 must not trust a server of user 65534.
  const auto [ready_here, ready_there] = socket_pair();
  const pid_t server = ::fork();
  ASSERT_GE(server, 0);
  if (server == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    // Squats on the name that the other user would use.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string taken = "farcall/65533/" + name;
    std::memcpy(address.sun_path + 1, taken.data(), taken.size());
    const UniqueFd squatter(::socket(AF_UNIX, SOCK_STREAM, 0));
    if (::bind(squatter.get(), reinterpret_cast<sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + taken.size())) != 0 ||
        ::listen(squatter.get(), 1) != 0)
      ::_exit(3);
    std::vector<UniqueFd> own;
    while (full) {
      own.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
      if (::connect(own.back().get(), reinterpret_cast<sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + taken.size())) !=
          0)
        break;
    }
    (void)!::send(ready_there.get(), "x", 1, 0);
    char end = 0;
    (void)!::recv(ready_there.get(), &end, 1, 0);
    ::_exit(0);
  }
  char ready = 0;
  ASSERT_EQ(::recv(ready_here.get(), &ready, 1, 0), 1);
  const pid_t client = ::fork();
  ASSERT_GE(client, 0);
  if (client == 0) {
    if (::setresuid(65533, 65533, 65533) != 0) ::_exit(2);
    ::_exit(error_of([&] { connect_named(name, soon()); }) == EPERM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(client, &status, 0), client);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(::send(ready_here.get(), "x", 1, 0), 1);
  ASSERT_EQ(::waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

TEST(Named, DoesNotTrustAServerOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  expect_not_trusted(false);
}

TEST(Named, DoesNotWaitForAServerOfAnotherUserThatLetsNobodyIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  expect_not_trusted(true);
}

}  // namespace
}  // namespace farcall
