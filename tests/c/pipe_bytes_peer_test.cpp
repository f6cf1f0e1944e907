// SPDX-License-Identifier: Apache-2.0
//
// Bytes whose other end dies, stops, scribbles over what it can write, or is another's; and
// signals.
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "c/signals.hpp"
#include "farcall/ring.hpp"

namespace farcall::c::test {
namespace {

constexpr std::size_t kRing = 4096;

// The memory that an end writes, to be scribbled over.
RingMemory memory_of(const End& end) {
  std::array<int, FARCALL_PIPE_DESCRIPTORS> all{};
  EXPECT_EQ(farcall_pipe_descriptors(end.get(), all.data()), 0);
  return RingMemory::attach(all[0], ring_bytes(kRing), RingKind::bytes, Access::read_write);
}

TEST(CPipeBytesPeer, WhoReadsGetsAllThatADeadWriterWrote) {
  const std::string text = long_text(3'000);
  ByteEnds pipe(kRing);
  Child child([&] {
    pipe.one.reset();
    EXPECT_EQ(write(pipe.other, text), 3'000);
    ::raise(SIGKILL);
  });
  pipe.other.reset();
  EXPECT_TRUE(WIFSIGNALED(child.join()));
  EXPECT_EQ(read_all(pipe.one, 3'000), text);
  EXPECT_EQ(read(pipe.one), "ECONNRESET");
  EXPECT_EQ(read(pipe.one, 0), "ECONNRESET");
  EXPECT_EQ(write(pipe.one, "nobody"), -EPIPE);
}

TEST(CPipeBytesPeer, WhoWritesLearnsHowFarItCameWhenTheReaderIsKilled) {
  const std::string text = long_text(20'000);
  ByteEnds pipe(kRing, FARCALL_WAIT_BLOCK);
  const Shared<Event> began;
  Child child([&] {
    pipe.one.reset();
    EXPECT_EQ(read_all(pipe.other, 1'000), text.substr(0, 1'000));
    EXPECT_EQ(read(pipe.other, kShort), text.substr(1'000, 1'000));
    began->happens();
    ::pause();
  });
  pipe.other.reset();
  std::atomic<std::int64_t> written{-1};
  std::thread writer([&] { written = write(pipe.one, text); });
  EXPECT_TRUE(began->wait());
  child.kill();
  writer.join();
  EXPECT_GE(written, static_cast<std::int64_t>(kRing));
  EXPECT_LE(written, static_cast<std::int64_t>(kRing) + 2'000);
  EXPECT_EQ(write(pipe.one, "the rest"), -EPIPE);
}

TEST(CPipeBytesPeer, WhoWritesLearnsOfADeathThoughThereIsRoom) {
  ByteEnds pipe(std::size_t{64} << 20);
  Child child([&] {
    pipe.one.reset();
    EXPECT_EQ(read(pipe.other), "first");
    ::pause();
  });
  pipe.other.reset();
  EXPECT_EQ(write(pipe.one, "first"), 5);
  EXPECT_EQ(write(pipe.one, "second"), 6);
  child.kill();
  EXPECT_TRUE(eventually([&] { return write(pipe.one, "in vain") == -EPIPE; }));
}

TEST(CPipeBytesPeer, OneThatStopsHoldsUpNobodyBeyondTheDeadline) {
  const std::string text = long_text(20'000);
  ByteEnds pipe(kRing);
  Child child([&] {
    pipe.one.reset();
    EXPECT_EQ(write(pipe.other, "ready"), 5);
    EXPECT_EQ(read_all(pipe.other, text.size()), text);
    EXPECT_EQ(read(pipe.other), "");
  });
  pipe.other.reset();
  EXPECT_EQ(read(pipe.one), "ready");
  ASSERT_EQ(::kill(child.pid(), SIGSTOP), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  std::string_view left = text;
  EXPECT_EQ(write(pipe.one, left, kShort), static_cast<std::int64_t>(kRing));
  left.remove_prefix(kRing);
  EXPECT_EQ(write(pipe.one, left, kShort), -ETIMEDOUT);
  EXPECT_EQ(read(pipe.one, kShort), "ETIMEDOUT");
  EXPECT_EQ(::kill(child.pid(), SIGCONT), 0);
  EXPECT_EQ(write(pipe.one, left), static_cast<std::int64_t>(left.size()));
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(child.join(), 0);
}

TEST(CPipeBytesPeer, AnEndIsItsFirstUsersAlone) {
  ByteEnds pipe;
  EXPECT_EQ(write(pipe.one, "mine"), 4);
  Child child([&] {
    EXPECT_EQ(write(pipe.one, "yours"), -EBUSY);
    EXPECT_EQ(read(pipe.one), "EBUSY");
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), -EBUSY);
    pipe.one.reset();
    EXPECT_EQ(read(pipe.other), "mine");
    EXPECT_EQ(write(pipe.other, "and back"), 8);
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(read(pipe.one), "and back");
}

TEST(CPipeBytesSignal, EndsAReadThatWaits) {
  const ByteEnds pipe(0, FARCALL_WAIT_BLOCK);
  EXPECT_EQ(interrupt([&] {
              char byte = 0;
              return static_cast<int>(farcall_pipe_read(pipe.one.get(), &byte, 1, FARCALL_FOREVER));
            }),
            -EINTR);
  EXPECT_EQ(write(pipe.other, "after"), 5);
  EXPECT_EQ(read(pipe.one), "after");
}

TEST(CPipeBytesSignal, EndsAWriteThatWaitsAndItSaysHowFarItCame) {
  const ByteEnds pipe(kRing, FARCALL_WAIT_BLOCK);
  const std::string text = long_text(10'000);
  const auto wait = [&](std::string_view what) {
    return interrupt([&] { return write(pipe.one, what, FARCALL_FOREVER); });
  };
  EXPECT_EQ(wait(text), static_cast<int>(kRing));
  EXPECT_EQ(wait(std::string_view(text).substr(kRing)), -EINTR);
  EXPECT_EQ(read_all(pipe.other, kRing), text.substr(0, kRing));
  EXPECT_EQ(read(pipe.other, 0), "EAGAIN");
}

// The handler runs while the write copies what there is room for, and before it waits.
TEST(CPipeBytesSignal, ThatCameJustBeforeAWriteWaitsEndsIt) {
  const ByteEnds pipe(kRing);
  EXPECT_EQ(write(pipe.one, "first"), 5);
  const Tripwire wire;
  EXPECT_EQ(farcall_pipe_write(pipe.one.get(), Tripwire::page, 4096, FARCALL_FOREVER),
            static_cast<std::int64_t>(kRing) - 5);
}

// Positions that cannot be, seen by who reads.
TEST(CPipeBytesHostile, AWriterThatWasNeverThereIsNoticed) {
  for (const std::uint64_t tail : {std::uint64_t{kRing} + 1, std::uint64_t{1} << 40, UINT64_MAX}) {
    ByteEnds pipe(kRing);
    memory_of(pipe.other).view().control->tail.value = tail;
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
    EXPECT_EQ(read(pipe.one), "EPROTO");
    EXPECT_EQ(read(pipe.one, 0), "EPROTO");
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
    // The other way is whole.
    EXPECT_EQ(write(pipe.one, "all the same"), 12);
    EXPECT_EQ(read(pipe.other), "all the same");
  }
}

// And by who writes. That it is broken stays so when the position is put right again.
TEST(CPipeBytesHostile, AReaderThatWasNeverThereIsNoticed) {
  for (const std::uint64_t head : {std::uint64_t{kRing} + 1, std::uint64_t{1} << 40, UINT64_MAX}) {
    ByteEnds pipe(kRing);
    const RingMemory memory = memory_of(pipe.one);
    EXPECT_EQ(write(pipe.one, long_text(5'000), 0), static_cast<std::int64_t>(kRing));
    memory.view().control->head.value = head;
    EXPECT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 0);
    EXPECT_EQ(write(pipe.one, "more"), -EPROTO);
    memory.view().control->head.value = 0;
    EXPECT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 0);
    EXPECT_EQ(write(pipe.one, "more", 0), -EPROTO);
  }
}

// What has been seen stays, whatever is said of it later.
TEST(CPipeBytesHostile, AWriterCannotTakeBackWhatItHasWritten) {
  const ByteEnds pipe(kRing);
  const RingMemory memory = memory_of(pipe.other);
  EXPECT_EQ(write(pipe.other, "ab"), 2);
  EXPECT_EQ(read(pipe.one, kLong, 1), "a");
  memory.view().control->tail.value = 1;
  EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
  EXPECT_EQ(read(pipe.one, 0), "b");
  EXPECT_EQ(read(pipe.one), "EPROTO");
}

// Never returns: the words of both rings, as nobody means them.
[[noreturn]] void scribble(const RingMemory& one, const RingMemory& other, unsigned seed,
                           Event& begun) {
  std::mt19937 random(seed);
  begun.happens();
  for (;;) {
    RingControl& control = *(random() % 2 == 0 ? one : other).view().control;
    const std::uint64_t large = (std::uint64_t{random()} << 33) ^ random();
    switch (random() % 8) {
      case 0: control.tail.value = control.head.value + random() % (2 * kRing); break;
      case 1: control.head.value = control.tail.value - random() % (2 * kRing); break;
      case 2: control.tail.value = random() % 50 == 0 ? large : control.head.value.load(); break;
      case 3: control.head.value = random() % 50 == 0 ? large : control.tail.value.load(); break;
      case 4: control.writer.parked = static_cast<std::uint32_t>(random() % 5); break;
      case 5: control.reader.parked = static_cast<std::uint32_t>(random() % 5); break;
      case 6: control.capacity = large; break;
      default: control.pair.number = large; break;
    }
  }
}

// Each operation ends as the contract says, in the memory that it was given (a sanitizer watches,
// and bytes around it), whatever is written meanwhile.
TEST(CPipeBytesHostile, WhoeverScribblesHurtsThisPipeAlone) {
  int broken = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    ByteEnds pipe(kRing, static_cast<int>(seed % 3));
    const RingMemory one = memory_of(pipe.one);
    const RingMemory other = memory_of(pipe.other);
    const Shared<Event> begun;
    Child peer([&] { scribble(one, other, seed, *begun); });
    ASSERT_TRUE(begun->wait());
    const std::string text = long_text(6'000, seed);
    std::string room(6'000 + 2, '#');
    bool over = false;
    // Some more where the peer has had no processor meanwhile.
    const std::int64_t end = now_ns() + 1'000'000'000;
    for (int i = 0; !over && (i < 200 || now_ns() < end); ++i) {
      const std::size_t size = 1 + static_cast<std::size_t>(i) * 31 % 6'000;
      const std::int64_t written = write(pipe.one, std::string_view(text).substr(0, size), 100'000);
      const std::int64_t got = farcall_pipe_read(pipe.one.get(), room.data() + 1, size, 100'000);
      for (const std::int64_t result : {written, got}) {
        EXPECT_LE(result, static_cast<std::int64_t>(size));
        EXPECT_TRUE(result > 0 || result == -ETIMEDOUT || result == -EPROTO) << result;
        over |= result == -EPROTO;
      }
      EXPECT_EQ(room.front(), '#');
      EXPECT_EQ(room[size + 1], '#');
      room.replace(1, size, size, '#');
    }
    broken += over ? 1 : 0;
  }
  EXPECT_GT(broken, 10);
  const ByteEnds another(kRing);
  EXPECT_EQ(write(another.one, "as before"), 9);
  EXPECT_EQ(read(another.other), "as before");
}

}  // namespace
}  // namespace farcall::c::test
