// SPDX-License-Identifier: Apache-2.0
//
// Clients and servers that write random values over all that they share and send random packets.
// Whoever meets them goes on. FARCALL_HOSTILE_SECONDS sets for how long.
#include <gtest/gtest.h>

#include "door/impostor.hpp"
#include "door/raw.hpp"
#include "harness/killer.hpp"
#include "harness/lingering.hpp"
#include "harness/sandbox.hpp"
#include "harness/usage.hpp"

namespace farcall::door::test {
namespace {

std::int64_t hostile_ns() {
  return setting("FARCALL_HOSTILE_SECONDS", 6) * std::int64_t{1'000'000'000} / 2;
}

// Looks at every byte it was given, and answers with their sum.
Answer add_up(const char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  std::uint64_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum += static_cast<unsigned char>(data[i]);
  for (uint_t i = 0; i < count; ++i) {
    EXPECT_GE(::fcntl(fd_of(descriptors[i]), F_GETFD), 0);
    ::close(fd_of(descriptors[i]));
  }
  return std::to_string(sum) + "/" + std::to_string(count);
}

[[noreturn]] void attack_as_client(int door, unsigned seed) {
  ::signal(SIGPIPE, SIG_IGN);
  std::minstd_rand random(seed);
  for (;;) {
    try {
      send_nonsense(door, random);
      open_a_bad_session(door, random);
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the server hung up
    }
  }
}

TEST(DoorHostile, ServersSurviveTheirClients) {
  give_up_after(100s);
  auto procedure = add_up;
  const int door = make_door(procedure);
  EXPECT_EQ(call(door, "a").data, "97/0");
  auto attack = [&](std::int64_t time) {
    std::vector<std::unique_ptr<Child>> attackers;
    for (unsigned seed : {1U, 2U})
      attackers.push_back(std::make_unique<Child>([&] {
        give_up_after(60s);
        attack_as_client(door, seed);
      }));
    const std::int64_t end = now_ns() + time;
    int calls = 0;
    std::minstd_rand random(3);
    while (now_ns() < end || calls <= 20) {
      const std::size_t size = random() % 4 == 0 ? random() % 100'000 : random() % 300;
      const std::vector<door_desc_t> descriptors(random() % 3, pass(0));
      const Reply reply = call(door, std::string(size, 'a'), descriptors);
      ASSERT_EQ(reply.error, 0) << std::strerror(reply.error);
      ASSERT_EQ(reply.data, std::to_string(size * 97) + "/" + std::to_string(descriptors.size()));
      ++calls;
      std::this_thread::sleep_for(100us);
    }
    EXPECT_GT(calls, 20);
  };
  attack(hostile_ns() / 4);
  std::this_thread::sleep_for(100ms);
  const Usage before;
  attack(hostile_ns());
  // Threads that hostile clients kept busy are there to stay; there are few of them.
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before.descriptors + 4; }))
      << open_descriptors() << " instead of " << before.descriptors;
  EXPECT_LE(threads(), before.threads_running + 50);
}

// Answers calls by hand, wrongly.
[[noreturn]] void attack_as_server(int inner, unsigned seed) {
  ::signal(SIGPIPE, SIG_IGN);
  std::minstd_rand random(seed);
  for (;;) {
    try {
      Packet packet = take_packet(inner);
      if (packet.kind == Packet::Kind::closed) ::_exit(0);
      if (packet.kind == Packet::Kind::nothing) pause_up_to(100, random);
      if (packet.kind != Packet::Kind::descriptors || packet.descriptors.size() != 2) continue;
      const auto memory = call::adopt_session(std::move(packet.descriptors[0]));
      auto& control = *reinterpret_cast<call::SessionControl*>(memory.data());
      // Smallest and largest request, most descriptors, and more.
      for (auto& word : control.terms.words) word = random() % 8 == 0 ? random() : UINT64_MAX;
      if (random() % 32 != 0) control.terms.words[0] = 0;
      if (random() % 16 == 0) continue;
      const auto [mine, socket] = let_in(packet);
      (void)eventually(
          [&] { return call::Turn::unpack(control.slot.turn.load()).kind == call::Kind::request; },
          5ms);
      Waiter waker(socket.get(), WaitMode::block);
      for (std::size_t i = random() % 400; i > 0; --i) {
        scribble(control, random, true);
        waker.wake(control.server, control.client);
        if (random() % 6 == 0) send_nonsense(socket.get(), random);
        if (random() % 16 == 0) send_memory(socket.get(), random);
        (void)!::send(socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (random() % 8 == 0) pause_up_to(300, random);
      }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the client hung up
    }
  }
}

// Calls with a buffer between two margins that nobody may touch. Returns the errno.
int guarded_call(int door, std::minstd_rand& random) {
  constexpr std::size_t kMargin = 64;
  const std::size_t room = random() % 4 == 0 ? random() % 100'000 : random() % 500;
  std::vector<unsigned char> memory(room + 2 * kMargin, 0xa5);
  std::string request(random() % 4 == 0 ? random() % 100'000 : random() % 300, 'q');
  door_desc_t descriptor = pass(0);
  door_arg_t arguments{};
  arguments.data_ptr = request.data();
  arguments.data_size = request.size();
  arguments.desc_ptr = &descriptor;
  arguments.desc_num = static_cast<uint_t>(random() % 2);
  arguments.rbuf = reinterpret_cast<char*>(memory.data()) + kMargin;
  arguments.rsize = room;
  const char* const rbuf = arguments.rbuf;
  errno = 0;
  const int error = ::door_call(door, &arguments) == 0 ? 0 : errno == 0 ? -1 : errno;
  for (std::size_t i = 0; i < kMargin; ++i) {
    EXPECT_EQ(memory[i], 0xa5);
    EXPECT_EQ(memory[memory.size() - 1 - i], 0xa5);
  }
  if (error != 0) return error;
  for (uint_t i = 0; i < arguments.desc_num; ++i) ::close(fd_of(arguments.desc_ptr[i]));
  std::uint64_t sum = 0;
  for (size_t i = 0; i < std::min(arguments.data_size, size_t{1} << 20); ++i)
    sum += static_cast<unsigned char>(arguments.data_ptr[i]);
  EXPECT_LE(sum, std::uint64_t{255} << 20);
  if (arguments.rbuf != rbuf) {
    EXPECT_EQ(::munmap(arguments.rbuf, arguments.rsize), 0);
  }
  return 0;
}

TEST(DoorHostile, ARevokedDoorTakesNoSessionsThoughTheyAreSent) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  EXPECT_TRUE(RawSession(door).welcome());
  ASSERT_EQ(::door_revoke(door), 0);
  EXPECT_FALSE(RawSession(second.get()).welcome());
}

TEST(DoorHostile, LimitsHoldForClientsThatDoNotHeedThem) {
  std::atomic<int> calls{0};
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    ++calls;
    ::door_return(nullptr, 0, nullptr, 0);
  };
  const int door = make_door(procedure);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 4), 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MIN, 2), 0);
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  std::uint32_t number = 0;
  for (const std::uint16_t size : std::initializer_list<std::uint16_t>{5, 1, 300}) {
    session.give(call::Kind::request, ++number, size);
    ASSERT_TRUE(session.answered(number));
    EXPECT_NE(session.turn().flags & call::kRefused, 0) << size;
    EXPECT_EQ(session.control().slot.extra, ENOBUFS);
  }
  EXPECT_EQ(calls, 0);
  session.give(call::Kind::request, ++number, 4);
  ASSERT_TRUE(session.answered(number));
  EXPECT_EQ(session.turn().flags & call::kRefused, 0);
  EXPECT_EQ(calls, 1);
}

// Who waits for a thread has been admitted by limits that are others when one comes.
TEST(DoorHostile, WhatIsTakenNoMoreWhenAThreadComesIsKept) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
    const int mine = ::dup(STDIN_FILENO);
    Caller caller(door, "x", {pass(mine, DOOR_DESCRIPTOR | DOOR_RELEASE)});
    ASSERT_TRUE(caller.waits());
    ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 0), 0);
    std::thread([door] {
      EXPECT_EQ(::door_bind(door), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    EXPECT_EQ(caller.reply().error, ENFILE);
    EXPECT_GE(::fcntl(mine, F_GETFD), 0);
  });
}

TEST(DoorHostile, ClientsSurviveTheirServers) {
  give_up_after(100s);
  const FakeDoor fake(0x1234);
  Child attacker([&] {
    give_up_after(60s);
    attack_as_server(fake.inner.get(), 5);
  });
  ::signal(SIGUSR1, [](int) {});
  const pthread_t caller = ::pthread_self();
  std::atomic<bool> over{false};
  // What gets no answer ends with a signal.
  std::thread impatience([&] {
    while (!over) {
      std::this_thread::sleep_for(20ms);
      ::pthread_kill(caller, SIGUSR1);
    }
  });
  std::minstd_rand random(6);
  const std::int64_t end = now_ns() + hostile_ns();
  int answers = 0;
  std::array<int, 200> failures{};
  std::optional<Usage> before;
  // Beside many others the time may bring nothing but refusals.
  const auto unanswered = [&] { return failures[EINTR] + failures[EBADF] + failures[EAGAIN]; };
  while (now_ns() < end || answers == 0 || unanswered() == 0) {
    const std::int64_t begun = now_ns();
    const int error = guarded_call(fake.door.get(), random);
    // A message that brings no descriptors ends after two seconds; nothing takes longer.
    EXPECT_LT(now_ns() - begun, 10'000'000'000);
    EXPECT_TRUE(error >= 0 && error < 134) << error;
    if (error == 0) ++answers;
    if (error > 0 && error < 134) ++failures[static_cast<std::size_t>(error)];
    if (!before && now_ns() > end - hostile_ns() * 3 / 4) before.emplace();
  }
  over = true;
  impatience.join();
  attacker.kill();
  std::printf("%d answers", answers);
  for (std::size_t error = 0; error < failures.size(); ++error)
    if (failures[error] != 0)
      std::printf(", %d x %s", failures[error], ::strerrorname_np(static_cast<int>(error)));
  std::printf("\n");
  EXPECT_GT(unanswered(), 0);
  if (before) {
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= before->descriptors + 4; }))
        << list_descriptors();
  }
}

// Somebody else's crowd does not turn out who has come to a path and not said yet what it wants.
TEST(DoorHostile, WhoHasJustComeToAPathIsNotCrowdedOut) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(100s);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const AttachAddress address(path);
  const UniqueFd visitor = visit(address);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    std::array<UniqueFd, 100> crowd;
    for (std::size_t i = 0; i < 1000; ++i) crowd[i % crowd.size()] = visit(address);
  });
  const UniqueFd later(::open(path.c_str(), O_RDONLY));
  EXPECT_EQ(call(later.get(), "x").data, "x") << "all who came before have been let in by now";
  const Packet answer = ask(visitor.get(), {file.get()}, kPurposeOpen);
  ASSERT_EQ(answer.kind, Packet::Kind::descriptors);
  ASSERT_EQ(answer.descriptors.size(), 1U);
  EXPECT_EQ(call(answer.descriptors[0].get(), "x").data, "x");
}

// Of those who come and never say what they want only so many stay: the oldest of whoever has most
// of them are turned away.
TEST(DoorHostile, OfManyWhoComeToAPathAndSayNothingTheBusiestLeave) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 5000) GTEST_SKIP() << "this process may not open 5000 descriptors";
  limit.rlim_cur = 5000;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const AttachAddress address(path);
  const auto hung_up = [](const UniqueFd& visitor, std::chrono::milliseconds time) {
    pollfd entry{.fd = visitor.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, static_cast<int>(time.count())) == 1;
  };
  const UniqueFd first = visit(address);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    std::vector<UniqueFd> crowd;
    for (int i = 0; i < 300; ++i) crowd.push_back(visit(address));
    EXPECT_TRUE(hung_up(crowd.front(), kPatience));
    EXPECT_FALSE(hung_up(crowd.back(), 0ms));
    EXPECT_FALSE(hung_up(first, 0ms)) << "another user's";
  });
}

TEST(DoorHostile, AttachedPathsSurviveTheirVisitors) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become a user who may not detach";
  give_up_after(100s);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const AttachAddress address(path);
  Child attacker([&] {
    ASSERT_TRUE(become(kNobody));
    ::signal(SIGPIPE, SIG_IGN);
    give_up_after(60s);
    std::minstd_rand random(7);
    for (;;) {
      const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), address.get(), address.size) != 0) ::_exit(3);
      try {
        for (std::size_t i = random() % 4; i > 0; --i) send_nonsense(socket.get(), random);
        if (random() % 8 == 0) (void)!::send(socket.get(), "", 0, MSG_NOSIGNAL);
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it hung up
      }
    }
  });
  const std::int64_t end = now_ns() + hostile_ns() / 2;
  int opened = 0;
  while (now_ns() < end || opened <= 10) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY));
    const Reply reply = call(fd.get(), "x");
    ASSERT_EQ(reply.data, "x") << "after " << opened << ", " << std::strerror(reply.error);
    ++opened;
  }
  ASSERT_EQ(::waitpid(attacker.pid(), nullptr, WNOHANG), 0) << "nobody attacked";
}

// Sends sockets in which others lie whose close waits for the sender; by a process that ends then,
// so that it is not the sender who closes them last, and waits.
void send_what_lingers(const AttachAddress& address) {
  for (int i = 0; i < 6; ++i) {
    auto [here, there] = packet_socket_pair();
    send_descriptors(here.get(), std::array{lingering(60).get()});
    const Shared<Event> alone;
    const pid_t sender = ::fork();
    if (sender == 0) {
      if (alone->wait()) send_descriptors(visit(address).get(), std::array{there.get()});
      ::_exit(0);
    }
    there.reset();
    alone->happens();
    EXPECT_EQ(::waitpid(sender, nullptr, 0), sender);
  }
}

// Sends again and again, as somebody whom nobody trusts.
template <class Send>
Child flood(Send send) {
  return Child([&] {
    ASSERT_TRUE(become(kNobody));
    ::signal(SIGPIPE, SIG_IGN);
    give_up_after(60s);
    for (;;) try {
        send();
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it hung up
      }
  });
}

// Whatever the sender has it wait for, what is sent is closed, and fills no table meanwhile.
TEST(DoorHostile, WhatIsLongInClosingShutsNobodyOut) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(100s);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  const AttachAddress address(path);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 4000;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const Shared<Event> sent;
  Child keeper([&] {
    ASSERT_TRUE(become(kNobody));
    send_what_lingers(address);
    sent->happens();
    ::pause();
  });
  ASSERT_TRUE(sent->wait());
  const std::size_t before = open_descriptors();
  std::size_t most = 0;
  {
    Child visitor = flood([&] {
      send_descriptors(visit(address).get(), std::vector<int>(200, 0), kFirstOwnPurpose + 9);
    });
    Child caller = flood([&] {
      const UniqueFd mine(::open(path.c_str(), O_RDONLY));
      (void)call(mine.get(), "x", std::vector<door_desc_t>(200, pass(0)));
    });
    const std::int64_t end = now_ns() + hostile_ns() / 3;
    for (int opened = 0; now_ns() < end || opened <= 10; ++opened) {
      const UniqueFd fd(::open(path.c_str(), O_RDONLY));
      ASSERT_TRUE(fd) << std::strerror(errno) << " after " << opened;
      const Reply reply = call(fd.get(), "x");
      ASSERT_EQ(reply.data, "x") << std::strerror(reply.error) << " after " << opened;
      most = std::max(most, open_descriptors());
    }
  }
  EXPECT_LT(most,
            before + 2000);  // a user's share, a quarter, and what is taken before that is seen
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 10; })) << list_descriptors();
}

}  // namespace
}  // namespace farcall::door::test
