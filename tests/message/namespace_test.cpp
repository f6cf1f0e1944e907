// SPDX-License-Identifier: Apache-2.0
//
// Servers that cannot see their clients: processes, or users, of another namespace.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// A server that `leave` takes to namespaces of its own, where it runs `body` with a channel of that
// name that anybody may open.
class ServerApart {
 public:
  ServerApart(const std::function<bool()>& leave, const std::string& name,
              const std::function<void(int)>& body)
      : child_([&] {
          if (!leave()) return ready_->happens();
          const pid_t server = ::fork();
          if (server != 0) {
            int status = 0;
            ::waitpid(server, &status, 0);
            ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
          }
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);
          const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0666);
          *made_ = channel > 0;
          ready_->happens();
          body(channel);
          ::_exit(::testing::Test::HasFailure() ? 1 : 0);
        }) {
    EXPECT_TRUE(ready_->wait());
  }
  [[nodiscard]] bool made() const { return *made_; }
  int join() { return child_.join(); }

 private:
  const Shared<bool> made_;
  Shared<Event> ready_;
  Child child_;
};

#define FARCALL_NEEDS_NAMESPACES(server) \
  if (!(server).made()) GTEST_SKIP() << "this system permits no namespaces"

constexpr int kSent = 50;

// Answers messages, and counts pulses, until the client has disconnected.
void count_pulses(int channel, std::int64_t& count) {
  for (;;) {
    const Message message = receive(channel);
    ASSERT_GE(message.id, 0) << std::strerror(message.error);
    EXPECT_EQ(message.info.pid, 0);
    EXPECT_EQ(message.info.tid, 0);
    if (message.id == 0 && message.info.code == FARCALL_PULSE_DISCONNECT) return;
    if (message.id == 0) {
      EXPECT_EQ(message.info.value, count);
      ++count;
    } else {
      EXPECT_EQ(answer(message.id, 0, message.text), 0);
    }
  }
}

TEST(MessageNamespace, AServerThatSeesNoProcessOfItsClientsServesTheirUser) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  if (!is_root()) GTEST_SKIP() << "needs root, for a namespace of processes";
  give_up_after(100s);
  const std::string name = unique_name("apart");
  ServerApart server([] { return ::unshare(CLONE_NEWPID) == 0; }, name,
                     [](int channel) {
                       const Message first = receive(channel);
                       EXPECT_EQ(first.info.pid, 0);
                       EXPECT_EQ(first.info.uid, kNobody);
                       EXPECT_EQ(answer(first.id, 0, first.text), 0);
                       std::int64_t count = 0;
                       count_pulses(channel, count);
                       EXPECT_EQ(count, kSent);
                     });
  FARCALL_NEEDS_NAMESPACES(server);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const int connection = farcall_name_open(("0/" + name).c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "x").text, "x");
    for (int i = 0; i < kSent; ++i)
      EXPECT_EQ(farcall_pulse(connection, 0, 1, i), 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "y").text, "y");
  });
  EXPECT_EQ(server.join(), 0);
}

// Knows this user's number, and no other's.
bool know_only_oneself() {
  const auto write = [](const char* path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  };
  const std::string user = std::to_string(::geteuid());
  const std::string group = std::to_string(::getegid());
  return ::unshare(CLONE_NEWUSER) == 0 && write("/proc/self/setgroups", "deny") &&
         write("/proc/self/uid_map", "0 " + user + " 1") &&
         write("/proc/self/gid_map", "0 " + group + " 1");
}

// In a namespace: all whom a server has no number for look alike there, and it could not say whose
// message it is.
TEST(MessageNamespace, WhoHasNoNumberForTheServerIsRefusedWhenItOpens) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(100s);
  const std::string name = unique_name("apart");
  const Shared<int> sent{};
  ServerApart server(know_only_oneself, name, [&](int channel) {
    int came = 0;
    Message message = receive(channel);
    for (; message.id == 0; message = receive(channel)) came += int{message.info.code == 1};
    EXPECT_EQ(message.text, "known") << "of a user that has a number here";
    EXPECT_EQ(answer(message.id, 0), 0);
    // Of two users neither waits for all that the other has sent.
    for (; came < *sent; ++came) ASSERT_EQ(receive(channel).info.code, 1) << "one is lost";
    EXPECT_GT(came, 0);
    EXPECT_EQ(came, *sent);
  });
  FARCALL_NEEDS_NAMESPACES(server);
  in_child([&] {
    const int connection = farcall_name_open(("0/" + name).c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    in_child([&] {
      ASSERT_TRUE(become(kNobody));
      EXPECT_EQ(farcall_name_open(("0/" + name).c_str()), -1);
      EXPECT_EQ(errno, EACCES);
      // Who has the connection of somebody else.
      EXPECT_EQ(send(connection, "unknown").error, EACCES);
      // It is not let in. Those that were sent before are received.
      EXPECT_TRUE(eventually([&] { return farcall_pulse(connection, 0, 1, 0) < 0 || !++*sent; }));
      EXPECT_EQ(errno, EAGAIN);
    });
    EXPECT_EQ(send(connection, "known").status, 0);
  });
  EXPECT_EQ(server.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
