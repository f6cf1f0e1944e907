// SPDX-License-Identifier: Apache-2.0
//
// Many unix connections of processes that talk to each other: all of them come to go through
// memory, while few descriptors are used for their ends to find each other.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

struct Ends {
  Ends() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, socket_type() | SOCK_CLOEXEC, 0, fds), 0);
    one = UniqueFd(fds[0]);
    other = UniqueFd(fds[1]);
  }
  void talk(const std::string& text) const {
    ASSERT_EQ(send(one.get(), text), std::to_string(text.size()));
    ASSERT_EQ(receive(other.get()), text);
    ASSERT_EQ(send(other.get(), text + "!"), std::to_string(text.size() + 1));
    ASSERT_EQ(receive(one.get()), text + "!");
  }
  UniqueFd one, other;
};

// Each says something of its own.
void talk_in_turn(const std::vector<Ends>& all, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < all.size() && !testing::Test::HasFailure(); ++i)
      all[i].talk("connection " + std::to_string(i) + ", round " + std::to_string(round));
}

template <class Work>
void in_child_with_descriptors(rlim_t count, Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const rlimit limit{.rlim_cur = count, .rlim_max = count};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
    work();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// It holds what this process holds, but for a moment.
void kill_a_child() {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd has_begun(ends[0]);
  const UniqueFd begins(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)!::write(begins.get(), "b", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(has_begun.get(), &byte, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

// As many as there may be at all, several times, while children that hold them are killed; after
// more children than may live at a time.
TEST(ManyConnections, OfChildrenThatWereKilledMakeRoomForOthers) {
  constexpr std::size_t kAtOnce = 390;
  constexpr int kRounds = 100;
  const Pair first;
  for (int i = 0; i < 300; ++i) kill_a_child();
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Ends> all(kAtOnce);
    kill_a_child();
  }
  const std::vector<Ends> others(kAtOnce);
  const Pair last;
}

// Of 256 descriptors 16 are used for that at a time.
TEST(ManyConnections, AllThatAreUsedComeToShareMemory) {
  in_child_with_descriptors(256, [] {
    const std::vector<Ends> all(80);
    talk_in_turn(all, 40);
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), 160);
    }
    talk_in_turn(all, 2);
  });
}

}  // namespace
}  // namespace farcall::preload
