// SPDX-License-Identifier: Apache-2.0
//
// Connections that several numbers or processes share, where one waits in an epoll set and another
// receives: what that leaves is told of. As contract_test.cpp, these run as they are and with the
// library preloaded.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "children.hpp"
#include "preload/real.hpp"
#include "readiness.hpp"

namespace farcall::preload::readiness {
namespace {

// How often a set has told of a connection, in memory that children share.
class Told {
 public:
  Told()
      : count_(new (::mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Count(0)) {}
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() { ::munmap(count_, sizeof(Count)); }

  // Sleeps in the set until `over` can be read; between two sleeps as the library does not see.
  void count_in(int set, int over) const {
    add(set, over, EPOLLIN, kToken + 1);
    for (;;) {
      epoll_event event{};
      if (::epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == kToken + 1) return;
      count_->fetch_add(1);
      const timespec moment{.tv_sec = 0, .tv_nsec = 300'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
  }
  // What is there now is told of, and again, as it stays.
  [[nodiscard]] bool comes() const {
    const unsigned before = *count_;
    for (int i = 0; i < 5'000 && *count_ < before + 2; ++i) {
      const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
    return *count_ >= before + 2;
  }

 private:
  using Count = std::atomic<unsigned>;
  Count* count_;
};

// Exchanges bytes over `fd`, and takes one of two that come together.
void take_one_of_two(const FarPeer& peer, int fd) {
  peer.begin('a');
  char byte = 'y';
  for (int i = 0; i < FarPeer::kAnswers; ++i) {
    ASSERT_EQ(::send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    ASSERT_EQ(::recv(fd, &byte, 1, 0), 1);
  }
  peer.await_done();
}

void expect_rest_is_told(const FarPeer& peer, int fd, const Told& told) {
  for (int i = 0; i < 5; ++i) {
    take_one_of_two(peer, fd);
    ASSERT_TRUE(told.comes()) << "round " << i;
    char byte = 0;
    ASSERT_EQ(::recv(fd, &byte, 1, 0), 1);
  }
}

void end(int over, int times = 1) {
  const std::uint64_t one = 1;
  for (int i = 0; i < times; ++i) EXPECT_EQ(::write(over, &one, sizeof one), sizeof one);
}

TEST(Sharers, WhoSleepsIsToldOfWhatACopyOfItsNumberLeaves) {
  const FarPeer peer;
  const Told told;
  const UniqueFd other(::dup(peer.server.get()));
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), peer.server.get());
  std::thread sleeper([&] { told.count_in(set.get(), over.get()); });
  expect_rest_is_told(peer, other.get(), told);
  end(over.get());
  sleeper.join();
}

TEST(Sharers, WhoSleepsIsToldOfWhatAChildLeaves) {
  const FarPeer peer;
  const Told told;
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd begun(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), peer.server.get());
  const pid_t child = in_child([&] {
    std::uint64_t count;
    ASSERT_EQ(::read(begun.get(), &count, sizeof count), sizeof count);
    expect_rest_is_told(peer, peer.server.get(), told);
  });
  std::thread sleeper([&] { told.count_in(set.get(), over.get()); });
  end(begun.get());
  EXPECT_EQ(exit_status(child), 0);
  end(over.get());
  sleeper.join();
}

TEST(Sharers, AChildThatSleepsIsToldOfWhatItsParentLeaves) {
  const FarPeer peer;
  const Told told;
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  const pid_t child = in_child([&] {
    const UniqueFd set = new_set();
    add(set.get(), peer.server.get());
    told.count_in(set.get(), over.get());
  });
  expect_rest_is_told(peer, peer.server.get(), told);
  end(over.get());
  EXPECT_EQ(exit_status(child), 0);
}

// As above, and what comes when nobody is in a call.
TEST(Sharers, AChildThatSleepsIsToldOfWhatComesAfterItsParentHasReceived) {
  const FarPeer peer;
  const Told told;
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  const pid_t child = in_child([&] {
    const UniqueFd set = new_set();
    add(set.get(), peer.server.get());
    told.count_in(set.get(), over.get());
  });
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 100; ++j) {
      peer.begin('s');
      peer.take();
      peer.await_done();
    }
    peer.put();
    ASSERT_TRUE(told.comes()) << "round " << i;
    peer.take();
  }
  end(over.get());
  EXPECT_EQ(exit_status(child), 0);
}

}  // namespace
}  // namespace farcall::preload::readiness
