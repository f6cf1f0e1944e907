// SPDX-License-Identifier: Apache-2.0
//
// Clients and servers that write random values over all that they share and send random packets.
// Whoever meets them goes on and is not deceived. FARCALL_HOSTILE_SECONDS sets for how long.
#include <gtest/gtest.h>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "harness/killer.hpp"
#include "harness/usage.hpp"
#include "message/channel.hpp"
#include "message/names.hpp"
#include "message/priority.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

using call::test::let_in;
using call::test::open_a_bad_session;
using call::test::scribble;
using call::test::send_memory;
using call::test::send_nonsense;

std::int64_t hostile_ns() {
  return setting("FARCALL_HOSTILE_SECONDS", 6) * std::int64_t{1'000'000'000} / 2;
}

// What a connection says beside messages: a request for a socket for pulses, with anything in it.
void send_pulses(int connection, std::minstd_rand& random) {
  int queued = 0;
  if (::ioctl(connection, SIOCOUTQ, &queued) != 0 || queued > 20'000) return;
  std::pair<UniqueFd, UniqueFd> ends = packet_socket_pair();
  switch (random() % 8) {
    case 0: ends.second = UniqueFd(::dup(STDERR_FILENO)); break;
    case 1: ends.second = UniqueFd(::dup(connection)); break;
    case 2: ends.second = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); break;
    case 3: send_descriptors(connection, std::array{ends.second.get()}, kPurposePulses); return;
    default: break;
  }
  RawPulses pulses(connection, std::move(ends));
  if (random() % 4 != 0) (void)pulses.welcome();
  for (std::size_t i = random() % 400; i > 0; --i) {
    const PulsePacket packet{
        .magic = random() % 50 == 0 ? static_cast<std::uint32_t>(random()) : PulsePacket::kMagic,
        .code = random() % 3 == 0 ? -static_cast<std::int32_t>(random() % 6)
                                  : static_cast<std::int32_t>(random()),
        .value = static_cast<std::int64_t>(std::uint64_t{random()} << 33 ^ random()),
        .priority = random() % 2 == 0 ? static_cast<std::uint32_t>(random()) : 0xffffffff,
        .thread = static_cast<std::uint32_t>(random())};
    const std::size_t size = random() % 50 == 0 ? random() % (sizeof packet + 1) : sizeof packet;
    pulses.page().pulses[i % PulsePage::kMost] = packet;
    pulses.page().count = static_cast<std::uint32_t>(random() % 3 == 0 ? random() : i);
    if (pulses.socket)
      (void)!::send(pulses.socket.get(), &packet, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (random() % 2 == 0) std::this_thread::sleep_for(100us);
}

[[noreturn]] void attack_as_client(const std::string& name, unsigned seed) {
  ::signal(SIGPIPE, SIG_IGN);
  std::minstd_rand random(seed);
  for (;;) {
    const int connection = farcall_name_open(name.c_str());
    if (connection < 0) continue;
    const int fd = farcall_connection_descriptor(connection);
    try {
      for (std::size_t rounds = random() % 6; rounds > 0; --rounds) {
        send_nonsense(fd, random);
        send_pulses(fd, random);
        open_a_bad_session(fd, random);
      }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the server hung up
    }
    farcall_disconnect(connection);
  }
}

// Those who may connect, by process; what a server was told is compared with this.
struct Known {
  std::array<std::atomic<pid_t>, 4> processes{};
  std::atomic<int> false_identities{0};
};

bool plausible(const farcall_info& info, const Known& known) {
  const bool pulse_of_channel = info.pid == 0;
  bool is_known = pulse_of_channel;
  for (const auto& process : known.processes) is_known |= info.pid == process;
  return is_known && info.uid == (pulse_of_channel ? ~0U : ::geteuid()) &&
         (info.tid == 0 || is_thread_of(info.tid, info.pid));
}

// Serves by all means there are, looks at every byte, and answers with their sum.
void serve_all(int channel, Known& known) {
  std::vector<unsigned char> buffer(256 * 1024);
  std::vector<std::int64_t> old;
  std::minstd_rand random(9);
  for (;;) {
    farcall_info info{};
    farcall_timeout(50'000'000);
    const std::int64_t id = farcall_receive(channel, buffer.data(), buffer.size(), &info);
    if (id < 0 && errno == EBADF) return;
    if (id < 0) continue;
    // A client that was killed has no threads to compare with.
    if (!plausible(info, known) && ::kill(info.pid, 0) == 0) ++known.false_identities;
    EXPECT_LE(info.received, std::min(buffer.size(), info.length));
    EXPECT_LE(info.priority, 140);
    EXPECT_LE(info.descriptor_count, static_cast<unsigned>(FARCALL_DESCRIPTORS));
    if (id == 0) {
      EXPECT_GE(info.code, FARCALL_PULSE_DEATH);
      // What a client says must be unblocked is one of those that wait.
      if (info.code == FARCALL_PULSE_UNBLOCK) {
        EXPECT_GT(info.value, FARCALL_ONE_WAY);
      }
      continue;
    }
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < info.received; ++i) sum += buffer[i];
    unsigned descriptors = 0;
    for (; descriptors < info.descriptor_count; ++descriptors) {
      EXPECT_GE(::fcntl(info.descriptors[descriptors], F_GETFD), 0);
      ::close(info.descriptors[descriptors]);
    }
    if (id == FARCALL_ONE_WAY) continue;
    const std::string text = std::to_string(sum) + "/" + std::to_string(descriptors);
    if (random() % 2 == 0) {
      const ssize_t again = farcall_read(id, info.length / 2, buffer.data(), buffer.size());
      EXPECT_LE(again,
                static_cast<ssize_t>(std::min(buffer.size(), info.length - info.length / 2)));
      farcall_write(id, 0, text.data(), text.size());
      farcall_write(id, info.room / 2 + 1, buffer.data(), random() % 2000);
      farcall_write(id, 0, text.data(), text.size());
    }
    farcall_reply(id, 0, text.data(), text.size());
    // An answer is good once, whoever has the same place by now.
    old.push_back(id);
    if (old.size() > 8) old.erase(old.begin());
    if (farcall_reply(old[random() % old.size()], 1, "forged", 6) == 0)
      ADD_FAILURE() << "an id was good twice";
  }
}

TEST(MessageHostile, ServersSurviveTheirClientsAndAreNotDeceived) {
  give_up_after(100s);
  const std::string name = unique_name("hostile");
  const int channel = farcall_name_attach(
      name.c_str(), FARCALL_UNBLOCK | FARCALL_DISCONNECT | FARCALL_INHERIT, 0600);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  Known known;
  known.processes[0] = ::getpid();
  std::thread first([&] { serve_all(channel, known); });
  std::thread second([&] { serve_all(channel, known); });
  const int connection = farcall_name_open(name.c_str());
  auto attack = [&](std::int64_t time) {
    std::vector<std::unique_ptr<Child>> attackers;
    const Shared<Event> is_known;
    for (unsigned seed : {1U, 2U}) {
      attackers.push_back(std::make_unique<Child>([&] {
        give_up_after(60s);
        ASSERT_TRUE(is_known->wait());
        attack_as_client(name, seed);
      }));
      known.processes[seed] = attackers.back()->pid();
      is_known->happens();
    }
    const std::int64_t end = now_ns() + time;
    int calls = 0;
    std::minstd_rand random(3);
    while (now_ns() < end || calls <= 20) {
      const std::string text(random() % 4 == 0 ? random() % 100'000 : random() % 300, 'a');
      farcall_timeout(std::chrono::nanoseconds(kPatience).count());
      const Reply reply = send(connection, text, 100);
      ASSERT_EQ(reply.error, 0) << std::strerror(reply.error) << " after " << calls;
      ASSERT_EQ(reply.text.substr(0, reply.text.find('/')), std::to_string(text.size() * 97));
      ++calls;
      std::this_thread::sleep_for(100us);
    }
    EXPECT_GT(calls, 20);
    for (const auto& attacker : attackers)
      EXPECT_EQ(::waitpid(attacker->pid(), nullptr, WNOHANG), 0) << "nobody attacked";
  };
  attack(hostile_ns() / 4);
  std::this_thread::sleep_for(100ms);
  const Usage before;
  attack(hostile_ns());
  EXPECT_EQ(known.false_identities, 0);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before.descriptors + 4; }))
      << open_descriptors() << " instead of " << before.descriptors << "\n"
      << list_descriptors();
  EXPECT_TRUE(eventually([&] { return threads() <= before.threads_running; }))
      << "threads that close descriptors go when there is nothing to close";
  if (kSlow == 1) {
    // A message that is still coming may be as large as messages can be.
    EXPECT_TRUE(
        eventually([&] { return Usage::resident_bytes() <= before.resident + (64U << 20); }));
  }
  farcall_channel_destroy(channel);
  first.join();
  second.join();
  farcall_disconnect(connection);
}

// ---- servers ----

// A socket that passes for a connection, and its other end.
struct FakeConnection {
  explicit FakeConnection(unsigned flags) {
    auto [here, there] = packet_socket_pair();
    static int count = 0;
    const AbstractAddress address(std::string(kConnectionPrefix) + std::to_string(::getpid()) +
                                  "-" + std::to_string(++count) + "/" + std::to_string(flags));
    EXPECT_EQ(::bind(there.get(), address.get(), address.size()), 0) << std::strerror(errno);
    inner = std::move(here);
    number = farcall_adopt(there.release());
    EXPECT_GT(number, 0) << std::strerror(errno);
  }
  ~FakeConnection() { farcall_disconnect(number); }
  UniqueFd inner;
  int number;
};

// A number below 0 would be an error that has no errno.
TEST(MessageHostile, AStatusBelowZeroIsNoStatus) {
  Server server([](ServerThread& thread, Incoming& incoming) {
    thread.reply(incoming, {}, {}, std::int64_t{0x80000001});
  });
  const auto endpoint = server.port.open_endpoint({}, {});
  const std::string name = std::string(kConnectionPrefix) + std::to_string(::getpid()) + "-below/0";
  const int connection = farcall_adopt(endpoint->branch(name).release());
  ASSERT_GT(connection, 0) << std::strerror(errno);
  EXPECT_EQ(send(connection, "x").error, EPROTO);
  farcall_disconnect(connection);
}

// A reply in the likeness of one in pieces.
void scribble_pieces(call::SessionControl& control, std::minstd_rand& random) {
  const std::int64_t statuses[] = {0,       kFailed | 5,           kFailed,    kFailed | 0xffff,
                                   kPieces, kPieces | 0x80000000U, kPieces | 3};
  control.slot.extra = random() % 8 == 0 ? static_cast<std::int64_t>(random()) << 32
                                         : statuses[random() % std::size(statuses)];
  std::array<std::uint64_t, 32> words{};
  const std::uint64_t values[] = {0,    1,    2,        10,         100,
                                  4096, 5000, 1U << 20, UINT64_MAX, SIZE_MAX / 16};
  for (auto& word : words) word = values[random() % std::size(values)];
  std::memcpy(control.slot.data, words.data(), sizeof words);
  const call::Turn seen = call::Turn::unpack(control.slot.turn.load());
  control.slot.turn = call::Turn{.number = seen.number,
                                 .kind = call::Kind::reply,
                                 .flags = 0,
                                 .size = static_cast<std::uint16_t>(random() % sizeof words)}
                          .pack();
}

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
      const auto [mine, socket] = let_in(packet);
      auto& control = *reinterpret_cast<call::SessionControl*>(memory.data());
      Waiter waker(socket.get(), WaitMode::block);
      for (std::size_t i = random() % 100; i > 0; --i) {
        (void)eventually(
            [&] {
              return call::Turn::unpack(control.slot.turn.load()).kind == call::Kind::request;
            },
            2ms);
        if (random() % 2 == 0) {
          scribble_pieces(control, random);
        } else {
          for (std::size_t j = random() % 8; j > 0; --j) scribble(control, random, true);
        }
        if (random() % 6 == 0) control.taken = static_cast<std::uint32_t>(random());
        waker.wake(control.server, control.client);
        if (random() % 8 == 0) send_nonsense(socket.get(), random);
        if (random() % 16 == 0) send_memory(socket.get(), random);
        (void)!::send(socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the client hung up
    }
  }
}

// Sends with rooms between margins that nobody may touch. Returns the errno, or 0.
int guarded_send(int connection, std::minstd_rand& random) {
  constexpr std::size_t kMargin = 64;
  const std::size_t count = random() % 4;
  std::vector<std::vector<unsigned char>> memory(count);
  std::vector<iovec> rooms(count);
  std::size_t room = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = random() % 4 == 0 ? random() % 20'000 : random() % 300;
    memory[i].assign(size + 2 * kMargin, 0xa5);
    rooms[i] = {.iov_base = memory[i].data() + kMargin, .iov_len = size};
    room += size;
  }
  std::string text(random() % 4 == 0 ? random() % 100'000 : random() % 300, 'q');
  const iovec out{.iov_base = text.data(), .iov_len = text.size()};
  const int passed[]{STDERR_FILENO};
  farcall_message message{};
  message.send = &out;
  message.send_count = 1;
  message.reply = rooms.data();
  message.reply_count = static_cast<int>(count);
  message.descriptors = passed;
  message.descriptor_count = random() % 4 == 0 ? 1 : 0;
  const int status = farcall_send_message(connection, &message);
  const int error = status < 0 ? errno : 0;
  for (const auto& one : memory)
    for (std::size_t i = 0; i < kMargin; ++i) {
      EXPECT_EQ(one[i], 0xa5);
      EXPECT_EQ(one[one.size() - 1 - i], 0xa5);
    }
  if (status >= 0) {
    EXPECT_LE(message.replied, room);
  }
  return error;
}

TEST(MessageHostile, ClientsSurviveTheirServers) {
  give_up_after(100s);
  const FakeConnection plain(0);
  const FakeConnection unblocking(FARCALL_UNBLOCK);
  std::deque<Child> attackers;
  for (const FakeConnection* fake : {&plain, &unblocking})
    attackers.emplace_back([&, fake] {
      give_up_after(60s);
      attack_as_server(fake->inner.get(), 5);
    });
  std::minstd_rand random(6);
  const std::int64_t end = now_ns() + hostile_ns();
  int answers = 0;
  std::array<int, 200> failures{};
  std::optional<Usage> before;
  // Beside many others the time may bring too little.
  const std::int64_t latest = end + std::chrono::nanoseconds(kPatience).count();
  const auto lacks_something = [&] { return answers == 0 || failures[EPROTO] == 0 || !before; };
  while (now_ns() < end || (lacks_something() && now_ns() < latest)) {
    const std::int64_t begun = now_ns();
    // Where the channel asks for that, its clients wait for as long as it likes: not used here.
    const int connection = random() % 8 == 0 ? unblocking.number : plain.number;
    if (connection == plain.number) farcall_timeout(20'000'000);
    if (connection == unblocking.number) {
      // A pulse and a one-way message cannot be kept.
      farcall_pulse(connection, 0, 1, 2);
      farcall_timeout(20'000'000);
      (void)farcall_send_one_way(connection, "x", 1);
      continue;
    }
    const int error = guarded_send(connection, random);
    // Half a message that stalls ends after two seconds; nothing takes longer.
    EXPECT_LT(now_ns() - begun, 10'000'000'000);
    EXPECT_TRUE(error >= 0 && error < 134) << error;
    ++(error == 0 ? answers : failures[static_cast<std::size_t>(error)]);
    if (!before && now_ns() > end - hostile_ns() * 3 / 4) before.emplace();
  }
  for (Child& attacker : attackers) {
    EXPECT_EQ(::waitpid(attacker.pid(), nullptr, WNOHANG), 0) << "nobody attacked";
    attacker.kill();
  }
  std::printf("%d answers", answers);
  for (std::size_t error = 0; error < failures.size(); ++error)
    if (failures[error] != 0)
      std::printf(", %d x %s", failures[error], ::strerrorname_np(static_cast<int>(error)));
  std::printf("\n");
  EXPECT_GT(answers, 0);
  EXPECT_GT(failures[EPROTO], 0);
  ASSERT_TRUE(before);
  // What a server was sent, and what it has sent, is closed by a thread that can wait.
  // Each connection may keep an idle session, one that is being made, and a page of pulses; there
  // may have been none of them then.
  constexpr std::size_t kKept = 2 * (2 + 2 + 2);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before->descriptors + kKept; }))
      << list_descriptors();
}

TEST(MessageHostile, ANameThatAnswersNonsenseIsAnError) {
  give_up_after(60s);
  const std::string name = unique_name("nonsense");
  const UniqueFd listener = listen_at(kOpenPrefix, own_name(name));
  Child server([&] {
    give_up_after(60s);
    ::signal(SIGPIPE, SIG_IGN);
    std::minstd_rand random(4);
    const FakeConnection fake(0);
    for (;;) {
      const UniqueFd client = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) {
        pause_up_to(100, random);
        continue;
      }
      try {
        FdMessage fd_message;
        fd_message.bytes.resize(random() % 2 == 0 ? sizeof(int) : random() % 10);
        int number = random() % 2 == 0 ? 0 : static_cast<int>(random() % 300) - 100;
        if (number == ETIMEDOUT) number = EIO;
        if (!fd_message.bytes.empty())
          std::memcpy(fd_message.bytes.data(), &number,
                      std::min(sizeof number, fd_message.bytes.size()));
        for (std::size_t i = random() % 3; i > 0; --i) {
          auto [here, there] = packet_socket_pair();
          fd_message.descriptors.push_back(random() % 2 == 0 ? std::move(here)
                                                             : UniqueFd(::dup(STDERR_FILENO)));
        }
        if (random() % 4 != 0)
          send_fd_message(client.get(), fd_message);
        else
          (void)!::send(client.get(), "nonsense nonsense", random() % 17, MSG_NOSIGNAL);
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has gone
      }
    }
  });
  const Usage before;
  const std::int64_t end = now_ns() + hostile_ns() / 3;
  int opened = 0;
  for (; now_ns() < end || opened <= 10; ++opened) {
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    const int connection = farcall_name_open(name.c_str());
    ASSERT_EQ(connection, -1);
    ASSERT_TRUE(errno > 0 && errno < 134 && errno != ETIMEDOUT) << errno;
    char text[100];
    (void)farcall_channel_status(own_name(name).c_str(), text, sizeof text);
  }
  EXPECT_GT(opened, 10);
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before.descriptors; }));
}

}  // namespace
}  // namespace farcall::message::test
