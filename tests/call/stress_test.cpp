// SPDX-License-Identifier: Apache-2.0
//
// Calls under load, with peers that die at random moments and peers that scribble over all that
// they can write. FARCALL_KILL_ROUNDS and FARCALL_HOSTILE_SECONDS set for how long.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/session.hpp"
#include "farcall/error.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using call::test::RawSession;
using test::ask;
using test::bytes_of;
using test::eventually;
using test::Killer;
using test::Latencies;
using test::Server;
using test::setting;

int kill_rounds() { return setting("FARCALL_KILL_ROUNDS", 200); }
std::int64_t hostile_ns() {
  return setting("FARCALL_HOSTILE_SECONDS", 6) * std::int64_t{1'000'000'000} / 2;
}

void pause_up_to(unsigned us, std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % us));
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

// Calls without end, with all kinds of requests. Returns when a call fails.
Outcome call_until_failure(Client& client, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> request(300'000);
  std::vector<std::byte> reply(300'000);
  for (;;) {
    const std::size_t size = random() % 16 == 0 ? random() % request.size() : random() % 300;
    for (std::size_t i = 0; i < size; i += 61) request[i] = static_cast<std::byte>(random());
    CallResults results;
    results.buffer = reply;
    const int fd = STDIN_FILENO;
    const std::span<const int> descriptors(&fd, random() % 32 == 0 ? 1 : 0);
    const Outcome outcome =
        client.call({.data = std::span(request).first(size), .descriptors = descriptors}, results,
                    Deadline::after(20s));
    if (outcome != Outcome::ok) return outcome;
    if (results.data.size() != size ||
        !std::equal(results.data.begin(), results.data.end(), request.begin())) {
      const auto differs =
          std::mismatch(results.data.begin(), results.data.end(), request.begin()).first;
      ADD_FAILURE() << "a reply of " << results.data.size() << " bytes to " << size
                    << ", wrong from " << differs - results.data.begin();
      return Outcome::broken;
    }
  }
}

TEST(CallKill, ServersOutliveTheirClients) {
  Server server(test::echo, 2);
  const int port = server.port.descriptor();
  Client steady(port);
  std::mt19937 random(1);
  for (int round = 0; round < kill_rounds(); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Client client(port);
      call_until_failure(client, static_cast<unsigned>(round));
      ::_exit(0);
    }
    pause_up_to(4000, random);
    kill_and_reap(child);
    ASSERT_EQ(ask(steady, "still there?"), "still there?") << round;
  }
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 1; }));
}

TEST(CallKill, ClientsLearnOfTheServersDeath) {
  Latencies latencies;
  std::mt19937 random(2);
  for (int round = 0; round < kill_rounds(); ++round) {
    auto [here, there] = socket_pair();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Port port;
      FdMessage fd_message;
      fd_message.descriptors.emplace_back(::dup(port.descriptor()));
      send_fd_message(there.get(), fd_message);
      ServerThread thread(port);
      Incoming incoming;
      while (thread.receive(incoming, Deadline::never()) == Outcome::ok)
        test::echo(thread, incoming);
      ::_exit(0);
    }
    const auto fd_message = receive_fd_message(here.get(), Deadline::after(20s));
    const UniqueFd& door = fd_message->descriptors.at(0);
    Killer killer(child, 4000, static_cast<unsigned>(round));
    Client client(door.get());
    const Outcome outcome = call_until_failure(client, static_cast<unsigned>(round));
    const std::int64_t noticed = monotonic_ns();
    latencies.add(killer.late(noticed));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(outcome, Outcome::peer_gone) << to_string(outcome);
  }
  latencies.expect_prompt("from the server's death to the client's outcome");
}

TEST(CallStress, ThreadsComeAndGo) {
  Server server(test::echo, 3);
  Client client(server.port.descriptor());
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&client, seed = random()] {
        std::mt19937 mine(seed);
        for (int call = 0; call < 300; ++call) {
          ask(client, std::string(mine() % 400, 'q'));
          if (mine() % 50 == 0) pause_up_to(500, mine);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
}

void send_nonsense(int socket, std::mt19937& random) {
  char bytes[64];
  for (char& byte : bytes) byte = static_cast<char>(random());
  switch (random() % 4) {
    case 0:
      (void)!::send(socket, bytes, random() % sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      break;
    case 1: (void)!::send(socket, bytes, 1, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    default: {
      const SharedMemory memory = SharedMemory::create(1 + random() % 300'000);
      const std::vector<int> fds(random() % 4, random() % 2 == 0 ? memory.fd() : STDERR_FILENO);
      // A full socket would make it wait; the server takes what it can.
      int queued = 0;
      if (::ioctl(socket, SIOCOUTQ, &queued) == 0 && queued < 20'000)
        send_descriptors(socket, fds, static_cast<std::uint8_t>(random() % 3));
    }
  }
}

void scribble(call::SessionControl& control, std::mt19937& random, bool on_server) {
  call::Turn turn{.number = static_cast<std::uint32_t>(random()),
                  .kind = static_cast<call::Kind>(random() % 7),
                  .flags = static_cast<std::uint8_t>(random() % 64),
                  .size = static_cast<std::uint16_t>(random() % 4000)};
  const call::Turn seen = call::Turn::unpack(control.slot.turn.load());
  if (on_server && random() % 2 == 0) {
    turn.number = seen.number;
    turn.kind = call::Kind::reply;
  }
  const std::uint64_t large = (std::uint64_t{random()} << 32) | random();
  switch (random() % 6) {
    case 0: control.slot.turn = large; break;
    case 1:
    case 2: control.slot.turn = turn.pack(); break;
    case 3: std::memcpy(control.slot.data, &large, sizeof large); break;
    case 4:
      (on_server ? control.client : control.server).parked =
          static_cast<std::uint32_t>(random() % 4);
      break;
    default: std::memset(control.slot.data, static_cast<int>(random()), 3); break;
  }
}

TEST(CallHostile, ServersSurviveTheirClients) {
  Server server(test::echo, 3, WaitMode::adaptive, {.request_bytes = 1 << 20});
  const int port = server.port.descriptor();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGPIPE, SIG_IGN);
    std::mt19937 random(4);
    for (;;) {
      try {
        send_nonsense(port, random);
        RawSession session(port, random() % 8 != 0);
        if (random() % 4 != 0) (void)session.welcome();
        for (std::size_t i = random() % 300; i > 0; --i) {
          scribble(session.control(), random, false);
          if (random() % 3 == 0) send_nonsense(session.socket.get(), random);
          if (random() % 3 == 0)
            (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
          if (random() % 16 == 0) pause_up_to(300, random);
        }
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the server hung up
      }
    }
  }
  Client honest(port);
  const std::int64_t end = monotonic_ns() + hostile_ns();
  int calls = 0;
  while (monotonic_ns() < end || calls <= 20) {
    ASSERT_EQ(ask(honest, "business as usual"), "business as usual");
    ++calls;
    std::this_thread::sleep_for(100us);
  }
  kill_and_reap(child);
  EXPECT_GT(calls, 20);
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 1; }));
}

// Answers calls by hand, wrongly.
[[noreturn]] void serve_badly(int door, unsigned seed) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  std::mt19937 random(seed);
  for (;;) {
    try {
      Packet packet = take_packet(door);
      if (packet.kind == Packet::Kind::closed) ::_exit(0);
      if (packet.kind != Packet::Kind::descriptors || packet.descriptors.size() != 2) continue;
      const auto memory = call::adopt_session(std::move(packet.descriptors[0]));
      auto& control = *reinterpret_cast<call::SessionControl*>(memory.data());
      const auto [mine, socket] = call::test::let_in(packet);
      for (std::size_t i = random() % 400; i > 0; --i) {
        scribble(control, random, true);
        if (random() % 3 == 0) send_nonsense(socket.get(), random);
        if (random() % 16 == 0) pause_up_to(300, random);
      }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the client hung up
    }
  }
}

TEST(CallHostile, ClientsSurviveTheirServer) {
  const auto [door, handed_out] = packet_socket_pair();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) serve_badly(door.get(), 5);
  Client client(handed_out.get());
  std::vector<std::byte> buffer(1000);
  const std::vector<std::byte> request(5000);
  const std::int64_t end = monotonic_ns() + hostile_ns();
  int answers = 0;
  int failures = 0;
  for (unsigned i = 0; monotonic_ns() < end || answers + failures <= 5; ++i) {
    CallResults results;
    results.buffer = buffer;
    const std::int64_t before = monotonic_ns();
    Outcome outcome = Outcome::broken;
    try {
      outcome = client.call(
          {.data = std::span(request).first(i % 3 == 0 ? 5000 : 100), .descriptors = {}}, results,
          Deadline::after(20ms));
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it said that it refuses
    }
    ASSERT_LT(monotonic_ns() - before, 10'000'000'000);
    outcome == Outcome::ok ? ++answers : ++failures;
  }
  EXPECT_GT(answers + failures, 5);
  EXPECT_GT(failures, 0);
  kill_and_reap(child);
}

TEST(CallHostile, AsyncCallsSurviveTheirServer) {
  const auto [door, handed_out] = packet_socket_pair();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) serve_badly(door.get(), 7);
  Client client(handed_out.get());
  std::vector<std::byte> buffer(1000);
  const std::vector<std::byte> request(5000);
  std::array<std::unique_ptr<AsyncCall>, 4> calls;
  const std::int64_t end = monotonic_ns() + hostile_ns();
  int ended = 0;
  std::mt19937 random(8);
  for (unsigned i = 0; monotonic_ns() < end || ended <= 5; ++i) {
    auto& call = calls[i % calls.size()];
    const std::int64_t before = monotonic_ns();
    CallResults results;
    results.buffer = buffer;
    try {
      if (!call)
        call = std::make_unique<AsyncCall>(
            client, CallArguments{.data = std::span(request).first(i % 3 == 0 ? 5000 : 100),
                                  .descriptors = {}});
      if (call->prepare_poll() == Outcome::would_block) {
        pollfd entry{.fd = call->poll_descriptor(), .events = POLLIN, .revents = 0};
        ASSERT_GE(entry.fd, 0);
        ::poll(&entry, 1, 2);
        call->finish_poll();
      }
      const Outcome outcome = call->take(results, Deadline::now());
      if (outcome == Outcome::ok) {
        ASSERT_LE(results.data.size(), std::max(buffer.size(), results.large.size()));
      }
      if (outcome != Outcome::would_block) {
        ++ended;
        EXPECT_EQ(call->poll_descriptor(), -1);
        call.reset();
      } else if (random() % 16 == 0) {
        call.reset();
      }
    } catch (const SystemError&) {
      ++ended;
      call.reset();
    }
    // Nor does a machine that stops for a second or two look like that.
    ASSERT_LT(monotonic_ns() - before, 5'000'000'000) << "nobody waits in these";
  }
  EXPECT_GT(ended, 5);
  kill_and_reap(child);
}

}  // namespace
}  // namespace farcall
