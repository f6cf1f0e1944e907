// SPDX-License-Identifier: Apache-2.0
//
// What a stranger may not bring about: another user, who speaks the protocol by hand, against a
// server of root's with the usual limits. Each test says what became of the server, and of others.
#include "door/trust.hpp"

#include <gtest/gtest.h>
#include <linux/memfd.h>

#include "harness/lingering.hpp"

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

namespace farcall::door::test {
namespace {

struct Teller {
  Answer operator()(char*, size_t, door_desc_t*, uint_t) const {
    door_cred_t who{};
    ::door_cred(&who);
    return std::string(reinterpret_cast<const char*>(&who), sizeof who);
  }
};

TEST_F(DoorTrust, ASocketThatLeadsToAnotherUserLendsNobodyHisName) {
  Teller teller;
  const int telling = make_door(teller);
  // Somebody of root's who listens; whoever connects has a socket with root at its other end.
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const AbstractAddress name("farcall-test/" + std::to_string(::getpid()));
  ASSERT_EQ(::bind(listener.get(), name.get(), name.size()), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  giver.door = telling;
  as_stranger([&](int mine) {
    const UniqueFd borrowed(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(borrowed.get(), name.get(), name.size()), 0);
    ASSERT_EQ(peer_credentials(borrowed.get()).uid, 0U) << "it is root's, to the kernel";
    RawSession forged(mine, true, false);
    send_descriptors(mine, std::array{forged.memory.fd(), borrowed.get()}, call::kPurposeSession);
    EXPECT_FALSE(forged.welcome());
    // And in earnest.
    const Reply reply = call(mine, "");
    door_cred_t who{};
    ASSERT_EQ(reply.data.size(), sizeof who);
    std::memcpy(&who, reply.data.data(), sizeof who);
    EXPECT_EQ(who.dc_euid, kNobody);
    EXPECT_EQ(who.dc_ruid, kNobody);
    EXPECT_EQ(who.dc_pid, ::getpid());
  });
  // Nothing was said to whoever listened.
  const UniqueFd visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  char byte = 0;
  EXPECT_LE(::recv(visitor.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(DoorTrust, RealAndSavedIdsAreThoseThatTheKernelAccepts) {
  Teller teller;
  const int telling = make_door(teller);
  in_child([&] {
    ASSERT_EQ(::setresuid(kNobody, kNobody + 1, 0), 0);
    const Reply reply = call(telling, "");
    door_cred_t who{};
    ASSERT_EQ(reply.data.size(), sizeof who);
    std::memcpy(&who, reply.data.data(), sizeof who);
    EXPECT_EQ(who.dc_euid, kNobody + 1);
    EXPECT_EQ(who.dc_ruid, kNobody);
  });
  giver.door = telling;
  as_stranger([&](int mine) {
    RawSession session(mine);
    ASSERT_TRUE(session.welcome());
    const Credentials root{.pid = ::getpid(), .uid = 0, .gid = 0};
    EXPECT_THROW(send_credentials(session.socket.get(), root, call::kPurposeReal), SystemError);
  });
}

TEST_F(DoorTrust, AServerIsPassedNoPidfdWithEachPacket) {
  const std::size_t before = open_descriptors();
  as_stranger([&](int mine) {
    RawSession session(mine, true, false);
    const int on = 1;
    for (const int fd : {session.answers.get(), session.other_end.get()})
      ::setsockopt(fd, SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on);
    send_descriptors(mine, std::array{session.memory.fd(), session.other_end.get()},
                     call::kPurposeSession);
    ASSERT_TRUE(session.welcome());
    ::setsockopt(session.socket.get(), SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on);
    for (std::uint32_t i = 1; i <= 500; ++i) {
      session.give(call::Kind::request, i);
      ASSERT_TRUE(session.answered(i));
    }
  });
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 4; })) << list_descriptors();
}

TEST_F(DoorTrust, WhatLingersInAPacketHoldsNobodyUp) {
  Child hostile([&] {
    give_up_after(40s);
    const UniqueFd mine(receive_door(giving));
    ASSERT_TRUE(become(kNobody));
    for (int i = 0; i < 6; ++i) {
      const UniqueFd slow = lingering(20);
      // Which is no session, and nothing that doors know of.
      send_descriptors(mine.get(), std::array{slow.get()},
                       i % 2 == 0 ? call::kPurposeSession : kFirstOwnPurpose + 9);
    }
    ::pause();
  });
  expect_nobody_waits();
}

TEST_F(DoorTrust, WhatLingersInASessionHoldsNobodyUp) {
  Child hostile([&] {
    give_up_after(40s);
    const UniqueFd mine(receive_door(giving));
    ASSERT_TRUE(become(kNobody));
    for (int i = 0; i < 4; ++i) {
      RawSession session(mine.get());
      ASSERT_TRUE(session.welcome());
      const UniqueFd slow = lingering(20);
      send_descriptors(session.socket.get(), std::array{slow.get()}, call::kPurposeData);
    }
    ::pause();
  });
  expect_nobody_waits();
}

// A session with a long reply that has been given, and not taken yet.
RawSession with_long_reply(int mine) {
  RawSession session(mine);
  EXPECT_TRUE(session.welcome());
  session.give(call::Kind::request, 1);
  EXPECT_TRUE(session.answered(1));
  return session;
}

// Memory that the server has made is its own: who keeps it keeps nothing.
TEST_F(DoorTrust, WhatIsLeftOfALongReplyIsEmptyWhenItsSessionHasEnded) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer(std::string(500'000, 'a'));
  };
  giver.door = make_door(procedure);
  as_stranger([&](int mine) {
    RawSession session = with_long_reply(mine);
    const UniqueFd memory = call::test::take_only_descriptor(session.answers.get());
    const auto pages = [&] {
      struct stat status {};
      EXPECT_EQ(::fstat(memory.get(), &status), 0);
      return status.st_blocks;
    };
    EXPECT_GT(pages(), 0);
    session.socket.reset();
    EXPECT_TRUE(eventually([&] { return pages() == 0; })) << pages();
  });
}

// The kernel counts what is on its way as the server's user's.
TEST_F(DoorTrust, ALongReplyThatNobodyTakesStaysOnItsClientsAccount) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    return Answer(size == 0 ? std::string(10'000, 'a') : std::string(data, size));
  };
  giver.door = make_door(procedure);
  const DescriptorLimit few(400);
  as_stranger([&](int mine) {
    std::vector<UniqueFd> untaken;
    for (;;) {
      RawSession session(mine);
      if (!session.welcome()) break;
      session.give(call::Kind::request, 1);
      ASSERT_TRUE(session.answered(1));
      untaken.push_back(std::move(session.answers));
      ASSERT_LE(untaken.size(), 200U) << "half of the server's descriptors";
    }
    EXPECT_GE(untaken.size(), 10U);
    // As it is taken, and as it is thrown away.
    for (std::size_t i = 0; i < untaken.size(); i += 2) untaken[i].reset();
    for (std::size_t i = 1; i < untaken.size(); i += 2)
      EXPECT_TRUE(call::test::take_only_descriptor(untaken[i].get()));
    EXPECT_TRUE(eventually([&] { return RawSession(mine).welcome(); }));
  });
  EXPECT_EQ(call(giver.door, "x").data, "x");
}

TEST_F(DoorTrust, AOneWayRequestIsNoCall) {
  std::atomic<int> calls{0};
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    ++calls;
    ::door_return(nullptr, 0, nullptr, 0);
  };
  giver.door = make_door(procedure);
  as_stranger([&](int mine) {
    for (int i = 0; i < 4; ++i) {
      RawSession session(mine);
      ASSERT_TRUE(session.welcome());
      session.give(call::Kind::one_way, 1, 5);
      EXPECT_TRUE(eventually([&] {
        pollfd end{.fd = session.socket.get(), .events = POLLRDHUP, .revents = 0};
        return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP)) != 0;
      })) << "it is turned out";
    }
    EXPECT_EQ(call(mine, "").error, 0);
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(DoorTrust, WhoSaysToPassNoArgumentsPassesNone) {
  // A door_return() that fails because there is no room for results ends a thread of many servers.
  constexpr std::int64_t kNoArguments = 1;  // as in src/door
  int calls = 0;
  auto procedure = [&](char* data, size_t size, door_desc_t*, uint_t) {
    ++calls;
    ::door_return(data, size, nullptr, 0);
  };
  giver.door = make_door(procedure);
  as_stranger([&](int mine) {
    RawSession session(mine);
    ASSERT_TRUE(session.welcome());
    for (std::uint32_t number = 1; number < 5; ++number) {
      session.control().slot.extra = kNoArguments << 32;
      session.give(call::Kind::request, number, 5);
      ASSERT_TRUE(session.answered(number));
      EXPECT_NE(session.turn().flags & call::kRefused, 0);
      EXPECT_EQ(session.control().slot.extra, EINVAL);
    }
    EXPECT_EQ(call(mine, "x").data, "x");
  });
  EXPECT_EQ(calls, 1);
}

UniqueFd sparse_memory(std::uint64_t size) {
  UniqueFd sparse(::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(sparse.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return sparse;
}

// Of a request for which the session gets that memory.
void expect_refusal(RawSession& session, int memory, std::uint64_t size, int error) {
  send_descriptors(session.socket.get(), std::array{memory}, call::kPurposeData);
  std::memcpy(session.control().slot.data, &size, sizeof size);
  session.give(call::Kind::request, 1, 0, call::kTransfer | call::kTransferComes);
  ASSERT_TRUE(session.answered(1));
  EXPECT_NE(session.turn().flags & call::kRefused, 0);
  EXPECT_EQ(session.control().slot.extra, error);
}

TEST_F(DoorTrust, ARequestThatIsTooLongIsRefusedBeforeItIsCopied) {
  giver.door = door;
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 16), 0);
  const std::size_t before = Usage::resident_bytes();
  constexpr std::uint64_t kSize = std::uint64_t{200} << 20;
  as_stranger([&](int mine) {
    RawSession session(mine);
    ASSERT_TRUE(session.welcome());
    const UniqueFd sparse = sparse_memory(kSize);
    expect_refusal(session, sparse.get(), kSize, ENOBUFS);
    struct stat status {};
    ASSERT_EQ(::fstat(sparse.get(), &status), 0);
    EXPECT_LT(status.st_blocks * 512, 1 << 20) << "nobody has looked at it";
  });
  if (kSlow == 1) {
    EXPECT_LT(Usage::resident_bytes(), before + (32U << 20));
  }
}

TEST_F(DoorTrust, FilesThatTheServerMayNotReadAreLetGoOnceTheyHaveNoName) {
  const Sandbox sandbox;
  const ScopedServer server([] {
    const int fd = ::door_create(echo, nullptr, 0);
    EXPECT_TRUE(become(kNobody));
    return fd;
  });
  const auto held = [&] {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(server.pid()) + "/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = held();
  for (int i = 0; i < 40; ++i) {
    const std::string path = sandbox.file("file" + std::to_string(i));
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    ASSERT_EQ(::fattach(server.door(), path.c_str()), 0) << std::strerror(errno);
    ASSERT_EQ(::unlink(path.c_str()), 0);
  }
  EXPECT_TRUE(eventually([&] { return held() <= before + 10; })) << held();
}

TEST_F(DoorTrust, MemoryForAStrangersRepliesIsBounded) {
  static auto& reply = *new std::vector<char>(std::size_t{16} << 20);
  static std::atomic<int> refused{0};
  auto procedure = [](void*, char*, size_t, door_desc_t*, uint_t) {
    if (ERROR_OF(::door_return(reply.data(), reply.size(), nullptr, 0)) == E2BIG) ++refused;
    ::door_return(nullptr, 0, nullptr, 0);
  };
  giver.door = ::door_create(procedure, nullptr, 0);
  as_stranger([&](int mine) {
    std::deque<RawSession> sessions;
    for (int i = 0; i < 20; ++i) {
      RawSession& session = sessions.emplace_back(mine);
      ASSERT_TRUE(session.welcome());
      session.give(call::Kind::request, 1);
      ASSERT_TRUE(session.answered(1));
      EXPECT_EQ((session.turn().flags & call::kTransfer) != 0, i < 16) << i << " of them";
    }
  });
  EXPECT_EQ(refused, 4);
}

TEST_F(DoorTrust, AStrangersMemoryIsBounded) {
  giver.door = door;
  const std::size_t before = Usage::resident_bytes();
  as_stranger([&](int mine) {
    constexpr std::uint64_t kSize = std::uint64_t{1} << 30;
    RawSession session(mine);
    ASSERT_TRUE(session.welcome());
    const UniqueFd sparse = sparse_memory(kSize);
    expect_refusal(session, sparse.get(), kSize, E2BIG);
  });
  if (kSlow == 1) {
    EXPECT_LT(Usage::resident_bytes(), before + (64U << 20));
  }
}

TEST_F(DoorTrust, MemoryThatCanRaiseASignalIsNotTaken) {
  const UniqueFd huge(
      ::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!huge) GTEST_SKIP() << "no huge pages here";
  ASSERT_EQ(::ftruncate(huge.get(), 2 << 20), 0);
  ASSERT_EQ(::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_THROW(SharedMemory::adopt(huge.duplicate()), SystemError);
  giver.door = door;
  as_stranger([&](int mine) {
    RawSession session(mine, true, false);
    send_descriptors(mine, std::array{huge.get(), session.other_end.get()}, call::kPurposeSession);
    EXPECT_FALSE(session.welcome());
    RawSession other(mine);
    ASSERT_TRUE(other.welcome());
    send_descriptors(other.socket.get(), std::array{huge.get()}, call::kPurposeData);
    const std::uint64_t size = 2 << 20;
    std::memcpy(other.control().slot.data, &size, sizeof size);
    other.give(call::Kind::request, 1, 0, call::kTransfer | call::kTransferComes);
    EXPECT_FALSE(other.answered(1, 200ms));
  });
  expect_all_well();
}

}  // namespace
}  // namespace farcall::door::test
