// SPDX-License-Identifier: Apache-2.0
//
// A server with a thousand clients, of which some are stuck and some are dying.
#include <sys/resource.h>
#include <unistd.h>

#include <deque>

#include "harness/descriptors.hpp"
#include "harness/killer.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// How many round trips a client of an empty server makes in that time, or of a crowded one.
int trips(int connection, std::chrono::milliseconds time) {
  int count = 0;
  const std::int64_t end = now_ns() + time.count() * 1'000'000;
  do {
    if (send(connection, "x", 10).status != 0) return -1;
    ++count;
  } while (now_ns() < end);
  return count;
}

void allow_all_descriptors() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Keeps those waiting that are to be stuck, and answers the others.
[[noreturn]] void serve_crowd(int channel, std::atomic<int>& held) {
  give_up_after(100s);
  allow_all_descriptors();
  char buffer[100];
  for (;;) {
    farcall_info info{};
    const std::int64_t id = farcall_receive(channel, buffer, sizeof buffer, &info);
    if (id <= FARCALL_ONE_WAY) continue;
    if (info.received >= 5 && std::string_view(buffer, 5) == "stuck")
      ++held;
    else
      farcall_reply(id, 0, buffer, info.received);
  }
}

// One process of many clients, each with a connection and a thread.
void be_clients(const std::string& name, int count, bool stuck, std::atomic<int>& connected) {
  give_up_after(100s);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&] {
      const int own = farcall_name_open(name.c_str());
      ASSERT_GT(own, 0) << std::strerror(errno);
      ASSERT_EQ(send(own, "hello", 10).text, "hello");
      ++connected;
      if (stuck) {
        (void)send(own, "stuck");
      } else {
        ::pause();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(MessageCrowd, AThousandClientsStuckAndDyingDisturbNobody) {
  give_up_after(100s);
  allow_all_descriptors();
  const int clients = setting("FARCALL_CROWD", kSlow > 1 ? 200 : 1000);
  const std::string name = unique_name("crowd");
  const Shared<std::atomic<int>> held;
  NamedServer server(name, [&](int channel) { serve_crowd(channel, *held); });
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  // One that is alone, to compare with at the same moment: others may use the machine, too.
  const std::string empty_name = unique_name("empty");
  NamedServer empty(empty_name, echo_for_ever);
  const int control = farcall_name_open(empty_name.c_str());
  ASSERT_GT(control, 0);
  for (const int one : {connection, control}) ASSERT_GT(trips(one, 50ms), 0);  // warm

  const int processes = 10;
  const int each = clients / processes;
  std::deque<Child> crowd;
  const Shared<std::atomic<int>> connected;
  for (int i = 0; i < processes; ++i)
    crowd.emplace_back([&, i] { be_clients(name, each, i % 2 == 0, *connected); });
  ASSERT_TRUE(eventually([&] { return *connected == processes * each; }, 60s));
  ASSERT_TRUE(eventually([&] { return *held == processes / 2 * each; }, 30s));
  // "Full speed": sooner or later, as others do not use the machine evenly.
  const auto undisturbed = [&] {
    const int alone = trips(control, 100ms);
    const int count = trips(connection, 100ms);
    EXPECT_GT(alone, 0);
    EXPECT_GE(count, 0);  // none of them fails
    return count > alone / 4;
  };
  EXPECT_TRUE(eventually(undisturbed));
  for (Child& child : crowd) child.kill();
  EXPECT_TRUE(eventually(undisturbed));
  farcall_disconnect(control);
  farcall_disconnect(connection);
}

TEST(MessageCrowd, ManyProcessesAtOnceGetTheirOwnAnswers) {
  give_up_after(100s);
  EchoServer server(0, 3);
  std::deque<Child> clients;
  for (int i = 0; i < 20; ++i)
    clients.emplace_back([&, i] {
      give_up_after(60s);
      for (int j = 0; j < 300 / kSlow; ++j) {
        const std::string text =
            std::to_string(i) + ":" + std::to_string(j) +
            std::string(static_cast<std::size_t>(j % 50 == 0 ? 20'000 : j), 'x');
        ASSERT_EQ(send(server.connection, text, text.size()).text, text);
        if (j % 10 == 0) (void)farcall_send_one_way(server.connection, "one way", 7);
      }
    });
  for (Child& client : clients) EXPECT_EQ(client.join(60s), 0);
}

}  // namespace
}  // namespace farcall::message::test
