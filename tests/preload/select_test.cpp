// SPDX-License-Identifier: Apache-2.0
//
// select() and poll() with few or many descriptors, in memory that ends right behind what they
// need. As contract_test.cpp, these run as they are and with the library preloaded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "readiness.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {
namespace {

std::atomic<int> handled{0};

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

// What lies in memory and in the kernel, and is asked about in two sets, is ready once in each.
TEST(Select, BehindThoseOfTheCLibraryCountsADescriptorOnceInEachSet) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2000) GTEST_SKIP() << "no 2,000 descriptors allowed here";
  const rlimit wide{.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2000), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &wide), 0);
  const Pair pair;
  const UniqueFd high(::fcntl(pair.server.get(), F_DUPFD_CLOEXEC, 1500));
  const int fd = high.get();
  bool in_memory = false;
  pair.put();
  // Who has slept in a call has what comes next in memory.
  for (int i = 0; i < 1000 && preloaded() && !in_memory; ++i) {
    pair.take();
    std::thread later([&, waits = kernel(SYS_gettid)] {
      await_sleep(waits);
      pair.put();
    });
    pair.take();
    later.join();
    pair.put();
    in_memory = !readable_for_kernel(fd);
  }
  EXPECT_EQ(in_memory, preloaded());
  // Past the library.
  ASSERT_EQ(kernel(SYS_sendto, pair.client.get(), "x", 1, MSG_NOSIGNAL, nullptr, 0), 1);
  std::vector<unsigned long> read(static_cast<std::size_t>(fd / 64) + 1);
  read.back() = 1UL << (fd % 64);
  const std::vector<unsigned long> wanted = read;
  std::vector<unsigned long> write = read;
  timeval longest{.tv_sec = kLongest / 1000, .tv_usec = 0};
  EXPECT_EQ(::select(fd + 1, reinterpret_cast<fd_set*>(read.data()),
                     reinterpret_cast<fd_set*>(write.data()), nullptr, &longest),
            2);
  EXPECT_EQ(read, wanted);
  EXPECT_EQ(write, wanted);
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

TEST(Select, TellsOfNothingUrgentWhereThereIsNone) {
  const Pair pair;
  const int fd = pair.server.get();
  pair.put();
  fd_set read;
  fd_set urgent;
  FD_ZERO(&read);
  FD_ZERO(&urgent);
  FD_SET(fd, &read);
  FD_SET(fd, &urgent);
  timeval none{};
  EXPECT_EQ(::select(fd + 1, &read, nullptr, &urgent, &none), 1);
  EXPECT_TRUE(FD_ISSET(fd, &read));
  EXPECT_FALSE(FD_ISSET(fd, &urgent));
}

// --- poll

TEST(Poll, TellsOfANumberThatIsNotOpen) {
  const Pair pair;
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int closed = file.get();
  file.reset();
  pollfd both[2] = {{.fd = pair.server.get(), .events = POLLIN, .revents = 0},
                    {.fd = closed, .events = POLLIN, .revents = 0}};
  EXPECT_EQ(::poll(both, 2, 0), 1);
  EXPECT_EQ(both[0].revents, 0);
  EXPECT_EQ(both[1].revents, POLLNVAL);
}

// By number the size of the mask is said, and the kernel knows one.
TEST(Poll, AMaskOfAnotherSizeIsRefused) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  const int fd = pair.server.get();
  sigset_t mask;
  ::sigemptyset(&mask);
  const timespec none{};
  for (const std::size_t size : {0UL, 4UL, 16UL, sizeof mask}) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::syscall(SYS_ppoll, &one, 1, &none, &mask, size), -1) << size;
    EXPECT_EQ(errno, EINVAL);
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    struct {
      const sigset_t* mask;
      std::size_t size;
    } with{.mask = &mask, .size = size};
    EXPECT_EQ(::syscall(SYS_pselect6, fd + 1, &read, nullptr, nullptr, &none, &with), -1) << size;
    EXPECT_EQ(errno, EINVAL);
    epoll_event event{};
    EXPECT_EQ(::syscall(SYS_epoll_pwait, set.get(), &event, 1, 0, &mask, size), -1) << size;
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

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

TEST(Poll, ATimeThatIsNoneIsRefusedWhateverThereIsToTell) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  const int fd = pair.server.get();
  for (const timespec time : {timespec{0, 1'000'000'000}, timespec{0, -1}, timespec{-1, 0}}) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::ppoll(&one, 1, &time, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    EXPECT_EQ(::pselect(fd + 1, &read, nullptr, nullptr, &time, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
    epoll_event event{};
    EXPECT_EQ(::epoll_pwait2(set.get(), &event, 1, &time, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(wait(set.get()), EPOLLIN);
}

// Once each, whatever of it is ready.
TEST(Poll, CountsASocketOnce) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  pollfd both{.fd = pair.server.get(), .events = POLLIN | POLLOUT, .revents = 0};
  EXPECT_EQ(::poll(&both, 1, 0), 1);
  EXPECT_EQ(both.revents, POLLIN | POLLOUT);
  both.events = POLLRDNORM;
  EXPECT_EQ(::poll(&both, 1, 0), 1);
  EXPECT_EQ(both.revents, POLLRDNORM);
}

// A signal that was blocked until then is handled, also where there is nothing to wait for.
TEST(Poll, LetsSignalsComeThatItsMaskPermits) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  const int fd = pair.server.get();
  struct sigaction action {};
  action.sa_handler = [](int) { ++handled; };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  sigset_t mask;
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &mask), 0);
  ::sigdelset(&mask, SIGUSR1);
  struct {
    const sigset_t* mask;
    std::size_t size;
  } with{.mask = &mask, .size = kKernelMaskSize};
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  fd_set read;
  timespec none{};
  const auto only_this = [&] {
    FD_ZERO(&read);
    FD_SET(fd, &read);
    return &read;
  };
  const std::function<long()> ways[] = {
      [&] { return ::ppoll(&one, 1, &none, &mask); },
      [&] { return ::pselect(fd + 1, only_this(), nullptr, nullptr, &none, &mask); },
      [&] { return ::syscall(SYS_ppoll, &one, 1, &none, &mask, kKernelMaskSize); },
      [&] { return ::syscall(SYS_pselect6, fd + 1, only_this(), nullptr, nullptr, &none, &with); },
  };
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    handled = 0;
    ASSERT_EQ(::raise(SIGUSR1), 0);
    EXPECT_EQ(way(), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(handled, 1);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  ::signal(SIGUSR1, SIG_DFL);
}

// As many as the process may have files are not too many.
TEST(Poll, OfAsManyEntriesAsAllowedTellsOfEach) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  const int status = exit_status(in_child([&] {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1100);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    std::vector<pollfd> all(limit.rlim_cur, {.fd = -1, .events = POLLIN, .revents = 0});
    all.back().fd = pair.server.get();
    EXPECT_EQ(::poll(all.data(), all.size(), 0), 1);
    EXPECT_EQ(all.back().revents, POLLIN);
  }));
  EXPECT_EQ(status, 0);
  pair.take();
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

}  // namespace
}  // namespace farcall::preload::readiness
