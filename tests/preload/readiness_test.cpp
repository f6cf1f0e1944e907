// SPDX-License-Identifier: Apache-2.0
//
// Readiness is the truth, however a program waits: through copies of a set, in a child, in another
// program, by system calls of its own, with few or many descriptors. As contract_test.cpp, these
// run as they are and with the library preloaded.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

extern char** environ;

namespace farcall::preload {
namespace {

constexpr int kLongest = 20'000;  // milliseconds, for what must come
constexpr std::uint64_t kToken = 77;

// Bytes one by one.
struct Pair : preload::Pair {
  void put(int count = 1) const {
    preload::Pair::put(std::string(static_cast<std::size_t>(count), 'x'));
  }
  void take() const {
    char byte = 0;
    EXPECT_EQ(::recv(server.get(), &byte, 1, 0), 1);
  }
};

UniqueFd new_set(int flags = EPOLL_CLOEXEC) { return UniqueFd(::epoll_create1(flags)); }

void add(int set, int fd, std::uint32_t events = EPOLLIN, std::uint64_t token = kToken) {
  epoll_event event{.events = events, .data = {.u64 = token}};
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
}

// The events of the one socket in a set; 0 for none.
std::uint32_t wait(int set, int timeout = kLongest) {
  epoll_event event{};
  const int count = ::epoll_wait(set, &event, 1, timeout);
  EXPECT_EQ(count == 1 ? event.data.u64 : kToken, kToken);
  return count == 1 ? event.events : 0;
}

// Rounds in which a byte is put, waited for in the set and taken.
void exchange(const Pair& pair, int set, int rounds = 20) {
  for (int i = 0; i < rounds; ++i) {
    pair.put();
    ASSERT_EQ(wait(set), EPOLLIN) << "round " << i;
    pair.take();
  }
}

// Memory whose last bytes are followed by a page that nobody may touch.
class GuardedMemory {
 public:
  GuardedMemory() {
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, kSize + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(memory_ + kSize, kPage, PROT_NONE), 0);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { ::munmap(memory_, kSize + kPage); }
  [[nodiscard]] void* last(std::size_t bytes) const { return memory_ + kSize - bytes; }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kSize = 64 * kPage;
  std::byte* memory_;
};

long number_in_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
  ADD_FAILURE() << name;
  return 0;
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
    const UniqueFd passed = DescriptorMessage().receive(there.get());
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
  DescriptorMessage().send(here.get(), set.get());
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

// --- waits that the library does not see

// By a system call of the program's own, which cannot be seen.
TEST(UnseenWait, InASetIsWoken) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  for (int i = 0; i < 20; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(kernel(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
    EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
    pair.take();
  }
}

TEST(UnseenWait, InASetThatNobodyKnowsTheMakerOfIsWoken) {
  const Pair pair;
  const UniqueFd set(static_cast<int>(kernel(SYS_epoll_create1, EPOLL_CLOEXEC)));
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  for (int i = 0; i < 5; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(kernel(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
    pair.take();
  }
}

TEST(UnseenWait, OnASocketThatHasLeftItsSetIsWoken) {
  const Pair pair;
  UniqueFd set = new_set();
  for (const bool close : {false, true}) {
    add(set.get(), pair.server.get());
    exchange(pair, set.get());
    if (close)
      set.reset();
    else
      EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
    pair.put();
    EXPECT_TRUE(readable_for_kernel(pair.server.get()));
    pair.take();
  }
}

#ifdef SYS_epoll_wait
constexpr long kCallOfEpollWait = SYS_epoll_wait;
#else
constexpr long kCallOfEpollWait = SYS_epoll_pwait;
#endif

// A thread that sleeps in a set which another closes comes back to a set that is another's by then.
TEST(UnseenWait, InAClosedSetDoesNotHarmTheNextOne) {
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
  UniqueFd set = new_set();
  const Pair first;
  add(set.get(), bell.get());
  add(set.get(), first.server.get());
  std::atomic<long> sleeper{0};
  std::thread waiter([&, fd = set.get()] {
    sleeper = kernel(SYS_gettid);
    EXPECT_EQ(wait(fd, 60'000), EPOLLIN);
  });
  // Asleep in the kernel: in that very system call.
  std::string call;
  for (int i = 0; i < 10'000 && call.rfind(std::to_string(kCallOfEpollWait) + " ", 0) != 0; ++i) {
    ::usleep(1000);
    std::ifstream file("/proc/self/task/" + std::to_string(sleeper) + "/syscall");
    std::getline(file, call);
  }
  set.reset();
  const UniqueFd next = new_set();
  const UniqueFd other_bell(::eventfd(0, EFD_CLOEXEC));
  add(next.get(), other_bell.get());
  const std::uint64_t one = 1;
  EXPECT_EQ(::write(bell.get(), &one, sizeof one), 8);
  waiter.join();
  const Pair pair;
  add(next.get(), pair.server.get());
  exchange(pair, next.get());
  pair.put();
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(pair.server.get()));
  }
  EXPECT_EQ(wait(next.get()), EPOLLIN);
}

// Calls by their numbers, through the C library.
class NumberedWait : public ::testing::TestWithParam<long> {};

TEST_P(NumberedWait, IsWoken) {
  const Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set(static_cast<int>(::syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
  for (int i = 0; i < 20; ++i) {
    if (GetParam() == SYS_epoll_pwait && i == 0) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = kToken}};
      ASSERT_EQ(::syscall(SYS_epoll_ctl, set.get(), EPOLL_CTL_ADD, fd, &event), 0);
    }
    pair.put();
    timespec limit{.tv_sec = kLongest / 1000, .tv_nsec = 0};
    if (GetParam() == SYS_epoll_pwait) {
      epoll_event event{};
      ASSERT_EQ(::syscall(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
      EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
    } else if (GetParam() == SYS_ppoll) {
      pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
      ASSERT_EQ(::syscall(SYS_ppoll, &one, 1, &limit, nullptr, 8), 1) << i;
      EXPECT_EQ(one.revents, POLLIN);
    } else {
      fd_set read;
      FD_ZERO(&read);
      FD_SET(fd, &read);
      ASSERT_EQ(::syscall(SYS_pselect6, fd + 1, &read, nullptr, nullptr, &limit, nullptr), 1) << i;
      EXPECT_TRUE(FD_ISSET(fd, &read));
    }
    pair.take();
  }
}

std::string name_of_number(const ::testing::TestParamInfo<long>& test) {
  return test.param == SYS_epoll_pwait ? "Epoll" : test.param == SYS_ppoll ? "Poll" : "Select";
}
INSTANTIATE_TEST_SUITE_P(By, NumberedWait,
                         ::testing::Values(SYS_epoll_pwait, SYS_ppoll, SYS_pselect6),
                         name_of_number);

// --- select

TEST(Select, TouchesNoMoreWordsThanTheDescriptorsNeed) {
  const Pair pair;
  const int fd = pair.server.get();
  ASSERT_LT(fd, 64);
  std::array<unsigned long, 64> words;
  words.fill(~0UL);
  unsigned long* const write = words.data();
  unsigned long* const read = words.data() + 1;
  *write = *read = 1UL << fd;
  timeval none{};
  ASSERT_EQ(::select(fd + 1, reinterpret_cast<fd_set*>(read), reinterpret_cast<fd_set*>(write),
                     nullptr, &none),
            1);
  EXPECT_EQ(*write, 1UL << fd);
  EXPECT_EQ(*read, 0UL);
  for (std::size_t i = 2; i < words.size(); ++i) EXPECT_EQ(words[i], ~0UL);
}

TEST(Select, ReadsNoMoreWordsThanTheDescriptorsNeed) {
  const Pair pair;
  const int fd = pair.server.get();
  ASSERT_LT(fd, 64);
  pair.put();
  const pid_t child = in_child([&] {
    const GuardedMemory memory;
    auto* const read = static_cast<unsigned long*>(memory.last(8));
    *read = 1UL << fd;
    EXPECT_EQ(::select(fd + 1, reinterpret_cast<fd_set*>(read), nullptr, nullptr, nullptr), 1);
    EXPECT_EQ(*read, 1UL << fd);
  });
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Select, TellsOfDescriptorsBehindThoseOfTheCLibrary) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2000) GTEST_SKIP() << "no 2,000 descriptors allowed here";
  const rlimit wide{.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2000), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &wide), 0);
  const Pair pair;
  const UniqueFd high(::fcntl(pair.server.get(), F_DUPFD_CLOEXEC, 1500));
  const Pair other;
  const int low = other.server.get();
  const int fd = high.get();
  const auto bit = [](int number) { return 1UL << (number % 64); };
  const auto word = [](int number) { return static_cast<std::size_t>(number / 64); };
  for (const bool wait : {false, true}) {
    for (int i = 0; i < 10; ++i) {
      std::vector<unsigned long> read(word(fd) + 1);
      read[word(fd)] |= bit(fd);
      read[word(low)] |= bit(low);
      timeval none{};
      EXPECT_EQ(::select(fd + 1, reinterpret_cast<fd_set*>(read.data()), nullptr, nullptr, &none),
                0);
      EXPECT_EQ(read, std::vector<unsigned long>(word(fd) + 1));
      read[word(fd)] |= bit(fd);
      read[word(low)] |= bit(low);
      timeval longest{.tv_sec = kLongest / 1000, .tv_usec = 0};
      const Pair& now = i % 2 == 0 ? pair : other;
      std::thread sender;
      if (wait)
        sender = std::thread([&] { now.put(); });
      else
        now.put();
      EXPECT_EQ(
          ::select(fd + 1, reinterpret_cast<fd_set*>(read.data()), nullptr, nullptr, &longest), 1);
      EXPECT_EQ((read[word(fd)] & bit(fd)) != 0, i % 2 == 0);
      EXPECT_EQ((read[word(low)] & bit(low)) != 0, i % 2 != 0);
      if (sender.joinable()) sender.join();
      now.take();
    }
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// The kernel looks at as many descriptors as the process has room for, whatever is asked for.
TEST(Select, OfMoreDescriptorsThanThereCanBeReadsThoseThatThereAre) {
  const Pair pair;
  const int fd = pair.server.get();
  pair.put();
  const pid_t child = in_child([&] {
    const auto bytes = static_cast<std::size_t>(number_in_status("FDSize")) / 8;
    const GuardedMemory memory;
    auto* const read = static_cast<unsigned long*>(memory.last(bytes));
    read[fd / 64] |= 1UL << (fd % 64);
    EXPECT_EQ(::select(1'000'000, reinterpret_cast<fd_set*>(read), nullptr, nullptr, nullptr), 1);
    EXPECT_EQ(read[fd / 64], 1UL << (fd % 64));
  });
  EXPECT_EQ(exit_status(child), 0);
}

// --- poll

TEST(Poll, OfVeryManyEntriesTellsOfEach) {
  const Pair pair;
  const Pair other;
  std::vector<pollfd> all;
  for (int i = 0; i < 300; ++i) {
    all.push_back({.fd = pair.server.get(), .events = POLLIN, .revents = 0});
    all.push_back({.fd = other.server.get(), .events = POLLIN, .revents = 0});
    all.push_back({.fd = -1, .events = POLLIN, .revents = 0});
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(::poll(all.data(), all.size(), 0), 0);
    pair.put();
    EXPECT_EQ(::poll(all.data(), all.size(), kLongest), 300);
    for (std::size_t entry = 0; entry < all.size(); ++entry)
      EXPECT_EQ(all[entry].revents, entry % 3 == 0 ? POLLIN : 0);
    pair.take();
    // Those that have been looked at before it comes are not counted.
    std::thread sender([&] { other.put(); });
    EXPECT_GT(::poll(all.data(), all.size(), kLongest), 0);
    sender.join();
    EXPECT_EQ(::poll(all.data(), all.size(), kLongest), 300);
    other.take();
  }
}

TEST(Poll, OfMoreEntriesThanAllowedIsRefused) {
  const Pair pair;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const pid_t child = in_child([&] {
    const GuardedMemory memory;
    auto* const one = static_cast<pollfd*>(memory.last(sizeof(pollfd)));
    *one = {.fd = -1, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(one, limit.rlim_cur + 1, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  });
  EXPECT_EQ(exit_status(child), 0);
}

// --- who is told first

constexpr int kManyCalls = 10'000;

TEST(Fairness, AnEventOfTheKernelIsToldBesideABusySocket) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put(50);
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  add(set.get(), bell.get(), EPOLLIN, 1);
  bool told = false;
  for (int i = 0; i < kManyCalls && !told; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
    told = event.data.u64 == 1;
    if (!told) pair.take();
  }
  EXPECT_TRUE(told);
}

TEST(Fairness, ABusySocketIsToldBesideAnEventOfTheKernel) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  add(set.get(), bell.get(), EPOLLIN, 1);
  std::array<int, 2> told{};
  for (int i = 0; i < 1000; ++i) {
    pair.put();
    bool taken = false;
    for (int call = 0; call < 100 && !taken; ++call) {
      epoll_event event{};
      ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
      taken = event.data.u64 == kToken;
      ++told[taken ? 0 : 1];
    }
    ASSERT_TRUE(taken) << "round " << i;
    pair.take();
  }
  EXPECT_EQ(told[0], 1000);
  EXPECT_GT(told[1], 0);
}

TEST(Fairness, OfManyBusySocketsEachHasItsTurn) {
  constexpr std::size_t kSockets = 5;
  const std::array<Pair, kSockets> pairs;
  const UniqueFd set = new_set();
  for (std::size_t i = 0; i < kSockets; ++i) {
    add(set.get(), pairs[i].server.get(), EPOLLIN, i);
    for (int round = 0; round < 20; ++round) {
      pairs[i].put();
      epoll_event event{};
      ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
      pairs[i].take();
    }
  }
  // Three of them always have something, two never.
  for (std::size_t i = 0; i < 3; ++i) pairs[i].put();
  std::array<int, kSockets> told{};
  for (int i = 0; i < 300; ++i) {
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
    ++told[event.data.u64];
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_GE(told[i], 75) << i;
  EXPECT_EQ(told[3] + told[4], 0);
}

TEST(Fairness, RoomToSendIsToldInEveryCallBesideABusySocket) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  add(set.get(), writer.get(), EPOLLOUT, 1);
  for (int i = 0; i < 100; ++i) {
    pair.put();
    epoll_event events[4];
    ASSERT_EQ(::epoll_wait(set.get(), events, 4, kLongest), 2) << "round " << i;
    pair.take();
  }
  // No longer asked for: the busy socket alone.
  epoll_event nothing{.events = 0, .data = {.u64 = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, writer.get(), &nothing), 0);
  exchange(pair, set.get());
}

// --- what sets cost

TEST(SetMemory, IsSmallWhereDescriptorsAre) {
  const Pair pair;
  const UniqueFd first = new_set();
  add(first.get(), pair.server.get());
  const long before = number_in_status("VmSize");
  std::array<UniqueFd, 8> sets;
  for (UniqueFd& set : sets) {
    set = new_set();
    add(set.get(), pair.server.get());
  }
  EXPECT_LE(number_in_status("VmSize"), before + 256) << "kB";
}

TEST(SetMemory, IsGivenBack) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2000) GTEST_SKIP() << "no 2,000 descriptors allowed here";
  const rlimit wide{.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2000), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &wide), 0);
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd kept = new_set();
  add(kept.get(), bell.get());
  std::vector<UniqueFd> sets;
  sets.reserve(1000);
  const auto open_and_close = [&] {
    for (int i = 0; i < 1000; ++i) {
      sets.push_back(new_set());
      ASSERT_TRUE(sets.back());
      add(sets.back().get(), bell.get());
    }
    sets.clear();
  };
  const long before = number_in_status("VmSize");
  open_and_close();
  EXPECT_LE(number_in_status("VmSize"), before + 512) << "kB";
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A descriptor far up needs room in its set, which comes without loss of what is known.
TEST(SetMemory, GrowsWithTheHighestDescriptor) {
  const Pair pair;
  const Pair other;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd high(
      ::fcntl(other.server.get(), F_DUPFD_CLOEXEC, static_cast<int>(limit.rlim_cur) - 1));
  ASSERT_TRUE(high);
  add(set.get(), high.get(), EPOLLIN, 1);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  pair.take();
  exchange(pair, set.get());
  other.put();
  epoll_event event{};
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
  EXPECT_EQ(event.data.u64, 1u);
}

// Answers each message on `connections` until they end. Returns how often a socket that was told of
// had nothing, or -1.
int answer_all(const std::vector<UniqueFd>& connections, std::size_t asked, std::size_t answered,
               int rounds, bool begins) {
  const UniqueFd set = new_set();
  const std::string answer(answered, 'a');
  std::vector<std::size_t> missing(connections.size(), asked);
  std::vector<int> left(connections.size(), rounds);
  std::vector<int> late(connections.size(), 0);
  const auto send_answer = [&](std::size_t which) {
    return ::send(connections[which].get(), answer.data(), answered, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(answered);
  };
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const int fd = connections[i].get();
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return -1;
    add(set.get(), fd, EPOLLIN, i);
    if (begins && !send_answer(i)) return -1;
  }
  int in_vain = 0;
  for (std::size_t open = connections.size(); open != 0;) {
    std::array<epoll_event, 16> events;
    const int count = ::epoll_wait(set.get(), events.data(), events.size(), kLongest);
    if (count <= 0) return -1;
    for (int i = 0; i < count; ++i) {
      const std::size_t which = events[static_cast<std::size_t>(i)].data.u64;
      char bytes[400];
      const auto begun = std::chrono::steady_clock::now();
      const ssize_t got = ::recv(connections[which].get(), bytes, missing[which], 0);
      if (got < 0 && errno == EAGAIN) {
        // A peer that has no processor in the middle of taking back is waited for ten milliseconds,
        // and no longer after a few times in vain.
        if (std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds(10))
          ++late[which];
        else if (late[which] < 3)
          ++in_vain;
        continue;
      }
      if (got <= 0) return -1;
      missing[which] -= static_cast<std::size_t>(got);
      if (missing[which] != 0) continue;
      missing[which] = asked;
      const bool last = --left[which] == 0;
      if (!(begins && last) && !send_answer(which)) return -1;
      if (!last) continue;
      ::epoll_ctl(set.get(), EPOLL_CTL_DEL, connections[which].get(), nullptr);
      --open;
    }
  }
  return in_vain;
}

// A peer that sends and goes to sleep takes back what has not been read. Who has been told of it
// finds it all the same, in memory or in the kernel.
TEST(Readiness, WhatWasToldOfIsThere) {
  constexpr int kPeers = 3;
  constexpr int kEach = 8;
  constexpr int kRounds = 3000;
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  pid_t children[kPeers];
  for (pid_t& child : children)
    child = in_child([&] {
      std::vector<UniqueFd> connections;
      for (int i = 0; i < kEach; ++i) connections.push_back(connect_to(address));
      EXPECT_EQ(answer_all(connections, 230, 45, kRounds, true), 0);
    });
  std::vector<UniqueFd> connections;
  for (int i = 0; i < kPeers * kEach; ++i) connections.push_back(accept_from(listener));
  EXPECT_EQ(answer_all(connections, 45, 230, kRounds, false), 0);
  for (const pid_t child : children) EXPECT_EQ(exit_status(child), 0);
}

}  // namespace
}  // namespace farcall::preload

int main(int count, char** arguments) {
  if (const char* const set = std::getenv(farcall::preload::kWaitIn))
    return farcall::preload::wait_as_another_program(set);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
