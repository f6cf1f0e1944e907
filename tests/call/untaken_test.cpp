// SPDX-License-Identifier: Apache-2.0
//
// Replies that their client leaves in its socket: what they bring is on its user's account.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/transfer.hpp"

namespace farcall::call::test {
namespace {

constexpr std::size_t kMost = 24;  // descriptors of one user

// Answers with as many descriptors as the request says, and so many bytes.
struct Wanted {
  std::uint32_t descriptors;
  std::uint32_t bytes;
};
void give(ServerThread& thread, Incoming& incoming) {
  Wanted wanted{};
  std::memcpy(&wanted, incoming.data().data(), std::min(incoming.data().size(), sizeof wanted));
  const std::vector<int> descriptors(wanted.descriptors, STDERR_FILENO);
  const std::vector<std::byte> bytes(wanted.bytes, std::byte{1});
  try {
    thread.reply(incoming, bytes, descriptors);
  } catch (const SystemError& error) {
    incoming.refuse(error.code().value());
  }
}

struct Untaken : ::testing::Test {
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    give_up_after(std::chrono::seconds(60));
  }
};

// False: the server has turned it out.
bool ask(RawSession& session, std::uint32_t number, const Wanted& wanted) {
  std::memcpy(session.control().slot.data, &wanted, sizeof wanted);
  session.give(Kind::request, number, sizeof wanted);
  return eventually([&] { return session.answered(number, 0ms) || session.ended(); }) &&
         !session.ended();
}
bool refused_with(const RawSession& session, int error) {
  return session.turn().flags == kRefused && session.control().slot.extra == error;
}

void call(Client& client, const Wanted& wanted) {
  std::vector<std::byte> buffer(wanted.bytes);
  CallResults results;
  results.buffer = buffer;
  const CallArguments arguments{.data = std::as_bytes(std::span(&wanted, 1)), .descriptors = {}};
  ASSERT_EQ(client.call(arguments, results, before_long()), Outcome::ok);
  EXPECT_EQ(results.descriptors.size(), wanted.descriptors);
  EXPECT_EQ(results.data.size(), wanted.bytes);
}

TEST_F(Untaken, DescriptorsCostTheirClientItsSession) {
  Server server(give, 2, WaitMode::adaptive, {.descriptors_per_user = kMost});
  const Shared<Event> full;
  const Shared<Event> others_served;
  const int port = server.port.descriptor();
  Child greedy([&] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    std::uint32_t replies = 0;
    while (replies < kMost && ask(session, replies + 1, {.descriptors = 3, .bytes = 0})) ++replies;
    EXPECT_EQ(replies, kMost / 3);
    RawSession another(port);
    ASSERT_TRUE(another.welcome());
    ASSERT_TRUE(ask(another, 1, {.descriptors = 3, .bytes = 0}));
    EXPECT_TRUE(refused_with(another, EAGAIN)) << "they are in the socket still";
    full->happens();
    ASSERT_TRUE(others_served->wait());
    session.answers.reset();
    std::uint32_t number = 1;
    EXPECT_TRUE(eventually([&] {
      return ask(another, ++number, {.descriptors = 3, .bytes = 0}) &&
             !refused_with(another, EAGAIN);
    })) << "nobody can take them any more";
  });
  ASSERT_TRUE(full->wait());
  in_child([port] {
    ASSERT_TRUE(become(kNobody + 1));
    Client client(port);
    for (int i = 0; i < 20; ++i) call(client, {.descriptors = 3, .bytes = 0});
  });
  others_served->happens();
  EXPECT_EQ(greedy.join(), 0);
}

TEST_F(Untaken, MemoryOfLongRepliesIsADescriptor) {
  Server server(give, 1, WaitMode::adaptive, {.descriptors_per_user = kMost});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    const SharedMemory small = SharedMemory::create(4096);
    std::uint32_t replies = 0;
    for (; replies < 2 * kMost; ++replies) {
      // A request that comes through memory of its own takes away the last reply's.
      send_descriptors(session.socket.get(), std::array{small.fd()}, kPurposeData);
      const Wanted wanted{.descriptors = 0, .bytes = 8000};
      const std::uint64_t size = sizeof wanted;
      std::memcpy(session.control().slot.data, &size, sizeof size);
      const Mapping there(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, small.fd(), 0),
                          4096);
      std::memcpy(there.data(), &wanted, sizeof wanted);
      session.give(Kind::request, replies + 1, sizeof size, kTransfer | kTransferComes);
      if (!eventually([&] { return session.answered(replies + 1, 0ms) || session.ended(); }) ||
          session.ended())
        break;
    }
    EXPECT_EQ(replies, kMost);
  });
}

// Whose client has long taken them nobody has told the server.
TEST_F(Untaken, WhatHasBeenTakenIsOnNobodysAccount) {
  constexpr std::size_t kClients = 10;
  Server server(give, 2, WaitMode::adaptive, {.descriptors_per_user = kMost});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    std::deque<Client> clients;
    for (std::size_t i = 0; i < kClients; ++i)
      call(clients.emplace_back(port), {.descriptors = 0, .bytes = 8000});
    for (Client& client : clients) call(client, {.descriptors = kMost - 4, .bytes = 0});
    for (int i = 0; i < 20; ++i)
      call(clients.front(), {.descriptors = kMost - 4, .bytes = 8000U << i % 8});
  });
}

// It is left there by a client that was about to sleep when it found the reply.
TEST_F(Untaken, ADoorbellIsNothingThatACallHasBrought) {
  Server server(give, 2, WaitMode::adaptive, {.descriptors_per_user = kMost});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    constexpr Wanted kMany{.descriptors = kMost - 4, .bytes = 0};
    RawSession session(port);
    RawSession another(port);
    ASSERT_TRUE(session.welcome() && another.welcome());
    session.control().client.parked = WaitState::kOnDescriptor;
    ASSERT_TRUE(ask(session, 1, kMany));
    EXPECT_EQ(take_packet(session.answers.get()).descriptors.size(), kMany.descriptors);
    pollfd doorbell{.fd = session.answers.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&doorbell, 1, 10'000), 1);
    ASSERT_TRUE(ask(another, 1, kMany));
    EXPECT_FALSE(refused_with(another, EAGAIN));
    // Descriptors that come behind it are.
    ASSERT_TRUE(ask(session, 2, {.descriptors = 1, .bytes = 0}));
    EXPECT_EQ(take_packet(another.answers.get()).descriptors.size(), kMany.descriptors);
    ASSERT_TRUE(ask(another, 2, {.descriptors = kMost, .bytes = 0}));
    EXPECT_TRUE(refused_with(another, EAGAIN));
  });
}

TEST_F(Untaken, MemoryThatIsReplacedHoldsNothing) {
  Server server(give, 1, WaitMode::adaptive, {.bytes_per_user = std::size_t{8} << 20});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    std::vector<UniqueFd> memory;
    for (std::uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(ask(session, i + 1, {.descriptors = 0, .bytes = 65'536U << i}));
      ASSERT_EQ(session.turn().flags, kTransfer | kTransferComes);
      memory.push_back(take_only_descriptor(session.answers.get()));
      ASSERT_TRUE(memory.back());
    }
    const auto pages = [&](const UniqueFd& of) {
      struct stat now {};
      EXPECT_EQ(::fstat(of.get(), &now), 0);
      return now.st_blocks;
    };
    EXPECT_NE(pages(memory.back()), 0) << "there is the last reply";
    memory.pop_back();
    for (const UniqueFd& one : memory) EXPECT_EQ(pages(one), 0);
  });
}

// Memory of more than is kept goes with its reply; but not before its client has it.
TEST_F(Untaken, BytesCountUntilTheyHaveBeenTaken) {
  constexpr std::uint32_t kLarge = TransferMemory::kMostKept + 1;
  Server server(give, 1, WaitMode::adaptive, {.bytes_per_user = 2 * kLarge - 1});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    ASSERT_TRUE(ask(session, 1, {.descriptors = 0, .bytes = kLarge}));
    ASSERT_TRUE(ask(session, 2, {.descriptors = 0, .bytes = kLarge}));
    EXPECT_TRUE(refused_with(session, E2BIG));
    EXPECT_TRUE(take_only_descriptor(session.answers.get()));
    ASSERT_TRUE(ask(session, 3, {.descriptors = 0, .bytes = kLarge}));
    EXPECT_FALSE(refused_with(session, E2BIG));
    EXPECT_TRUE(take_only_descriptor(session.answers.get()));
    Client client(port);
    for (int i = 0; i < 3; ++i) call(client, {.descriptors = 0, .bytes = kLarge});
  });
}

}  // namespace
}  // namespace farcall::call::test
