// SPDX-License-Identifier: Apache-2.0
//
// One thing each that a hostile process may do to pass for another, or for its door.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "door/impostor.hpp"

namespace farcall::door::test {
namespace {

struct DoorIdentity : DoorImpostor {};

TEST_F(DoorIdentity, AFakeOfALocalDoorIsNotLocal) {
  const FakeDoor fake(id_of(door));
  EXPECT_EQ(ERROR_OF(::door_revoke(fake.door.get())), EPERM);
  EXPECT_EQ(ERROR_OF(::door_bind(fake.door.get())), EINVAL);
  auto tell = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
    const uint_t attributes = count == 1 ? descriptors[0].d_attributes : 0;
    if (count == 1) ::close(fd_of(descriptors[0]));
    answer_number(attributes);
  };
  const int teller = make_door(tell);
  in_child([&] {
    const auto attributes = call(teller, "", {pass(fake.door.get())}).number<uint_t>();
    EXPECT_EQ(attributes & DOOR_LOCAL, 0U);
  });
  expect_all_well();
}

TEST_F(DoorIdentity, AFakeCannotNameAnotherServer) {
  // The target is the process that the kernel knows.
  const FakeDoor fake(id_of(door), 0xffffffff);
  Child hostile([&] {
    for (;;) {
      Packet packet = take_packet(fake.inner.get());
      if (packet.descriptors.size() != 2) continue;
      const auto memory = call::adopt_session(std::move(packet.descriptors[0]));
      auto& control = *reinterpret_cast<call::SessionControl*>(memory.data());
      for (auto& word : control.terms.words) word = 1;
      const auto ends = let_in(packet);
      std::this_thread::sleep_for(1s);
    }
  });
  in_child([&] {
    door_info_t info{};
    if (::door_info(fake.door.get(), &info) == 0) {
      EXPECT_EQ(info.di_target, ::getppid()) << "who made the socket";
      EXPECT_EQ(info.di_attributes & DOOR_LOCAL, 0U);
    }
  });
}

void tell_credentials(void*, char*, size_t, door_desc_t*, uint_t) {
  door_cred_t credentials{};
  ::door_cred(&credentials);
  answer_number(credentials);
}

TEST_F(DoorIdentity, CredentialsAreThoseOfWhoOpenedTheSession) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const int teller = ::door_create(tell_credentials, nullptr, 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(teller);
    ASSERT_TRUE(session.welcome());
    session.give(call::Kind::request, 1);
    ASSERT_TRUE(session.answered(1));
    door_cred_t seen{};
    std::memcpy(&seen, session.control().slot.data, sizeof seen);
    EXPECT_EQ(seen.dc_euid, kNobody);
    EXPECT_EQ(seen.dc_pid, ::getpid());
  });
}

// Though it has the session's socket, too.
TEST_F(DoorIdentity, NobodyElseSaysWhoASessionIsReallyOf) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const int teller = ::door_create(tell_credentials, nullptr, 0);
  in_child([&] {
    RawSession session(teller);
    ASSERT_TRUE(session.welcome());
    in_child([&] {
      ASSERT_TRUE(become(kNobody));
      send_credentials(session.socket.get(), {.pid = ::getpid(), .uid = kNobody, .gid = kNobody},
                       call::kPurposeReal);
    });
    session.give(call::Kind::request, 1);
    ASSERT_TRUE(eventually([&] { return session.answered(1, 0ms) || session.ended(); }));
    if (!session.answered(1, 0ms)) return;
    door_cred_t seen{};
    std::memcpy(&seen, session.control().slot.data, sizeof seen);
    EXPECT_EQ(seen.dc_ruid, ::getuid());
    EXPECT_EQ(seen.dc_rgid, ::getgid());
  });
}

TEST_F(DoorIdentity, OtherPeoplesFilesCannotBeCovered) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  const AttachAddress address(path);
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    const int mine = ::door_create(echo, nullptr, 0);
    const UniqueFd file(::open(path.c_str(), O_PATH));
    const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
    ASSERT_EQ(::listen(listener.get(), 5), 0);
    const auto [here, there] = packet_socket_pair();
    // By asking a server to, its own or another's...
    for (const int server : {mine, door})
      send_descriptors(server, std::array{listener.get(), file.get(), there.get()}, kPurposeAttach);
    std::this_thread::sleep_for(kGlance);
    // ... or by answering itself.
    for (;;) {
      const UniqueFd visitor(::accept(listener.get(), nullptr, nullptr));
      try {
        (void)take_packet(visitor.get());
        send_descriptors(visitor.get(), std::array{mine});
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): turned away
      }
    }
  });
  std::this_thread::sleep_for(3 * kGlance);
  in_server_and_client([&] {
    for (int i = 0; i < 10; ++i) {
      const UniqueFd opened(::open(path.c_str(), O_RDONLY));
      EXPECT_EQ(error_of(opened.get()), EBADF) << "an impostor's door";
      struct stat status {};
      EXPECT_EQ(::stat(path.c_str(), &status), 0);
      EXPECT_TRUE(S_ISREG(status.st_mode));
    }
  });
  expect_all_well();
}

TEST_F(DoorIdentity, ASocketOfAnotherKindIsNoDoorWhateverItIsCalled) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                     "farcall/door/%016x/0/%x%x", 0x4321, type, ::getpid());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path)) + 1 +
                         static_cast<socklen_t>(length)),
              0);
    door_info_t info{};
    EXPECT_EQ(ERROR_OF(::door_info(socket.get(), &info)), EBADF);
    EXPECT_EQ(error_of(socket.get()), EBADF);
  }
}

// Whoever attaches shows the listener that others will find by the file.
TEST_F(DoorIdentity, WhatIsNoListenerOfTheFilesIsNotAttached) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  const UniqueFd file(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const auto socket_named = [](const AttachAddress& address) {
    UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(made.get(), address.get(), address.size), 0);
    return made;
  };
  const auto attaches = [&](int listener, std::vector<int> more = {}, int name = -1) {
    auto [here, there] = packet_socket_pair();
    std::vector<int> all{listener, name < 0 ? file.get() : name, there.get()};
    all.insert(all.end(), more.begin(), more.end());
    send_descriptors(door, all, kPurposeAttach);
    there.reset();
    pollfd answer{.fd = here.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&answer, 1, 10'000), 1);
    return take_packet(here.get()).kind == Packet::Kind::descriptors;
  };
  const AttachAddress other(sandbox.file("other"));
  const UniqueFd misnamed = socket_named(other);
  ASSERT_EQ(::listen(misnamed.get(), 5), 0);
  EXPECT_FALSE(attaches(misnamed.get()));
  const UniqueFd listener = socket_named(AttachAddress(path));
  EXPECT_FALSE(attaches(listener.get())) << "it does not listen";
  ASSERT_EQ(::listen(listener.get(), 5), 0);
  EXPECT_FALSE(attaches(listener.get(), {0})) << "something more";
  const UniqueFd opened(
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC)));
  EXPECT_FALSE(attaches(listener.get(), {}, opened.get())) << "to close it may take its time";
  // The answer is for whoever attaches, and for nobody whose socket that one has.
  auto [here, there] = packet_socket_pair();
  in_child([&] {
    send_descriptors(door, std::array{listener.get(), file.get(), there.get()}, kPurposeAttach);
  });
  there.reset();
  pollfd answer{.fd = here.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&answer, 1, 10'000), 1);
  EXPECT_EQ(take_packet(here.get()).kind, Packet::Kind::closed);
  EXPECT_TRUE(attaches(listener.get()));
}

TEST_F(DoorIdentity, WhoMayNotOpenTheFileGetsNoDoor) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const Sandbox sandbox;
  const std::string path = sandbox.file("door", 0600);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const std::string readable = sandbox.file("readable", 0644);
  const AttachAddress address(path);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const UniqueFd name_only(::open(path.c_str(), O_PATH));
    ASSERT_GE(name_only.get(), 0);
    const UniqueFd other(::open(readable.c_str(), O_RDONLY));
    using Kind = Packet::Kind;
    EXPECT_EQ(ask(visit(address).get(), {name_only.get()}, kPurposeOpen).kind, Kind::closed);
    EXPECT_EQ(ask(visit(address).get(), {other.get()}, kPurposeOpen).kind, Kind::closed);
    EXPECT_EQ(ask(visit(address).get(), {}, kPurposeOpen).kind, Kind::closed);
    EXPECT_EQ(ask(visit(address).get(), {0, 0}, kPurposeOpen).kind, Kind::closed);
    EXPECT_EQ(ask(visit(address).get(), {}, kPurposeDetach).kind, Kind::closed);
  });
  const UniqueFd opened(::open(path.c_str(), O_RDONLY));
  EXPECT_EQ(call(opened.get(), "x").data, "x");
}

TEST_F(DoorIdentity, ARefusalWithoutAnErrorIsAnErrorAllTheSame) {
  const FakeDoor fake(0x4321);
  const std::int64_t lies[] = {0, -1, -5, 1'000'000, INT64_MIN};
  Child hostile([&] {
    std::size_t next = 0;
    for (;;) {
      Packet packet = take_packet(fake.inner.get());
      if (packet.kind == Packet::Kind::closed) ::_exit(0);
      if (packet.descriptors.size() != 2) continue;
      const auto memory = call::adopt_session(std::move(packet.descriptors[0]));
      auto& control = *reinterpret_cast<call::SessionControl*>(memory.data());
      for (auto& word : control.terms.words) word = UINT64_MAX;
      control.terms.words[0] = 0;
      const auto ends = let_in(packet);
      for (std::uint32_t number = 1; number <= 5; ++number) {
        if (!eventually(
                [&] {
                  const auto turn = call::Turn::unpack(control.slot.turn);
                  return turn.number == number && turn.kind == call::Kind::request;
                },
                1s))
          break;
        control.slot.extra = lies[next++ % 5];
        control.slot.turn =
            call::Turn{
                .number = number, .kind = call::Kind::reply, .flags = call::kRefused, .size = 0}
                .pack();
        (void)!::send(ends.socket.get(), "", 1, MSG_NOSIGNAL);
      }
    }
  });
  in_child([&] {
    for (int i = 0; i < 5; ++i) {
      door_arg_t arguments{};
      errno = 0;
      const int result = ::door_call(fake.door.get(), &arguments);
      EXPECT_EQ(result, -1);
      EXPECT_GT(errno, 0);
      EXPECT_LT(errno, 134) << "no error that there is";
    }
  });
}

}  // namespace
}  // namespace farcall::door::test
