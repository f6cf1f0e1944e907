// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at random moments, while messages of all kinds run: who survives gets the outcome that
// the contract names, soon, and nothing is left. FARCALL_KILL_ROUNDS sets the number of rounds.
#include <poll.h>
#include <unistd.h>

#include <future>
#include <map>

#include "channel/sandbox.hpp"
#include "farcall/memory.hpp"
#include "harness/killer.hpp"
#include "harness/usage.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

int rounds() { return setting("FARCALL_KILL_ROUNDS", kSlow > 1 ? 40 : 1000); }
constexpr unsigned kBusy = 3000 * (kSlow > 1 ? 4 : 1);  // us from birth to death
constexpr int kFirstRounds = 20;                        // after which nothing is new

// Sends back what it gets: at once, in pieces, or with the next call; whichever it is, the client
// must see the same.
void serve(int channel) {
  std::vector<char> buffer(256 * 1024);
  farcall_info info{};
  std::int64_t id = 0;
  for (unsigned turn = 0;; ++turn) {
    if (id < 0 && errno != EINTR && errno != ETIMEDOUT) return;
    const std::int64_t known = id > FARCALL_ONE_WAY ? id : 0;
    if (turn % 3 == 0 || known == 0) {
      id = farcall_reply_receive(known, 7, buffer.data(), info.received, channel, buffer.data(),
                                 buffer.size(), &info);
    } else {
      if (turn % 3 == 1) {
        farcall_reply(known, 7, buffer.data(), info.received);
      } else {
        const std::size_t half = info.received / 2;
        farcall_write(known, half, buffer.data() + half, info.received - half);
        farcall_write(known, 0, buffer.data(), half);
        farcall_reply(known, 7, nullptr, 0);
      }
      id = farcall_receive(channel, buffer.data(), buffer.size(), &info);
    }
    for (unsigned i = 0; id > 0 && i < info.descriptor_count; ++i) ::close(info.descriptors[i]);
  }
}

// One call of some kind; the errno that it failed with.
int send_something(int connection, std::minstd_rand& random, int descriptor) {
  switch (random() % 8) {
    case 0: return farcall_pulse(connection, 0, 1, 2) == 0 || errno == EAGAIN ? 0 : errno;
    case 1: return farcall_send_one_way(connection, "one way", 7) == 0 ? 0 : errno;
    default: break;
  }
  std::string text(random() % 300, static_cast<char>('a' + random() % 26));
  if (random() % 8 == 0) text.resize(random() % 200'000, 'z');
  std::string reply(text.size(), '\0');
  const std::size_t half = text.size() / 2;
  const iovec out[]{{.iov_base = text.data(), .iov_len = half},
                    {.iov_base = text.data() + half, .iov_len = text.size() - half}};
  const iovec in{.iov_base = reply.data(), .iov_len = reply.size()};
  const std::vector<int> passed(descriptor < 0 ? 0 : random() % 4, descriptor);
  farcall_message message{};
  message.send = out;
  message.send_count = 2;
  message.reply = &in;
  message.reply_count = 1;
  message.descriptors = passed.data();
  message.descriptor_count = static_cast<unsigned>(passed.size());
  const int status = farcall_send_message(connection, &message);
  if (status < 0) return errno;
  return status == 7 && message.replied == text.size() && reply == text ? 0 : ENOMSG;
}

int send_until_failure(int connection, unsigned seed, int descriptor = -1) {
  std::minstd_rand random(seed + 1);
  for (;;)
    if (const int error = send_something(connection, random, descriptor); error != 0) return error;
}

// Whoever serves in this process, until the channel goes.
struct Server : Channel {
  explicit Server(int count, unsigned flags = 0) : Channel(flags) {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { serve(id); });
  }
  ~Server() {
    farcall_channel_destroy(id);
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::thread> threads;
};

void servers_outlive_clients(bool with_descriptors) {
  give_up_after(250s);
  Server server(2);
  std::minstd_rand random(1);
  auto round = [&](int i) {
    Child client([&] {
      const int error = send_until_failure(server.connection, static_cast<unsigned>(i),
                                           with_descriptors ? STDERR_FILENO : -1);
      ADD_FAILURE() << std::strerror(error);
    });
    pause_up_to(kBusy, random);
    ::kill(client.pid(), SIGKILL);
    const int status = client.join();
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << std::hex << status;
    const std::string text(random() % 1000, 'x');
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    const Reply reply = send(server.connection, text);
    ASSERT_EQ(reply.text, text) << "round " << i << ": " << std::strerror(reply.error);
  };
  for (int i = 0; i < kFirstRounds; ++i) round(i);
  const Usage before;
  for (int i = kFirstRounds; i < rounds(); ++i) round(i);
  expect_no_growth(before);
}

TEST(MessageSigkill, ServersOutliveTheirClients) { servers_outlive_clients(false); }

TEST(MessageSigkill, ServersOutliveTheirClientsThatSendDescriptors) {
  servers_outlive_clients(true);
}

TEST(MessageSigkill, ClientsLearnOfTheServersDeath) {
  give_up_after(250s);
  Latencies latencies;
  Channel own;
  std::optional<Usage> before;
  for (int i = 0; i < rounds(); ++i) {
    const std::string name = unique_name("killed");
    NamedServer server(name, serve);
    const int connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    ASSERT_EQ(farcall_watch_death(connection, own.id, i), 0);
    Killer killer(server.pid(), kBusy, static_cast<unsigned>(i));
    const int error =
        send_until_failure(connection, static_cast<unsigned>(i), i % 2 == 0 ? -1 : STDERR_FILENO);
    const std::int64_t took = killer.late(now_ns());
    latencies.add(took);
    ASSERT_EQ(error, ESRCH) << "round " << i << ": " << std::strerror(error);
    ASSERT_EQ(send(connection, "x").error, ESRCH);
    ASSERT_EQ(farcall_send_one_way(connection, "x", 1), -1);
    ASSERT_EQ(errno, ESRCH);
    const Message pulse = receive(own.id);
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    ASSERT_EQ(pulse.info.code, FARCALL_PULSE_DEATH);
    ASSERT_EQ(pulse.info.value, i);
    ASSERT_EQ(farcall_disconnect(connection), 0);
    if (i == kFirstRounds) before.emplace();
  }
  latencies.expect_prompt("from the server's death to the client's error");
  EXPECT_EQ(receive(own.id, 10, 20ms).error, ETIMEDOUT) << "a death is told once";
  if (before) expect_no_growth(*before);
}

TEST(MessageSigkill, EveryThreadOfAClientLearnsOfTheServersDeath) {
  give_up_after(250s);
  Latencies latencies;
  for (int i = 0; i < rounds() / 10; ++i) {
    const std::string name = unique_name("killed");
    NamedServer server(name, [](int channel) {
      std::thread second([&] { serve(channel); });
      serve(channel);
      second.join();
    });
    const int connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    std::vector<std::future<std::pair<int, std::int64_t>>> senders;
    for (unsigned thread = 0; thread < 5; ++thread)
      senders.push_back(std::async(std::launch::async, [&, thread] {
        const int error = send_until_failure(connection, thread);
        return std::pair(error, now_without_run_delay_ns());
      }));
    Killer killer(server.pid(), 2 * kBusy, static_cast<unsigned>(i));
    const std::int64_t killed = killer.join();
    for (auto& sender : senders) {
      const auto [error, noticed] = sender.get();
      EXPECT_EQ(error, ESRCH) << std::strerror(error);
      latencies.add(noticed - killed);
    }
    farcall_disconnect(connection);
  }
  latencies.expect_prompt("from the server's death to each thread's error");
}

TEST(MessageSigkill, NobodyKeepsTheDescriptorsOfADeadSender) {
  give_up_after(250s);
  Server server(1);
  for (int i = 0; i < rounds(); ++i) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    Child client([&] { send_until_failure(server.connection, static_cast<unsigned>(i), ends[1]); });
    ::close(ends[1]);
    Killer killer(client.pid(), kBusy, static_cast<unsigned>(i));
    killer.join();
    client.join();
    pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&closed, 1, 5000 * kSlow), 1) << "round " << i << ": still open somewhere";
  }
  EXPECT_EQ(send(server.connection, "x").text, "x");
}

// What its client has sent is not answered, and the message is over soon.
void expect_no_answer_to(std::int64_t id) {
  char byte = 0;
  ASSERT_TRUE(eventually([&] { return farcall_read(id, 0, &byte, 1) < 0; }));
  ASSERT_EQ(errno, ESRCH);
  ASSERT_EQ(answer(id, 0), -1);
  ASSERT_EQ(errno, ESRCH);
}

// Clients of a channel that answers nobody.
TEST(MessageSigkill, EachDeathOfAClientIsToldOnceAndItsMessageIsNotAnswered) {
  give_up_after(250s);
  const std::string name = unique_name("server");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT | FARCALL_UNBLOCK, 0600);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  std::map<std::int64_t, int> ends;  // of connections: how often their end was told
  Latencies latencies;
  std::optional<Usage> before;
  for (int i = 0; i < rounds(); ++i) {
    const Shared<std::atomic<bool>> connected;
    Child client([&] {
      const int connection = farcall_name_open(name.c_str());
      *connected = connection > 0;
      for (unsigned j = 0; j < static_cast<unsigned>(i) % 3; ++j)
        farcall_pulse(connection, 0, 1, 2);
      send(connection, std::string(i % 4 == 0 ? 50'000 : 10, 'x'));
    });
    Killer killer(client.pid(), kBusy, static_cast<unsigned>(i));
    // A client that died early has had no connection, or has sent nothing.
    std::optional<std::int64_t> killed;
    std::int64_t id = 0;
    bool ended = false;
    while (!ended) {
      // The end of one that is known to have had a connection must come.
      const auto patience = *connected || id != 0 ? kPatience : 300ms * kSlow;
      const Message message = receive(channel, 4096, killed ? patience : 5ms);
      if (message.error == ETIMEDOUT) {
        if (killed) break;
        killed = killer.join();
        continue;
      }
      ASSERT_GE(message.id, 0) << std::strerror(message.error);
      if (message.id != 0) {
        ASSERT_EQ(message.info.pid, client.pid());
        id = message.id;
        continue;
      }
      if (message.info.code != FARCALL_PULSE_DISCONNECT) {
        ASSERT_EQ(message.info.code, 1);
        continue;
      }
      const std::int64_t told = now_ns();
      ASSERT_EQ(++ends[message.info.value], 1) << "round " << i;
      latencies.add(killer.late(told));
      ended = true;
    }
    ASSERT_TRUE(ended || id == 0) << "round " << i << ": the end was not told";
    client.join();
    if (id != 0) {
      ASSERT_NO_FATAL_FAILURE(expect_no_answer_to(id)) << i;
    }
    if (i == kFirstRounds) before.emplace();
  }
  ASSERT_FALSE(ends.empty());
  std::printf("%zu of %d clients had connected\n", ends.size(), rounds());
  latencies.expect_prompt("from the client's death to its connection's end");
  if (before) expect_no_growth(*before);
  farcall_channel_destroy(channel);
}

TEST(MessageSigkill, NamesAreFreeWhenTheirServersAreDead) {
  give_up_after(250s);
  const std::string name = unique_name("name");
  for (int i = 0; i < rounds() / 4; ++i) {
    Child server([&] {
      for (;;) {
        const int channel = farcall_name_attach(name.c_str(), 0, 0600);
        ASSERT_GT(channel, 0) << std::strerror(errno);
        std::this_thread::sleep_for(100us);
        farcall_channel_destroy(channel);
      }
    });
    Killer killer(server.pid(), kBusy, static_cast<unsigned>(i));
    const std::int64_t end = now_ns() + 4'000'000;
    do {
      const int connection = farcall_name_open(name.c_str());
      ASSERT_TRUE(connection > 0 || errno == ENOENT || errno == ESRCH) << std::strerror(errno);
      if (connection > 0) farcall_disconnect(connection);
    } while (now_ns() < end);
    killer.join();
    server.join();
    const int own = farcall_name_attach(name.c_str(), 0, 0600);
    ASSERT_GT(own, 0) << "round " << i << ": " << std::strerror(errno);
    farcall_channel_destroy(own);
  }
}

TEST(MessageSigkill, NothingIsLeftOnTheMachine) {
  give_up_after(250s);
  if (kSlow > 1) GTEST_SKIP() << "sanitizers leave files of their own";
  using Namespace = farcall::channel::test::Sandbox;
  Child child([] {
    if (!Namespace::enter()) ::_exit(77);
    for (int i = 0; i < 50; ++i) {
      const std::string name = unique_name("sandbox");
      NamedServer server(name, serve);
      Child client([&] {
        send_until_failure(farcall_name_open(name.c_str()), static_cast<unsigned>(i),
                           STDERR_FILENO);
      });
      std::minstd_rand random(static_cast<unsigned>(i) + 1);
      pause_up_to(kBusy, random);
      if (i % 2 == 0) {
        client.kill();
      } else {
        server.kill();
      }
    }
    EXPECT_EQ(Namespace::leftovers(), "");
  });
  const int status = child.join(30s);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "this system permits no namespaces";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farcall::message::test
