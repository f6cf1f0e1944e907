// SPDX-License-Identifier: Apache-2.0
//
// Several numbers, or several processes, for one end of a stream: who closes its copy takes nothing
// away from the others. The tests run as they are and with the library preloaded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "children.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// What a program does that has nothing to do.
void wait_for_a_moment() {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  pollfd wait{.fd = pipe[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 5), 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

template <class Work>
void in_forked_child(Work work) {
  EXPECT_EQ(exit_status(in_child(work)), 0);
}

TEST(Copies, AChildSendsAndClosesAndTheParentGoesOn) {
  UsedPair pair;
  for (int i = 0; i < 3; ++i) {
    in_forked_child([&] {
      EXPECT_EQ(send(pair.client.get(), "of the child, "), "14");
      pair.client.reset();
      wait_for_a_moment();
    });
    EXPECT_EQ(send(pair.client.get(), "of the parent"), "13");
    std::string all;
    while (all.size() < 27) all += receive(pair.server.get());
    EXPECT_EQ(all, "of the child, of the parent");
  }
  pair.talk(10);
}

TEST(Copies, AChildReadsAndClosesAndTheParentGoesOn) {
  UsedPair pair;
  for (int i = 0; i < 3; ++i) {
    pair.put("for the child, for the parent");
    in_forked_child([&] {
      EXPECT_EQ(receive(pair.server.get(), 15), "for the child, ");
      pair.server.reset();
    });
    EXPECT_EQ(receive(pair.server.get()), "for the parent");
  }
  pair.talk(10);
}

TEST(Copies, TheParentSendsAndClosesAndTheChildGoesOn) {
  UsedPair pair;
  int go[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    pair.server.reset();
    char byte;
    if (::read(go[0], &byte, 1) != 1 || send(pair.client.get(), "of the child") != "12") ::_exit(1);
    ::_exit(0);
  }
  EXPECT_EQ(send(pair.client.get(), "of the parent, "), "15");
  pair.client.reset();
  wait_for_a_moment();
  EXPECT_EQ(::write(go[1], "x", 1), 1);
  std::string all;
  for (std::string part; (part = receive(pair.server.get())) != "(end)" && part[0] != '(';)
    all += part;
  EXPECT_EQ(all, "of the parent, of the child");
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(go[0]);
  ::close(go[1]);
}

TEST(Copies, AnotherSocketUnderTheNumberOfAClosedCopyGetsNothing) {
  UsedPair pair;
  wait_for_a_moment();  // nothing is left of what was sent by way of the other number
  const int copy = ::fcntl(pair.client.get(), F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(copy, 0);
  EXPECT_EQ(send(copy, "for the server"), "14");
  ASSERT_EQ(::close(copy), 0);
  int other[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other), 0);
  EXPECT_TRUE(other[0] == copy || other[1] == copy);
  wait_for_a_moment();
  for (const int end : other) EXPECT_EQ(receive(end, 100, MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(receive(pair.server.get()), "for the server");
  ::close(other[0]);
  ::close(other[1]);
}

// --- descriptors that a connection costs until both ends have met

// A connection whose client looks for its peer, which does not answer.
struct LookingPair : Pair {
  LookingPair() : Pair(false) {
    for (int i = 0; i < 8; ++i) put("?");
  }
};

// As many as this process may still have.
std::vector<UniqueFd> all_descriptors() {
  std::vector<UniqueFd> all;
  for (int fd = 0; (fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0;)
    all.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  return all;
}

std::vector<UniqueFd> all_files() {
  std::vector<UniqueFd> all;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  return all;
}

constexpr rlim_t kDescriptors = 256;
void limit_descriptors() {
  const rlimit limit{.rlim_cur = kDescriptors, .rlim_max = kDescriptors};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Copies, ConnectionsThatLookForTheirPeersLeaveTheProgramItsDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_descriptors().size();
    const std::vector<LookingPair> pairs(60);
    EXPECT_EQ(all_descriptors().size(), there_are - 120);
  });
}

TEST(Copies, ConnectionsThatLookForTheirPeersLeaveAlmostAllFiles) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_files().size();
    const std::vector<LookingPair> pairs(60);
    EXPECT_GE(all_files().size(), there_are - 120 - kDescriptors / 16);
  });
}

TEST(Copies, AConnectionThatCannotLookNowIsAcceleratedLater) {
  in_forked_child([] {
    limit_descriptors();
    std::vector<LookingPair> pairs(60);
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), 0);
    }
    pairs.erase(pairs.begin(), pairs.begin() + 40);
    const Pair pair;
  });
}

TEST(Copies, AChildThatClosesOneLeavesNoDescriptorBehind) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_files().size();
    {
      const LookingPair pair;
      in_forked_child([&] { ::close(pair.client.get()); });
    }
    EXPECT_EQ(all_files().size(), there_are);
  });
}

// Those of the library are given up before the program has to go without one.
TEST(Copies, AConnectionIsAcceptedWhereTheLibraryHasTheLastDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const UniqueFd client = connect_to(address);
    const std::vector<LookingPair> pairs(20);
    std::vector<UniqueFd> files = all_files();
    if (!preloaded()) files.pop_back();
    const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
    EXPECT_GE(server.get(), 0) << errno_name();
  });
}

TEST(Copies, APairIsMadeWhereTheLibraryHasTheLastDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    const std::vector<LookingPair> pairs(20);
    std::vector<UniqueFd> files = all_files();
    if (!preloaded()) files.resize(files.size() - 2);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0) << errno_name();
    const UniqueFd one(ends[0]);
    const UniqueFd other(ends[1]);
  });
}

}  // namespace
}  // namespace farcall::preload
