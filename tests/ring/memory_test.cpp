// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/memory.hpp"

#include <gtest/gtest.h>

#include "farcall/error.hpp"

namespace farcall {
namespace {

int attach_error(const SharedMemory& memory, RingKind kind) {
  try {
    RingMemory::attach(memory, kind, Access::read_write);
  } catch (const SystemError& error) {
    return error.code().value();
  }
  return 0;
}

TEST(RingMemory, CapacityIsRoundedUpToAPowerOfTwo) {
  EXPECT_EQ(ring_capacity(0), 4096U);
  EXPECT_EQ(ring_capacity(4097), 8192U);
  EXPECT_EQ(ring_capacity(1 << 20), 1U << 20);
}

TEST(RingMemory, RefusesOddCapacities) {
  const SharedMemory memory = SharedMemory::create(ring_bytes(8192));
  EXPECT_THROW(RingMemory::format(memory.fd(), 5000, RingKind::bytes), MisuseError);
  EXPECT_THROW(RingMemory::format(memory.fd(), 2048, RingKind::bytes), MisuseError);
  EXPECT_THROW(RingMemory::format(Mapping::anonymous_shared(8192), 8192, RingKind::bytes),
               MisuseError);
}

TEST(RingMemory, AttachesOnlyToARingOfTheSameKindAndSize) {
  const SharedMemory ring = SharedMemory::create(ring_bytes(8192));
  EXPECT_EQ(attach_error(ring, RingKind::bytes), EPROTO) << "not formatted";
  RingMemory formatted = RingMemory::format(ring.fd(), 8192, RingKind::bytes);
  EXPECT_EQ(attach_error(ring, RingKind::bytes), 0);
  EXPECT_EQ(attach_error(ring, RingKind::messages), EPROTOTYPE);
  formatted.view().control->magic ^= 1;
  EXPECT_EQ(attach_error(ring, RingKind::bytes), EPROTO) << "no ring of this library";
  formatted.view().control->magic ^= 1;
  formatted.view().control->capacity = 1 << 30;
  EXPECT_EQ(attach_error(ring, RingKind::bytes), EPROTO) << "believed a size the file has not";
  EXPECT_EQ(attach_error(SharedMemory::create(page_size()), RingKind::bytes), EPROTO);
  EXPECT_EQ(attach_error(SharedMemory::create(4 * page_size()), RingKind::bytes), EPROTO);
}

TEST(RingMemory, TakesTheCapacityFromTheFileNotFromThePeer) {
  const SharedMemory ring = SharedMemory::create(ring_bytes(8192));
  RingMemory theirs = RingMemory::format(ring.fd(), 8192, RingKind::bytes);
  const RingMemory ours = RingMemory::attach(ring, RingKind::bytes, Access::read_only);
  theirs.view().control->capacity = 1 << 30;
  EXPECT_EQ(ours.view().capacity, 8192U);
}

}  // namespace
}  // namespace farcall
