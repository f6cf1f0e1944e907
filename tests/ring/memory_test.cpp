// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "farcall/error.hpp"
#include "farcall/ring.hpp"
#include "farcall/ring/broadcast_ring.hpp"

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

// The longest piece of a larger one would have a size that its header has no room for.
TEST(RingMemory, HasACapacityOf16GiBAtMost) {
  constexpr std::size_t kTooLarge = 2 * kLargestRingCapacity;
  EXPECT_EQ(message_ring::longest_piece(kLargestRingCapacity) >> 32, 0U);
  const UniqueFd file(::memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(ring_bytes(kTooLarge))), 0);
  EXPECT_THROW(RingMemory::format(file.get(), kTooLarge, RingKind::messages), MisuseError);
  EXPECT_THROW(BroadcastMemory::create(kTooLarge), MisuseError);
  RingControl control{};
  control.magic = RingControl::kMagic;
  control.kind = RingKind::messages;
  control.capacity = kTooLarge;
  ASSERT_EQ(::pwrite(file.get(), &control, sizeof control, 0), ssize_t{sizeof control});
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(attach_error(SharedMemory::adopt(file.duplicate()), RingKind::messages), EPROTO);
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

// Whoever looks at both ends tells by it that they are such.
TEST(RingMemory, SaysWhichFileItIsHoweverItWasMapped) {
  const SharedMemory ring = SharedMemory::create(ring_bytes(8192));
  struct stat file {};
  ASSERT_EQ(::fstat(ring.fd(), &file), 0);
  EXPECT_EQ(RingMemory::format(ring.fd(), 8192, RingKind::bytes).inode(), file.st_ino);
  EXPECT_EQ(RingMemory::attach(ring, RingKind::bytes, Access::read_write).inode(), file.st_ino);
  EXPECT_EQ(RingMemory::format(Mapping::anonymous_shared(ring_bytes(8192)), 8192, RingKind::bytes)
                .inode(),
            0U);
}

}  // namespace
}  // namespace farcall
