// SPDX-License-Identifier: Apache-2.0
//
// One direction of a stream, of which the peer has written what cannot be.
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <cstdint>

#include "farcall/memory.hpp"
#include "preload/transfer.hpp"
#include "ring_stream.hpp"

namespace farcall::preload {
namespace {

TEST(Stream, TakesMarksThatCannotBeForABrokenPeer) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("hello");
  stream.ring.control->tail.store(1 << 20);
  EXPECT_EQ(stream.receive(), "(error 104)");
  Stream other;
  other.ring.control->marks_made.store(1000);
  EXPECT_EQ(other.receive(), "(error 104)");
  Stream third;
  third.receiver.unwatch(third.ring);
  third.ring.control->head.store(17);
  EXPECT_EQ(third.send("x"), -ECONNRESET);
  Stream fourth;
  fourth.receiver.unwatch(fourth.ring);
  fourth.ring.control->marks_done.store(1000);
  EXPECT_EQ(fourth.send("x"), -ECONNRESET);
}

TEST(Stream, TakesAHeadThatGoesBackForABrokenPeer) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  ASSERT_EQ(stream.send("hello"), 5);
  ASSERT_EQ(stream.receive(), "hello");
  EXPECT_EQ(stream.sender.unread(stream.ring), 0U);
  stream.ring.control->head.store(2);
  (void)stream.sender.unread(stream.ring);
  EXPECT_TRUE(stream.sender.broken());
}

// It tells up to where the bytes in the kernel go, of which more have been read.
TEST(Stream, TakesAMarkThatEndsBeforeWhatIsReadForABrokenPeer) {
  Stream stream;
  ASSERT_EQ(stream.send("kernel"), 6);
  ASSERT_EQ(stream.receive(), "kernel");
  stream.ring.control->marks[0].to.store(3);
  EXPECT_EQ(stream.receive(), "(error 104)");
}

TEST(Stream, TakesAMarkOutsideOfTheRingForABrokenPeer) {
  for (const std::uint64_t position : {std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
    Stream stream;
    stream.receiver.unwatch(stream.ring);
    ASSERT_EQ(stream.send("hello"), 5);
    ASSERT_EQ(stream.receive(), "hello");
    const std::uint64_t made = stream.ring.control->marks_made.load();
    stream.ring.control->marks[made % kMarks].position.store(position);
    stream.ring.control->marks_made.store(made + 1);
    EXPECT_EQ(stream.receive(), "(error 104)") << position;
  }
}

// What cannot be told of a sender that died is not made up.
TEST(Stream, RecoversNothingWhereTheRingMakesNoSense) {
  const auto begun = [](Stream& stream) {
    stream.receiver.unwatch(stream.ring);
    ASSERT_EQ(stream.send("in the ring"), 11);
    iovec runs[2];
    ASSERT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  };
  Stream sleeping;
  begun(sleeping);
  sleeping.receiver.enter_kernel();
  EXPECT_FALSE(sleeping.receiver.recover(sleeping.ring, false));
  sleeping.receiver.leave_kernel(sleeping.ring, 0);
  EXPECT_TRUE(sleeping.receiver.recover(sleeping.ring, false));
  EXPECT_EQ(sleeping.receive(), "in the ring");
  Stream far_head;
  begun(far_head);
  far_head.ring.control->head.store(kReclaiming | std::uint64_t{1} << 20);
  EXPECT_FALSE(far_head.receiver.recover(far_head.ring, false));
  EXPECT_TRUE(far_head.receiver.broken());
  Stream far_tail;
  begun(far_tail);
  far_tail.ring.control->tail.store(std::uint64_t{1} << 20);
  EXPECT_FALSE(far_tail.receiver.recover(far_tail.ring, false));
  EXPECT_TRUE(far_tail.receiver.broken());
}

}  // namespace
}  // namespace farcall::preload
