// SPDX-License-Identifier: Apache-2.0
//
// One thing each that a hostile process may do to stop others.
#include "door/impostor.hpp"

#include <gtest/gtest.h>

namespace farcall::door::test {
namespace {

TEST_F(DoorImpostor, AnEmptyPacketEndsNothing) {
  const UniqueFd received(receive_door(giving));
  in_child([&] {
    for (const int fd : {door, received.get()}) (void)!::send(fd, "", 0, MSG_NOSIGNAL);
  });
  std::this_thread::sleep_for(kGlance);
  EXPECT_EQ(call(received.get(), "x").data, "x");
  expect_all_well();
}

TEST_F(DoorImpostor, AClientThatShutsItsSocketDownHarmsItselfAlone) {
  const UniqueFd other(receive_door(giving));
  Child hostile([&] { ::shutdown(receive_door(giving), SHUT_RDWR); });
  EXPECT_EQ(hostile.join(), 0);
  std::this_thread::sleep_for(kGlance);
  EXPECT_EQ(call(other.get(), "x").data, "x");
  expect_all_well();
}

TEST_F(DoorImpostor, ADoorIsNoSessionsSocket) {
  // The server shuts down a session's socket when it ends.
  const UniqueFd other(receive_door(giving));
  in_child([&] {
    const UniqueFd mine(receive_door(giving));
    const SharedMemory memory = SharedMemory::create(call::kSessionBytes);
    void* address =
        ::mmap(nullptr, memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
    auto& control = *static_cast<call::SessionControl*>(address);
    control.magic = call::SessionControl::kMagic;
    send_descriptors(mine.get(), std::array{memory.fd(), mine.get()}, call::kPurposeSession);
    std::this_thread::sleep_for(kGlance);
    // A turn that cannot be.
    control.slot.turn =
        call::Turn{.number = 1, .kind = call::Kind::request, .flags = 0xff, .size = 9999}.pack();
    (void)!::send(mine.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    std::this_thread::sleep_for(kGlance);
  });
  EXPECT_EQ(call(other.get(), "x").data, "x");
  expect_all_well();
}

TEST_F(DoorImpostor, AnAnswerThatIsNotReadStopsNobody) {
  // To attach, a client sends along the socket that it wants the answer on. This one is full.
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const AttachAddress address(path);
  Child hostile([&] {
    const UniqueFd mine(receive_door(giving));
    for (int i = 0; i < 5; ++i) {
      const std::string name = sandbox.file("file" + std::to_string(i));
      const AttachAddress where(name);
      const UniqueFd file(::open(name.c_str(), O_PATH));
      const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
      ASSERT_EQ(::bind(listener.get(), where.get(), where.size), 0);
      ASSERT_EQ(::listen(listener.get(), 1), 0);
      const auto [here, there] = packet_socket_pair();
      while (::send(there.get(), "x", 1, MSG_DONTWAIT) == 1) {
      }
      send_descriptors(mine.get(), std::array{listener.get(), file.get(), there.get()},
                       kPurposeAttach);
    }
    std::this_thread::sleep_for(3 * kGlance);
    ::pause();
  });
  std::this_thread::sleep_for(3 * kGlance);
  expect_all_well();
  EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
}

TEST_F(DoorImpostor, RepliesThatAreNotReadKeepNoThread) {
  // Descriptors travel through a socket. This client confirms them, but never takes them out.
  auto flood = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer({pass(0), pass(0), pass(0)}, "");
  };
  const int flooding = make_door(flood);
  EXPECT_EQ(error_of(flooding), 0);
  const std::size_t before = threads();
  Child hostile([&] {
    give_up_after(60s);
    std::vector<std::unique_ptr<RawSession>> sessions;
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(std::make_unique<RawSession>(flooding));
      ASSERT_TRUE(sessions.back()->welcome());
    }
    for (auto& session : sessions) {
      std::uint32_t number = 0;
      for (int i = 0; i < 3000; ++i) {
        session->give(call::Kind::request, ++number);
        if (!session->answered(number, 300ms)) break;
        session->control().slot.extra = 0;
        session->give(call::Kind::done, number);
      }
    }
    ::pause();
  });
  // Wherever the threads are, they come back.
  std::this_thread::sleep_for(4s);
  EXPECT_LE(threads(), before + 5);
  expect_all_well();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string waits_in;
    std::ifstream file(entry.path() / "wchan");
    std::getline(file, waits_in);
    EXPECT_EQ(waits_in.find("sock_alloc_send"), std::string::npos) << "a thread sends for ever";
  }
}

TEST_F(DoorImpostor, IdleVisitorsKeepNobodyOut) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const AttachAddress address(path);
  const Shared<Event> connected;
  Child hostile([&] {
    for (int i = 0; i < 600; ++i) {
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
      if (socket < 0) break;
      (void)!::connect(socket, address.get(), address.size);
    }
    connected->happens();
    ::pause();
  });
  ASSERT_TRUE(connected->wait());
  EXPECT_TRUE(eventually(
      [&] {
        const UniqueFd opened(::open(path.c_str(), O_RDONLY));
        return error_of(opened.get(), "x") == 0;
      },
      15s))
      << "the path is no door any more";
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST_F(DoorImpostor, ManySessionsOfOneUserLeaveRoomForOthers) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ScopedServer server([] {
    rlimit few{.rlim_cur = 300, .rlim_max = 300};
    ::setrlimit(RLIMIT_NOFILE, &few);
    return ::door_create(echo, nullptr, 0);
  });
  const Shared<Event> opened;
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    std::vector<std::unique_ptr<RawSession>> sessions;
    try {
      for (int i = 0; i < 400; ++i) sessions.push_back(std::make_unique<RawSession>(server.door()));
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the server takes no more
    }
    opened->happens();
    ::pause();
  });
  ASSERT_TRUE(opened->wait());
  in_child([&] { EXPECT_EQ(call(server.door(), "x").data, "x"); });
}

}  // namespace
}  // namespace farcall::door::test
