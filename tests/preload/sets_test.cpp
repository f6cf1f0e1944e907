// SPDX-License-Identifier: Apache-2.0
//
// What sets of epoll tell, those that have several descriptors, that others know too, and what they
// cost. As contract_test.cpp, these run as they are and with the library preloaded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "children.hpp"
#include "connected.hpp"
#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "readiness.hpp"
#include "stream_pair.hpp"

extern char** environ;

namespace farcall::preload::readiness {
namespace {

// --- what is in a set

TEST(Set, TellsAnEdgeAnewWhereItIsArmedAnew) {
  const Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set = new_set();
  add(set.get(), fd, EPOLLIN | EPOLLET);
  exchange(pair, set.get());
  pair.put();
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  EXPECT_EQ(wait(set.get(), 0), 0U);
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = kToken}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  EXPECT_EQ(wait(set.get(), 0), EPOLLIN);
  EXPECT_EQ(wait(set.get(), 0), 0U);
}

// Two sockets whose events cannot be told apart, in a set that the kernel alone wakes: what wakes
// it for the one does not cover the edge of the other.
TEST(Set, LosesNoEdgeOfASocketThatIsRegisteredAsAnother) {
  const Connected reads = with_child([](int peer) {
    for (int i = 0; i < 8; ++i) wait_for_each_other(peer, false);
    char byte = 'x';
    require(::send(peer, &byte, 1, MSG_NOSIGNAL) == 1, "send");
    (void)::recv(peer, &byte, 1, 0);
  });
  for (int i = 0; i < 8; ++i) wait_for_each_other(reads.fd.get(), true);
  const preload::Pair writes(false);
  const UniqueFd set = new_set();
  pollfd around{.fd = set.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&around, 1, 0), 0);
  ::usleep(100'000);  // in memory by now
  add(set.get(), writes.server.get(), EPOLLOUT | EPOLLET);
  add(set.get(), reads.fd.get());
  std::uint32_t told = 0;
  for (int i = 0; i < 2; ++i) {
    std::array<epoll_event, 4> events{};
    const int count = ::epoll_wait(set.get(), events.data(), 4, kLongest);
    EXPECT_GT(count, 0);
    for (int one = 0; one < count; ++one) told |= events[static_cast<std::size_t>(one)].events;
  }
  EXPECT_EQ(told, static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT));
}

TEST(Set, TellsOnceWhereThatIsAskedForWithBytesThere) {
  const Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set = new_set();
  add(set.get(), fd);
  exchange(pair, set.get());
  for (int i = 0; i < 3; ++i) {
    pair.put();
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kToken}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
    EXPECT_EQ(wait(set.get()), EPOLLIN);
    EXPECT_EQ(wait(set.get(), 0), 0U);
    pair.put();
    EXPECT_EQ(wait(set.get(), 0), 0U);
    pair.take();
    pair.take();
    event.events = EPOLLIN;
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
    exchange(pair, set.get());
  }
}

// The kernel tells of the end of whatever has been changed, but not of what it has told of once.
TEST(Set, TellsOfNoEndWhereItHasToldOnce) {
  Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set = new_set();
  add(set.get(), fd);
  exchange(pair, set.get());
  pair.put();
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kToken}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  pair.take();
  pair.client.reset();
  ASSERT_EQ(::shutdown(fd, SHUT_WR), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wait(set.get(), i), 0U);
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  EXPECT_EQ(wait(set.get()), EPOLLIN | EPOLLHUP);
  EXPECT_EQ(wait(set.get(), 0), 0U);
}

TEST(Set, IsToldOfASocketThatIsInAnotherToo) {
  const FarPeer peer;
  const UniqueFd sets[] = {new_set(), new_set()};
  for (const UniqueFd& set : sets) {
    add(set.get(), peer.server.get());
    exchange(peer, set.get());
  }
  for (int i = 0; i < 20; ++i) {
    peer.put();
    for (const UniqueFd& set : sets) EXPECT_EQ(wait(set.get(), 0), EPOLLIN) << i;
    peer.take();
    for (const UniqueFd& set : sets) EXPECT_EQ(wait(set.get(), 0), 0U) << i;
  }
}

// A registration is there as long as any descriptor of the socket is.
TEST(Set, TellsOfASocketWhoseOtherDescriptorIsLeft) {
  for (const bool is_copied_first : {false, true}) {
    FarPeer peer;
    const UniqueFd set = new_set();
    UniqueFd copy;
    if (is_copied_first) copy = UniqueFd(::dup(peer.server.get()));
    add(set.get(), peer.server.get());
    exchange(peer, set.get());
    if (!is_copied_first) copy = UniqueFd(::dup(peer.server.get()));
    exchange(peer, set.get());
    peer.server = std::move(copy);
    exchange(peer, set.get());
  }
}

// At the numbers where its memory grows.
// As redis-benchmark does: the socket is out of the set where the answer comes.
TEST(Set, HasAnswersInMemoryWhereSocketsAreTakenOutAndPutBack) {
  const Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set = new_set();
  const auto take_out = [&] {
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, fd, nullptr), 0) << errno_name();
  };
  const auto wait_for_answer = [&] {
    add(set.get(), fd, EPOLLIN);
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
    pair.take();
  };
  for (int i = 0; i < 100; ++i) {
    add(set.get(), fd, EPOLLOUT);
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
    take_out();
    pair.put();
    wait_for_answer();
    take_out();
  }
  pair.put();
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(fd));
  }
  wait_for_answer();
}

TEST(Set, TellsOfSocketsWithAnyNumber) {
  const UniqueFd set = new_set();
  for (const int number : {127, 128, 256, 512}) {
    Pair pair;
    pair.server = UniqueFd(::fcntl(pair.server.get(), F_DUPFD_CLOEXEC, number));
    ASSERT_EQ(pair.server.get(), number);
    add(set.get(), number);
    exchange(pair, set.get());
    pair.put();
    epoll_event event{};
    if (preloaded()) {
      EXPECT_FALSE(readable_for_kernel(number)) << "not looked at";
    }
    EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 0), 1);
    EXPECT_EQ(event.data.u64, kToken);
  }
}

// --- sets with several descriptors

enum class Copy { dup, dup2, dup3, fcntl, by_number };

UniqueFd copy_of(int fd, Copy how) {
  switch (how) {
    case Copy::dup: return UniqueFd(::dup(fd));
    case Copy::dup2: return UniqueFd(::dup2(fd, ::eventfd(0, EFD_CLOEXEC)));
    case Copy::dup3: return UniqueFd(::dup3(fd, ::eventfd(0, EFD_CLOEXEC), O_CLOEXEC));
    case Copy::fcntl: return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    case Copy::by_number:
      return UniqueFd(static_cast<int>(::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3)));
  }
  return {};
}

class CopiedSet : public ::testing::TestWithParam<Copy> {};

TEST_P(CopiedSet, TellsOfWhatTheOriginalHas) {
  const Pair pair;
  const UniqueFd set = new_set();
  const UniqueFd copy = copy_of(set.get(), GetParam());
  add(set.get(), pair.server.get());
  exchange(pair, copy.get());
}

TEST_P(CopiedSet, IsRegisteredInForTheOriginal) {
  const Pair pair;
  const UniqueFd set = new_set();
  const UniqueFd copy = copy_of(set.get(), GetParam());
  add(copy.get(), pair.server.get(), EPOLLIN | EPOLLET | EPOLLRDHUP);
  exchange(pair, set.get());
}

TEST_P(CopiedSet, OutlivesTheOriginal) {
  const Pair pair;
  UniqueFd set = new_set();
  const UniqueFd copy = copy_of(set.get(), GetParam());
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  set.reset();
  EXPECT_EQ(wait(copy.get()), EPOLLIN);
  pair.take();
  exchange(pair, copy.get());
}

TEST_P(CopiedSet, LeavesTheOriginalWhenItIsClosed) {
  const Pair pair;
  const UniqueFd set = new_set();
  UniqueFd copy = copy_of(set.get(), GetParam());
  add(copy.get(), pair.server.get());
  exchange(pair, copy.get());
  copy.reset();
  exchange(pair, set.get());
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  pair.put();
  EXPECT_EQ(wait(set.get(), 0), 0u);
}

TEST_P(CopiedSet, IsStillAccelerated) {
  const Pair pair;
  const UniqueFd set = new_set();
  const UniqueFd copy = copy_of(set.get(), GetParam());
  add(copy.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(pair.server.get()));
  }
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

std::string name_of(const ::testing::TestParamInfo<Copy>& test) {
  constexpr const char* kNames[] = {"Dup", "Dup2", "Dup3", "Fcntl", "Number"};
  return kNames[static_cast<int>(test.param)];
}
INSTANTIATE_TEST_SUITE_P(By, CopiedSet,
                         ::testing::Values(Copy::dup, Copy::dup2, Copy::dup3, Copy::fcntl,
                                           Copy::by_number),
                         name_of);

// --- sets that others know

TEST(SharedSet, ServesAParentAndItsChild) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  const pid_t child = in_child([&] { exchange(pair, set.get(), 5); });
  EXPECT_EQ(exit_status(child), 0);
  exchange(pair, set.get(), 5);
}

TEST(SharedSet, ServesAChildOfABareClone) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  EXPECT_EQ(wait(set.get(), 1), 0u);  // asleep: the kernel has it
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    ::alarm(60);
    char byte = 0;
    if (::read(from.get(), &byte, 1) != 1) ::_exit(2);
    ::_exit(wait(set.get()) == EPOLLIN ? 0 : 1);
  }
  exchange(pair, set.get());
  EXPECT_EQ(::write(to.get(), "g", 1), 1);
  pair.put();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

TEST(SharedSet, ServesTheChildWhenTheParentHasClosedTheSocket) {
  Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  const pid_t child = in_child([&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(wait(set.get()), EPOLLIN);
      pair.take();
    }
  });
  pair.server.reset();
  pair.put(3);
  EXPECT_EQ(exit_status(child), 0);
}

// What is in memory when the child looks at the set for the first time is told to it, too.
TEST(SharedSet, TellsTheChildOfBytesThatWereThere) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  const pid_t child = in_child([&] {
    EXPECT_EQ(wait(set.get()), EPOLLIN);
    pair.take();
    EXPECT_EQ(wait(set.get(), 0), 0u);
    exchange(pair, set.get(), 5);
  });
  EXPECT_EQ(exit_status(child), 0);
}

// A child that makes connections of its own known in its parent's set.
TEST(SharedSet, TakesSocketsOfTheChild) {
  const UniqueFd set = new_set();
  const Pair first;
  add(set.get(), first.server.get());
  exchange(first, set.get());
  const pid_t child = in_child([&] {
    const Pair pair;
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, first.server.get(), nullptr), 0);
    add(set.get(), pair.server.get());
    exchange(pair, set.get());
  });
  EXPECT_EQ(exit_status(child), 0);
}

// Most children close what they inherit, or end: the parent goes on as before.
TEST(SharedSet, StaysAcceleratedWhereTheChildDoesNotUseIt) {
  const Pair pair;
  UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  EXPECT_EQ(exit_status(in_child([&] { set.reset(); })), 0);
  exchange(pair, set.get());
  pair.put();
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(pair.server.get()));
  }
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

TEST(SharedSet, ServesWhoeverItIsPassedTo) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  // Forked before there is anything: it knows of the set what the kernel knows.
  const pid_t child = in_child([&] {
    char byte = 0;
    const UniqueFd passed(test::receive_descriptor(there.get()));
    const int set = passed.get();
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(wait(set), EPOLLIN);
      EXPECT_EQ(::send(there.get(), "t", 1, 0), 1);
      EXPECT_EQ(::recv(there.get(), &byte, 1, 0), 1);
    }
  });
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  char byte = 0;
  ASSERT_TRUE(test::send_descriptor(here.get(), set.get()));
  for (int i = 0; i < 5; ++i) {
    pair.put();
    EXPECT_EQ(::recv(here.get(), &byte, 1, 0), 1);
    pair.take();
    EXPECT_EQ(::send(here.get(), "n", 1, 0), 1);
  }
  EXPECT_EQ(exit_status(child), 0);
}

// The program that is executed: this one, see main().
constexpr const char* kWaitIn = "FARCALL_TEST_WAIT_IN";

int wait_as_another_program(const char* set) {
  EXPECT_EQ(::write(STDOUT_FILENO, "w", 1), 1);
  return wait(std::atoi(set)) == EPOLLIN ? 0 : 1;
}

TEST(SharedSet, ServesAProgramThatAChildExecutes) {
  const Pair pair;
  const UniqueFd set = new_set(0);
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  const std::string number = std::to_string(set.get());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  const pid_t child = in_child([&] {
    ::dup2(to.get(), STDOUT_FILENO);
    ::setenv(kWaitIn, number.c_str(), 1);
    ::execl("/proc/self/exe", "waits", nullptr);
  });
  char byte = 0;
  EXPECT_EQ(::read(from.get(), &byte, 1), 1);
  pair.put();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

TEST(SharedSet, ServesAProgramThatIsSpawned) {
  const Pair pair;
  const UniqueFd set = new_set(0);
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  const std::string number = std::to_string(set.get());
  ::setenv(kWaitIn, number.c_str(), 1);
  const char* arguments[] = {"waits", nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments),
                          environ),
            0);
  ::unsetenv(kWaitIn);
  pair.put();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

}  // namespace
}  // namespace farcall::preload::readiness

int main(int count, char** arguments) {
  if (const char* const set = std::getenv(farcall::preload::readiness::kWaitIn))
    return farcall::preload::readiness::wait_as_another_program(set);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
