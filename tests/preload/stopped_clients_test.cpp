// SPDX-License-Identifier: Apache-2.0
//
// Clients that are stopped while bytes of theirs are unread, when their server executes another
// program: it cannot give the bytes back, and nobody may borrow their sockets. As leaving_test.cpp.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "children.hpp"
#include "connected.hpp"
#include "farcall/wait.hpp"
#include "harness/shared.hpp"

namespace farcall::preload {
namespace {

// Of a server with so many; each has sent what lies in memory.
std::int64_t time_to_execute(int clients) {
  test::Shared<std::int64_t> time;
  EXPECT_EQ(exit_status(in_child([&] {
              become_anybody();
              std::vector<Connected> all;
              for (int i = 0; i < clients; ++i) {
                all.push_back(with_child([](int peer) {
                  require(::send(peer, "unread", 6, MSG_NOSIGNAL) == 6, "send");
                  ::raise(SIGSTOP);
                }));
                int status = 0;
                ASSERT_EQ(::waitpid(all.back().child->pid(), &status, WUNTRACED),
                          all.back().child->pid());
                ASSERT_TRUE(WIFSTOPPED(status));
              }
              const std::int64_t start = monotonic_ns();
              EXPECT_EQ(::system("true"), 0);
              *time = monotonic_ns() - start;
              // Nothing is lost without a word.
              for (const Connected& each : all) {
                const std::string got = receive(each.fd.get());
                EXPECT_TRUE(got == "unread" || got == "(ECONNRESET)") << got;
                ::kill(each.child->pid(), SIGKILL);
              }
            })),
            0);
  return *time;
}

TEST(StoppedClients, HoldAServerUpTogetherAsOneOfThemWould) {
  const std::int64_t with_one = time_to_execute(1);
  const std::int64_t with_many = time_to_execute(5);
  if (preloaded() && with_one > 1'000'000'000) {
    EXPECT_LT(with_many, 2 * with_one);
  }
}

}  // namespace
}  // namespace farcall::preload
