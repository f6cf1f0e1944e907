// SPDX-License-Identifier: Apache-2.0
//
// Ends that have shut down, with bytes in memory: what they are told, and that their own end is not
// taken for the death of the peer. These tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "contract.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// Bytes from `from` to an end that waits for them in a set, until they lie in memory.
void send_until_in_memory(int from, int to, const UniqueFd& set) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, to, &event), 0);
  const std::string block(500, 'x');
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(send(from, block), "500");
    const bool in_memory = preloaded() && !readable_for_kernel(to);
    if (i > 60) ::usleep(1000);
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
    ASSERT_EQ(receive(to), block);
    if (in_memory || (!preloaded() && i > 60)) return;
  }
  EXPECT_FALSE(preloaded()) << "not accelerated";
}

// What the server sends lies in memory, too.
struct Answering : UsedPair {
  Answering() : waits(::epoll_create1(EPOLL_CLOEXEC)) {
    send_until_in_memory(server.get(), client.get(), waits);
  }
  UniqueFd waits;
};

TEST(ShutDown, IsToldByPollBesideBytesInMemory) {
  const UsedPair pair;
  pair.put("bytes");
  ASSERT_EQ(::shutdown(pair.server.get(), SHUT_RDWR), 0);
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN), POLLIN | POLLHUP);
}

// Each of these calls comes too soon after the one before to ask the kernel anew.
TEST(ShutDown, IsToldByASetBesideBytesInMemory) {
  const UsedPair pair;
  const int fd = pair.server.get();
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = 1}};
  ASSERT_EQ(::epoll_ctl(pair.set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  pair.put("bytes");
  ASSERT_EQ(::epoll_wait(pair.set.get(), &event, 1, 10'000), 1);
  ASSERT_EQ(::shutdown(fd, SHUT_RD), 0);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(::epoll_wait(pair.set.get(), &event, 1, 0), 1);
    ASSERT_EQ(event.events, EPOLLIN | EPOLLRDHUP) << i;
  }
}

// Nothing settles what is unread before a call that does not wait.
TEST(ShutDown, ForReadingIsNoDeathOfThePeer) {
  const Answering pair;
  EXPECT_EQ(send(pair.server.get(), "unread"), "6");
  ASSERT_EQ(::shutdown(pair.server.get(), SHUT_RD), 0);
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_DONTWAIT), "(end)");
  EXPECT_EQ(receive(pair.client.get()), "unread");
}

// What it still has to read it has in memory alone, and nobody could send it again.
TEST(ShutDown, ForReadingKeepsWhatIsUnreadFromLeaving) {
  const UsedPair pair;
  const int fd = pair.server.get();
  pair.put("unread");
  ASSERT_EQ(::shutdown(fd, SHUT_RD), 0);
  int on = 1;
  ASSERT_EQ(::ioctl(fd, FIOASYNC, &on), 0);
  EXPECT_EQ(receive(fd), "unread");
  EXPECT_EQ(receive(fd), "(end)");
}

}  // namespace
}  // namespace farcall::preload
