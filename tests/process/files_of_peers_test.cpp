// SPDX-License-Identifier: Apache-2.0
//
// What a forked child does with files that others have sent, and that they may hold the locks of.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/eventually.hpp"
#include "harness/lingering.hpp"
#include "harness/stalled_page.hpp"
#include "process/process.hpp"

namespace farcall::test {
namespace {

using process::PrivateFd;

// The status of a child that does `work`; nothing where it does not come as far as that.
template <class Work>
std::optional<int> status_of_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  const auto ended = [&] { return ::waitpid(child, &status, WNOHANG) == child; };
  if (eventually(ended, std::chrono::seconds(10))) return WEXITSTATUS(status);
  ::kill(child, SIGKILL);
  return {};
}

constexpr int kClosed = 3;
int flags_of(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags < 0 ? kClosed : flags;
}

// Two ends of a connection, with a byte in the first.
std::pair<UniqueFd, UniqueFd> connection(int domain) {
  auto [one, other] = domain == AF_UNIX ? socket_pair() : tcp_pair();
  EXPECT_EQ(::send(other.get(), "x", 1, 0), 1);
  return {std::move(one), std::move(other)};
}

// In a process of its own, with which those end who hold the locks.
TEST(FilesOfPeers, WhoseLockIsHeldHoldNoForkUp) {
  if (!StalledPage()) GTEST_SKIP() << "needs root, to let a page wait";
  for (const int domain : {AF_INET, AF_UNIX})
    in_child([&] {
      const StalledPage page;
      auto [one, other] = connection(domain);
      const UniqueFd peers(::fcntl(one.get(), F_DUPFD_CLOEXEC, 0));
      const PrivateFd mine = PrivateFd::of_peer(std::move(one));
      page.hold_lock(peers.get());
      EXPECT_TRUE(status_of_child([] { return 0; })) << domain;
      ::_exit(HasFailure() ? 1 : 0);  // nothing else here may wait for the page
    });
}

// An exec would wait where it closes it, and the end of a process does not.
TEST(FilesOfPeers, ThatLingerAreKeptBeyondAnExec) {
  const PrivateFd lingers = PrivateFd::of_peer(lingering(300));
  EXPECT_EQ(status_of_child([&] { return flags_of(lingers.get()); }), 0);
  constexpr linger kNone{.l_onoff = 0, .l_linger = 0};
  EXPECT_EQ(::setsockopt(lingers.get(), SOL_SOCKET, SO_LINGER, &kNone, sizeof kNone), 0);
}

TEST(FilesOfPeers, ThatDoNotLingerAreClosed) {
  for (const int domain : {AF_INET, AF_UNIX}) {
    auto [one, other] = domain == AF_UNIX ? socket_pair() : tcp_pair();
    const PrivateFd mine = PrivateFd::of_peer(std::move(one));
    EXPECT_EQ(status_of_child([&] { return flags_of(mine.get()); }), kClosed) << domain;
  }
}

TEST(FilesOfPeers, ThatHoldSomethingAreLeftToAnExec) {
  auto [one, other] = connection(AF_UNIX);
  const PrivateFd mine = PrivateFd::of_peer(std::move(one));
  EXPECT_EQ(status_of_child([&] { return flags_of(mine.get()); }), FD_CLOEXEC);
}

}  // namespace
}  // namespace farcall::test
