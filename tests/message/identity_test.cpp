// SPDX-License-Identifier: Apache-2.0
//
// Who a sender is that becomes somebody else. With the shared library, whose functions stand in
// front of the C library's, and with the archive, which has none.
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

void receive_from(int channel, uid_t user, gid_t group) {
  const Message message = receive(channel);
  ASSERT_GT(message.id, 0);
  EXPECT_EQ(message.info.uid, user);
  EXPECT_EQ(message.info.gid, group);
  if (message.id > FARCALL_ONE_WAY) answer(message.id, 0);
}

TEST(MessageIdentity, WhoGivesUpRootIsRootNoMore) {
  if (!door::test::is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = door::test::kNobody;
  Channel channel;
  Child child([&] {
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_TRUE(door::test::become(user));
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    EXPECT_EQ(farcall_send_one_way(channel.connection, "x", 1), 0);
  });
  receive_from(channel.id, 0, 0);
  receive_from(channel.id, user, user);
  receive_from(channel.id, user, user);
  EXPECT_EQ(child.join(), 0);
}

TEST(MessageIdentity, WhoIsRootNowAndThenIsKnownEachTime) {
  if (over_module()) GTEST_SKIP() << "the module tells the real ids";
  if (!door::test::is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = door::test::kNobody;
  Channel channel;
  Child child([&] {
    ASSERT_EQ(::setegid(user), 0);
    ASSERT_EQ(::seteuid(user), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_EQ(::seteuid(0), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_EQ(::setreuid(static_cast<uid_t>(-1), user), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  receive_from(channel.id, user, user);
  receive_from(channel.id, 0, user);
  receive_from(channel.id, user, user);
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
