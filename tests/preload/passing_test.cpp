// SPDX-License-Identifier: Apache-2.0
//
// Connections whose descriptors are passed to others.
// The tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "contract.hpp"
#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

TEST(Contract, ADescriptorCanBePassed) {
  Pair pair;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  ASSERT_TRUE(test::send_descriptor(from.get(), pair.server.get()));
  pair.server.reset();
  const UniqueFd arrived(test::receive_descriptor(to.get()));
  for (int i = 0; i < 50; ++i) {
    pair.put("there");
    EXPECT_EQ(receive(arrived.get()), "there");
    EXPECT_EQ(send(arrived.get(), "back"), "4");
    EXPECT_EQ(receive(pair.client.get()), "back");
  }
}

// As many as one message takes, or several of one call; what was unread in memory goes with each.
TEST(Contract, SeveralDescriptorsCanBePassed) {
  for (const bool in_one : {true, false}) {
    const UsedPair pairs[2];
    for (const UsedPair& pair : pairs) pair.put("unread");
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd by(ends[0]);
    const UniqueFd to(ends[1]);
    const int fds[2] = {pairs[0].server.get(), pairs[1].server.get()};
    const unsigned count = in_one ? 1 : 2;
    const std::size_t each = in_one ? 2 : 1;
    mmsghdr messages[2] = {};
    test::AncillaryMessage sent[2];
    for (unsigned i = 0; i < count; ++i) {
      sent[i].add(std::span(fds).subspan(i, each));
      messages[i].msg_hdr = sent[i].head();
    }
    ASSERT_EQ(::sendmmsg(by.get(), messages, count, 0), static_cast<int>(count));
    for (unsigned i = 0; i < count; ++i) {
      test::AncillaryMessage message(CMSG_SPACE(2 * sizeof(int)));
      // Not by the library, which would settle first what this thread has sent.
      ASSERT_EQ(kernel(SYS_recvmsg, to.get(), &message.head(), 0), 1);
      const std::vector<int> got = message.descriptors();
      ASSERT_EQ(got.size(), each);
      for (const int fd : got) {
        const UniqueFd passed(fd);
        char bytes[8] = {};
        // As a program without the library would.
        EXPECT_EQ(
            kernel(SYS_recvfrom, passed.get(), bytes, sizeof bytes, MSG_DONTWAIT, nullptr, nullptr),
            6);
        EXPECT_STREQ(bytes, "unread");
      }
    }
  }
}

// Whatever else comes with it.
TEST(Contract, ADescriptorBehindCredentialsIsPassedWithWhatIsUnread) {
  const UsedPair pair;
  pair.put("unread");
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd by(ends[0]);
  const UniqueFd to(ends[1]);
  test::AncillaryMessage sent;
  sent.add(SOL_SOCKET, SCM_CREDENTIALS,
           ucred{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()});
  sent.add(std::array{pair.server.get()});
  ASSERT_EQ(sent.send(by.get()), 1) << errno_name();
  test::AncillaryMessage message(CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int)));
  // Not by the library, which would settle first what this thread has sent.
  ASSERT_EQ(kernel(SYS_recvmsg, to.get(), &message.head(), 0), 1);
  const std::vector<int> got = message.descriptors();
  ASSERT_EQ(got.size(), 1U);
  const UniqueFd passed(got[0]);
  EXPECT_EQ(receive(passed.get(), 100, MSG_DONTWAIT), "unread");
}

}  // namespace
}  // namespace farcall::preload
