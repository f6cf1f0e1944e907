// SPDX-License-Identifier: Apache-2.0
#include "door/attacks.hpp"

#include <sys/time.h>

#include <random>

namespace farcall::door::test {
namespace {

std::optional<StalledPage> stalled;
std::chrono::nanoseconds attack_time{};

// What is asked for by "long"; by "give", a descriptor.
constexpr std::size_t kLongReply = std::size_t{8} << 20;

bool over() {
  static const std::int64_t end = now_ns() + attack_time.count();
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
  const std::jthread taker([&] {
    while (!over())
      ::fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes);
  });
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

// Asks for a long reply, and takes away the memory that the server writes it into.
void take_memory_of_replies_away(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  UniqueFd memory;
  std::atomic<bool> known{false};
  const std::jthread taker([&] {
    while (!known && !over()) std::this_thread::yield();
    while (!over())
      ::fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kLongReply);
  });
  for (std::uint32_t number = 1; !over(); ++number) {
    std::memcpy(session.control().slot.data, "long", 4);
    session.give(call::Kind::request, number, 4);
    if (!session.answered(number, 200ms) || known) continue;
    memory = call::test::take_only_descriptor(session.answers.get());
    ASSERT_TRUE(memory);
    known = true;
  }
}

void change_what_is_read(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  std::atomic<std::uint32_t> current{1};
  // Ends before the memory that it writes to is unmapped.
  const std::jthread writer([&] {
    std::minstd_rand random(10);
    while (!over()) {
      session.control().slot.turn = call::Turn{.number = current,
                                               .kind = static_cast<call::Kind>(random() % 6),
                                               .flags = static_cast<std::uint8_t>(random()),
                                               .size = static_cast<std::uint16_t>(random())}
                                        .pack();
      session.control().slot.extra = static_cast<std::int64_t>(random());
    }
  });
  while (!over()) {
    session.give(call::Kind::request, ++current, 5);
    (void)session.answered(current, 1ms);
    if (session.ended()) break;
  }
  while (!over()) std::this_thread::sleep_for(1ms);
}

void lie_about_waiting(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  std::minstd_rand random(11);
  for (std::uint32_t number = 1; !over(); ++number) {
    for (WaitState* state : {&session.control().client, &session.control().server}) {
      state->parked = static_cast<std::uint32_t>(random() % 6);
      state->bell = static_cast<std::uint32_t>(random());
      state->processor = static_cast<std::uint32_t>(random() % 4);
      state->state = static_cast<std::uint32_t>(random() % 8 == 0);
    }
    session.give(call::Kind::request, number, 5);
    (void)session.answered(number, 1ms);
  }
}

void shut_down_halves(int door) {
  std::minstd_rand random(12);
  while (!over()) {
    RawSession session(door);
    if (!session.welcome()) continue;
    session.give(call::Kind::request, 1, 5);
    for (const int socket : {session.socket.get(), session.answers.get(), door})
      if (socket != door || random() % 64 == 0) ::shutdown(socket, static_cast<int>(random() % 3));
    session.give(call::Kind::request, 2, 5);
    (void)session.answered(2, 1ms);
  }
  ::shutdown(door, SHUT_RDWR);
}

// On every socket of which the server has the other end, or the same.
void set_options(int door) {
  ::signal(SIGIO, SIG_IGN);
  std::minstd_rand random(13);
  while (!over()) {
    RawSession session(door, true, false);
    const UniqueFd same = session.other_end.duplicate();
    send_descriptors(door, std::array{session.memory.fd(), same.get()}, call::kPurposeSession);
    if (!session.welcome()) continue;
    for (std::uint32_t number = 1; number < 20; ++number) {
      for (const int socket : {same.get(), session.socket.get(), session.answers.get()}) {
        const int value = static_cast<int>(random() % 3);
        ::setsockopt(socket, SOL_SOCKET, static_cast<int>(random() % 80), &value, sizeof value);
        ::fcntl(socket, F_SETFL, random() % 2 == 0 ? O_NONBLOCK : O_ASYNC);
        ::fcntl(socket, F_SETOWN, random() % 2 == 0 ? ::getppid() : ::getpid());
      }
      session.give(call::Kind::request, number, 5);
      (void)session.answered(number, 1ms);
    }
  }
}

void say_who_without_end(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  const Credentials self{.pid = ::getpid(), .uid = ::getuid(), .gid = ::getgid()};
  for (std::uint32_t number = 1; !over(); ++number) {
    for (int i = 0; i < 8; ++i) try {
        send_credentials(session.socket.get(), self,
                         i % 2 == 0 ? call::kPurposeReal : call::kPurposeSaved);
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is full
      }
    session.give(call::Kind::request, number, 5);
    (void)session.answered(number, 1ms);
  }
}

void tie_knots(int door) {
  while (!over()) {
    RawSession session(door);
    if (!session.welcome()) continue;
    const int mine[] = {session.socket.get(), session.answers.get(), session.memory.fd(), door};
    for (int i = 0; i < 6; ++i) send_descriptors(session.socket.get(), mine, call::kPurposeData);
    session.give(call::Kind::request, 1, 5, call::kDescriptors);
    (void)session.answered(1, 10ms);
  }
}

void pass_its_own_doors(int door) {
  while (!over()) {
    std::vector<door_desc_t> many;
    for (int i = 0; i < 200; ++i)
      many.push_back(pass(i % 2 == 0 ? door : ::dup(door),
                          DOOR_DESCRIPTOR | (i % 2 == 0 ? 0U : DOOR_RELEASE)));
    (void)call(door, "x", many);
  }
}

void share_a_session(int door) {
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  std::deque<Child> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&, i] {
      std::minstd_rand random(static_cast<unsigned>(14 + i));
      for (;;)
        session.give(call::Kind::request, static_cast<std::uint32_t>(random() % 100),
                     static_cast<std::uint16_t>(random() % 100));
    });
  while (!over()) std::this_thread::sleep_for(1ms);
}

void interrupt_itself(int door) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval often{.it_interval = {0, 50}, .it_value = {0, 50}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  while (!over()) (void)call(door, "x");
  ::_exit(0);
}

void ask_and_give_up(int door) {
  while (!over()) {
    std::deque<RawSession> sessions;
    for (int i = 0; i < 16; ++i) {
      if (!sessions.emplace_back(door).welcome()) continue;
      std::memcpy(sessions.back().control().slot.data, "long", 4);
      sessions.back().give(call::Kind::request, 1, 4);
    }
  }
}

void ask_through_many_sessions(int door) {
  std::deque<RawSession> all;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(all.emplace_back(door).welcome());
  for (RawSession& session : all) session.give(call::Kind::request, 1, 5);
  while (!over())
    for (RawSession& session : all)
      if (const call::Turn turn = session.turn(); turn.kind == call::Kind::reply)
        session.give(call::Kind::request, turn.number + 1, 5);
}

void never_confirm(int door) {
  std::deque<RawSession> all;
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(all.emplace_back(door).welcome());
  for (std::uint32_t number = 1; !over(); ++number) {
    for (RawSession& session : all) {
      std::memcpy(session.control().slot.data, "give", 4);
      session.control().slot.extra = 0;
      session.give(call::Kind::request, number, 4);
    }
    for (RawSession& session : all) {
      ASSERT_TRUE(session.answered(number) || over());
      (void)call::test::take_only_descriptor(session.answers.get());
    }
  }
}

void have_long_requests_copied(int door) {
  constexpr off_t kBytes = off_t{32} << 20;
  const UniqueFd memory = sealed_hole(kBytes);
  RawSession session(door);
  ASSERT_TRUE(session.welcome());
  send_descriptors(session.socket.get(), std::array{memory.get()}, call::kPurposeData);
  for (std::uint32_t number = 1; !over(); ++number) {
    const std::uint64_t size = kBytes;
    std::memcpy(session.control().slot.data, &size, sizeof size);
    session.give(call::Kind::request, number, 0,
                 call::kTransfer | (number == 1 ? call::kTransferComes : std::uint8_t{0}));
    ASSERT_TRUE(session.answered(number) || over());
  }
}

void call_without_pause(int door) {
  while (!over()) (void)call(door, "x");
}

constexpr std::array kAttacks{Attack{"OpenAndLeave", open_and_leave},
                              Attack{"RingWithoutAsking", ring_without_asking},
                              Attack{"SendRubbish", send_rubbish},
                              Attack{"AnnounceMemoryWithoutEnd", announce_memory_without_end},
                              Attack{"TakeMemoryAway", take_memory_away, true},
                              Attack{"UseOldNumbers", use_old_numbers},
                              Attack{"HoldLocks", hold_locks, true},
                              Attack{"SendSocketsInSockets", send_sockets_in_sockets},
                              Attack{"StopAndContinue", stop_and_continue},
                              Attack{"ForkAndDie", fork_and_die},
                              Attack{"GiveBackNothing", give_back_nothing},
                              Attack{"TakeMemoryOfRepliesAway", take_memory_of_replies_away, true},
                              Attack{"ChangeWhatIsRead", change_what_is_read, true},
                              Attack{"LieAboutWaiting", lie_about_waiting},
                              Attack{"ShutDownHalves", shut_down_halves},
                              Attack{"SetOptions", set_options},
                              Attack{"SayWhoWithoutEnd", say_who_without_end},
                              Attack{"TieKnots", tie_knots},
                              Attack{"PassItsOwnDoors", pass_its_own_doors},
                              Attack{"ShareASession", share_a_session},
                              Attack{"InterruptItself", interrupt_itself},
                              Attack{"AskAndGiveUp", ask_and_give_up}};

constexpr std::array kAttacksOnOneThread{
    Attack{"RingWithoutAsking", ring_without_asking},
    Attack{"AskThroughManySessions", ask_through_many_sessions},
    Attack{"CallWithoutPause", call_without_pause}, Attack{"NeverConfirm", never_confirm},
    Attack{"HaveLongRequestsCopied", have_long_requests_copied}};

}  // namespace

void echo_or_long(void*, char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  static auto& reply = *new std::vector<char>(kLongReply);
  for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
  if (std::string_view(data, size) == "give") {
    door_desc_t passed = pass(STDERR_FILENO);
    ::door_return(nullptr, 0, &passed, 1);
  }
  const bool asked = std::string_view(data, size) == "long";
  ::door_return(asked ? reply.data() : data, asked ? reply.size() : size, nullptr, 0);
}

std::span<const Attack> attacks() { return kAttacks; }
std::span<const Attack> attacks_on_one_thread() { return kAttacksOnOneThread; }

void run_as_nobody(const Attack& attack, int door, std::chrono::nanoseconds time) {
  ::signal(SIGPIPE, SIG_IGN);
  ASSERT_TRUE(stalled.emplace());
  ASSERT_TRUE(become(kNobody));
  attack_time = time;
  (void)over();
  try {
    attack.run(door);
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is turned out
  }
}

}  // namespace farcall::door::test
