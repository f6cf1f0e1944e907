// SPDX-License-Identifier: Apache-2.0
//
// A peer that scribbles over all it can write, while the other side goes on reading and writing:
// that side must never crash, read or write out of bounds (AddressSanitizer watches), or hang, and
// must notice in the end. FARCALL_HOSTILE_SECONDS sets for how long.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::Unattached;

std::int64_t duration_ns() {
  const char* text = std::getenv("FARCALL_HOSTILE_SECONDS");
#if defined(__SANITIZE_ADDRESS__)
  const std::int64_t usual = 30;
#else
  const std::int64_t usual = 5;
#endif
  return (text != nullptr ? std::atoi(text) : usual) * 1'000'000'000 / 2;
}

// Never returns. Writes whole and half words, small and huge, where they hurt most and anywhere.
[[noreturn]] void scribble(const Unattached& ring, int lifeline, unsigned seed) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const RingMemory memory = RingMemory::attach(ring.shared, ring.kind, Access::read_write);
  RingControl& control = *memory.view().control;
  std::byte* const data = memory.view().data;
  const std::size_t capacity = memory.view().capacity;
  std::mt19937 random(seed);
  for (;;) {
    const std::uint64_t small = random() % (2 * capacity);
    const std::uint64_t large = (std::uint64_t{random()} << 33) ^ random();
    switch (random() % 12) {
      case 0: control.tail.value = large; break;
      case 1: control.tail.value = control.head.value + small; break;
      case 2: control.head.value = large; break;
      case 3: control.head.value += small; break;
      case 4: control.writer.parked = static_cast<std::uint32_t>(random() % 4); break;
      case 5: control.reader.parked = static_cast<std::uint32_t>(random() % 4); break;
      case 6: control.writer.processor = static_cast<std::uint32_t>(random() % 4); break;
      case 7: message_ring::header(data + (small & (capacity - 1) & ~63UL)) = large; break;
      case 8:
        message_ring::header(data + (small & (capacity - 1) & ~63UL)) =
            message_ring::kReady | (random() % 2 * message_ring::kPiece) | (random() % capacity);
        break;
      case 9: control.capacity = large; break;
      case 10:
        (void)!::send(lifeline, &large, 1 + random() % 8, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      default: data[random() % capacity] = static_cast<std::byte>(random()); break;
    }
    if (random() % 5000 == 0) control.reader.state = static_cast<std::uint32_t>(random() % 3);
    if (random() % 5000 == 0) control.writer.state = static_cast<std::uint32_t>(random() % 3);
  }
}

constexpr long kOperations = 100;

struct Tally {
  long operations = 0;
  long broken = 0;
  long gone = 0;
  [[nodiscard]] bool tells() const { return operations > kOperations && broken > 0; }
  bool over(Outcome outcome) {
    ++operations;
    broken += outcome == Outcome::broken;
    gone += outcome == Outcome::finished || outcome == Outcome::peer_gone;
    return outcome == Outcome::broken || outcome == Outcome::finished ||
           outcome == Outcome::peer_gone;
  }
};

// Uses a fresh half again and again until time is up, or on a busy machine until the tally tells
// something; `use` makes one operation on it.
template <class Half, class Use>
Tally endure(RingKind kind, bool writes, Use use) {
  Tally tally;
  const std::int64_t end = monotonic_ns() + duration_ns() / 2;
  const std::int64_t limit = end + 60'000'000'000;
  const auto goes_on = [&] {
    const std::int64_t now = monotonic_ns();
    return now < end || (now < limit && !tally.tells());
  };
  for (unsigned seed = 1; goes_on(); ++seed) {
    Unattached ring(kind, 1 << 14);
    // Before the peer gets at it: attaching to a ring that is scribbled over is refused.
    const RingMemory memory =
        RingMemory::attach(ring.shared, kind, writes ? Access::read_write : Access::read_only);
    const pid_t child = ::fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
      (writes ? ring.lifeline.first : ring.lifeline.second).reset();
      scribble(ring, writes ? ring.reader_lifeline() : ring.writer_lifeline(), seed);
    }
    {
      (writes ? ring.lifeline.second : ring.lifeline.first).reset();
      const int lifeline = writes ? ring.writer_lifeline() : ring.reader_lifeline();
      constexpr WaitMode kModes[] = {WaitMode::spin, WaitMode::adaptive, WaitMode::block};
      Half half(memory.view(), Waiter(lifeline, kModes[seed % 3]));
      const std::int64_t stop = monotonic_ns() + 200'000'000;
      for (unsigned i = 0; monotonic_ns() < stop; ++i)
        if (tally.over(use(half, i))) break;
    }
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
  }
  return tally;
}

Deadline soon() { return Deadline::after(std::chrono::milliseconds(2)); }

TEST(RingHostile, MessageReaderSurvives) {
  // Exactly as large as the longest message read into it, so that an overrun shows.
  std::vector<std::byte> into(10'000);
  const Tally tally =
      endure<MessageReader>(RingKind::messages, false, [&](MessageReader& half, unsigned) {
        std::size_t size = 0;
        const Outcome outcome = half.read(into, size, soon());
        // Too big for the buffer is for the caller to end; a hostile size must not stop the test.
        return outcome == Outcome::too_big ? Outcome::broken : outcome;
      });
  EXPECT_GT(tally.operations, kOperations);
  EXPECT_GT(tally.broken, 0);
}

TEST(RingHostile, MessageWriterSurvives) {
  std::vector<std::byte> message(10'000);
  const Tally tally =
      endure<MessageWriter>(RingKind::messages, true, [&](MessageWriter& half, unsigned i) {
        // A long message that did not fit must be gone on with, so sizes change by writer.
        return half.write(std::span(message).first(i % 2 == 0 ? 100 : 3000), soon());
      });
  EXPECT_GT(tally.operations, kOperations);
  EXPECT_GT(tally.broken + tally.gone, 0);
}

TEST(RingHostile, ByteReaderSurvives) {
  std::vector<std::byte> into(10'000);
  const Tally tally = endure<ByteReader>(RingKind::bytes, false, [&](ByteReader& half, unsigned) {
    std::size_t count = 0;
    return half.read_some(into, count, soon());
  });
  EXPECT_GT(tally.operations, kOperations);
  EXPECT_GT(tally.broken, 0);
}

TEST(RingHostile, ByteWriterSurvives) {
  std::vector<std::byte> block(10'000);
  const Tally tally = endure<ByteWriter>(RingKind::bytes, true, [&](ByteWriter& half, unsigned i) {
    std::size_t count = 0;
    return half.write(std::span(block).first(1 + i % block.size()), count, soon());
  });
  EXPECT_GT(tally.operations, kOperations);
  EXPECT_GT(tally.broken, 0);
}

// The file cannot be cut or grown under a mapping, by anyone who holds it.
TEST(RingHostile, NobodyCanTakeTheMemoryAway) {
  const Unattached ring(RingKind::bytes);
  const RingMemory memory = RingMemory::attach(ring.shared, RingKind::bytes, Access::read_only);
  EXPECT_EQ(::ftruncate(ring.shared.fd(), 0), -1);
  // Punching holes is allowed; it gives zeroes, not faults.
  (void)!::fallocate(ring.shared.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                     static_cast<off_t>(ring.shared.size()));
  std::size_t sum = 0;
  for (std::size_t i = 0; i < memory.view().capacity; ++i)
    sum += std::to_integer<std::size_t>(memory.view().data[i]);
  EXPECT_EQ(sum, 0U);
}

}  // namespace
}  // namespace farcall
