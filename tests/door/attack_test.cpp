// SPDX-License-Identifier: Apache-2.0
//
// What strangers try for a while against a server with the usual limits, each beside clients that
// must not fail. Afterwards the server holds nothing more than before.
#include <gtest/gtest.h>

#include <random>

#include "door/impostor.hpp"
#include "door/stalled_page.hpp"

namespace farcall::door::test {
namespace {

// Made while that is permitted.
std::optional<StalledPage> stalled;

constexpr auto kAttackTime = 700ms;

bool over() {
  static const std::int64_t end = now_ns() + std::chrono::nanoseconds(kAttackTime).count();
  return now_ns() > end;
}

UniqueFd sealed_hole(off_t size) {
  UniqueFd memory(::memfd_create("hole", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(memory.get(), size), 0);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return memory;
}

void send_long(RawSession& session, std::uint32_t number, std::uint64_t size, std::uint8_t flags) {
  std::memcpy(session.control().slot.data, &size, sizeof size);
  session.give(call::Kind::request, number, 0, flags);
  (void)session.answered(number, 200ms);
}

void open_and_leave(int door) {
  while (!over()) {
    RawSession session(door);
    if (::rand() % 2 == 0) (void)session.welcome();
  }
}

void ring_without_asking(int door) {
  std::deque<RawSession> sessions;
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(sessions.emplace_back(door).welcome());
  while (!over())
    for (RawSession& session : sessions)
      (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void send_rubbish(int door) {
  std::minstd_rand random(7);
  while (!over()) send_nonsense(door, random);
}

void announce_memory_without_end(int door) {
  for (int bits = 20; !over(); bits = bits == 40 ? 20 : bits + 1) {
    RawSession session(door);
    ASSERT_TRUE(session.welcome());
    const UniqueFd memory = sealed_hole(off_t{1} << bits);
    send_descriptors(session.socket.get(), std::array{memory.get()}, call::kPurposeData);
    send_long(session, 1, std::uint64_t{1} << bits, call::kTransfer | call::kTransferComes);
  }
}

void take_memory_away(int door) {
  constexpr off_t kBytes = off_t{1} << 20;
  const UniqueFd memory = sealed_hole(kBytes);
  std::thread([&] {
    while (!over())
      ::fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes);
  }).detach();
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  send_descriptors(session.socket.get(), std::array{memory.get()}, call::kPurposeData);
  for (std::uint32_t number = 1; !over(); ++number)
    send_long(session, number, kBytes,
              call::kTransfer | (number == 1 ? call::kTransferComes : std::uint8_t{0}));
}

void use_old_numbers(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  std::minstd_rand random(8);
  for (std::uint32_t number = UINT32_MAX - 9; !over();
       number += static_cast<std::uint32_t>(random() % 2)) {
    session.give(call::Kind::request, number - static_cast<std::uint32_t>(random() % 5),
                 static_cast<std::uint16_t>(random() % 9));
    (void)session.answered(number, 1ms);
  }
}

void hold_locks(int door) {
  const StalledPage& page = *stalled;
  std::deque<RawSession> sessions;
  for (int i = 0; i < 4; ++i) {
    RawSession& session = sessions.emplace_back(door, true, false);
    ASSERT_EQ(::send(session.answers.get(), "x", 1, 0), 1);
    page.hold_lock(session.other_end.get());
    send_descriptors(door, std::array{session.memory.fd(), session.other_end.get()},
                     call::kPurposeSession);
    ASSERT_TRUE(session.welcome());
    (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT);
    page.hold_lock(session.socket.get());
    session.give(call::Kind::request, 1, 5);
  }
  while (!over()) std::this_thread::sleep_for(1ms);
  ::_exit(0);
}

void send_sockets_in_sockets(int door) {
  while (!over()) {
    UniqueFd inner(::dup(STDERR_FILENO));
    for (int depth = 0; depth < 50; ++depth) {
      auto [here, there] = packet_socket_pair();
      send_descriptors(here.get(), std::array{inner.get()});
      inner = std::move(there);
    }
    send_descriptors(door, std::array{inner.get(), inner.get()}, call::kPurposeSession);
  }
}

void stop_and_continue(int door) {
  std::deque<Child> clients;
  for (int i = 0; i < 6; ++i)
    clients.emplace_back([&] {
      for (;;) (void)call(door, "x");
    });
  std::minstd_rand random(9);
  while (!over()) {
    ::kill(clients[random() % 6].pid(), random() % 2 == 0 ? SIGSTOP : SIGCONT);
    std::this_thread::sleep_for(100us);
  }
  for (Child& client : clients) client.kill();
}

void fork_and_die(int door) {
  while (!over()) {
    Child client([&] {
      for (;;) (void)call(door, "x");
    });
    std::this_thread::sleep_for(std::chrono::microseconds(::rand() % 3000));
    client.kill();
  }
}

void give_back_nothing(int door) {
  while (!over()) {
    RawSession session(door);
    ASSERT_TRUE(session.welcome());
    // It has none to get; its "done" answers nothing.
    session.give(call::Kind::done, 0, EMFILE);
    session.give(call::Kind::request, 1, 5);
    (void)session.answered(1);
    session.give(call::Kind::done, 1, EMFILE);
  }
}

struct Attack {
  const char* name;
  void (*run)(int door);
  bool has_threads = false;
};
std::ostream& operator<<(std::ostream& out, const Attack& attack) { return out << attack.name; }

class DoorAttack : public DoorImpostor, public ::testing::WithParamInterface<Attack> {};

TEST_P(DoorAttack, HarmsItsMakerAlone) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  if (GetParam().has_threads) FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  give_up_after(60s);
  EXPECT_EQ(call(door, "x").data, "x");
  const std::size_t before = open_descriptors();
  const Shared<std::atomic<bool>> stop;
  const Shared<std::atomic<int>> calls;
  std::deque<Child> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      while (!*stop) {
        ASSERT_EQ(call(door, "x").data, "x");
        ++*calls;
        std::this_thread::sleep_for(1ms);
      }
    });
  in_child([&] {
    ::signal(SIGPIPE, SIG_IGN);
    const UniqueFd mine(receive_door(giving));
    ASSERT_TRUE(stalled.emplace());
    ASSERT_TRUE(become(kNobody));
    (void)over();
    try {
      GetParam().run(mine.get());
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is turned out
    }
  });
  const int meanwhile = *calls;
  EXPECT_GT(meanwhile, 0);
  EXPECT_TRUE(eventually([&] { return *calls > meanwhile + 8; })) << "they go on";
  *stop = true;
  for (Child& client : clients) EXPECT_EQ(client.join(), 0);
  expect_all_well();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 2; })) << list_descriptors();
}

INSTANTIATE_TEST_SUITE_P(Each, DoorAttack,
                         ::testing::Values(Attack{"OpenAndLeave", open_and_leave},
                                           Attack{"RingWithoutAsking", ring_without_asking},
                                           Attack{"SendRubbish", send_rubbish},
                                           Attack{"AnnounceMemoryWithoutEnd",
                                                  announce_memory_without_end},
                                           Attack{"TakeMemoryAway", take_memory_away, true},
                                           Attack{"UseOldNumbers", use_old_numbers},
                                           Attack{"HoldLocks", hold_locks, true},
                                           Attack{"SendSocketsInSockets", send_sockets_in_sockets},
                                           Attack{"StopAndContinue", stop_and_continue},
                                           Attack{"ForkAndDie", fork_and_die},
                                           Attack{"GiveBackNothing", give_back_nothing}),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace farcall::door::test
