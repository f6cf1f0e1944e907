// SPDX-License-Identifier: Apache-2.0
//
// What bytes do that go through a pipe, between threads and between processes.
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "c/pipe.hpp"

namespace farcall::c::test {
namespace {

constexpr std::size_t kRing = 4096;

TEST(CPipeBytes, GoBothWaysWithoutBoundaries) {
  const ByteEnds pipe;
  EXPECT_EQ(write(pipe.one, "a"), 1);
  EXPECT_EQ(write(pipe.one, "bc"), 2);
  EXPECT_EQ(write(pipe.other, "and back"), 8);
  EXPECT_EQ(read(pipe.other), "abc");
  EXPECT_EQ(read(pipe.one, kLong, 3), "and");
  EXPECT_EQ(read(pipe.one), " back");
}

TEST(CPipeBytes, AreNotMessages) {
  const ByteEnds bytes;
  const Ends messages;
  EXPECT_EQ(send(bytes.one, "no message"), -EOPNOTSUPP);
  EXPECT_EQ(receive(bytes.one), "EOPNOTSUPP");
  EXPECT_EQ(write(messages.one, "no bytes"), -EOPNOTSUPP);
  EXPECT_EQ(read(messages.one), "EOPNOTSUPP");
  // Nobody has used them.
  std::array<int, FARCALL_PIPE_DESCRIPTORS> all{};
  EXPECT_EQ(farcall_pipe_descriptors(bytes.one.get(), all.data()), 0);
  EXPECT_EQ(farcall_pipe_descriptors(messages.one.get(), all.data()), 0);
}

TEST(CPipeBytes, RefuseWhatCannotBe) {
  const ByteEnds pipe;
  char byte = 0;
  EXPECT_EQ(farcall_pipe_write(nullptr, &byte, 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_write(pipe.one.get(), nullptr, 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_write(pipe.one.get(), &byte, SIZE_MAX, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_read(nullptr, &byte, 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_read(pipe.one.get(), nullptr, 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_read(pipe.one.get(), &byte, SIZE_MAX, 0), -EINVAL);
}

TEST(CPipeBytes, MayBeNone) {
  const ByteEnds pipe;
  EXPECT_EQ(farcall_pipe_write(pipe.one.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(farcall_pipe_read(pipe.one.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(read(pipe.other, 0), "EAGAIN");
}

TEST(CPipeBytes, FillAllTheCapacityWhereThereIsNoTime) {
  const ByteEnds pipe(kRing);
  const std::string text = long_text(10'000);
  EXPECT_EQ(read(pipe.other, 0), "EAGAIN");
  EXPECT_EQ(write(pipe.one, text, 0), static_cast<std::int64_t>(kRing));
  EXPECT_EQ(write(pipe.one, text, 0), -EAGAIN);
  EXPECT_EQ(write(pipe.one, "x", 0), -EAGAIN);
  EXPECT_EQ(read(pipe.other, 0, 20'000), text.substr(0, kRing));
  EXPECT_EQ(read(pipe.other, 0), "EAGAIN");
  EXPECT_EQ(write(pipe.one, "room again", 0), 10);
}

// Nobody waits, and nothing is lost: each goes on where it was.
TEST(CPipeBytes, GoOnWhereTheyWere) {
  const ByteEnds pipe(kRing);
  const std::string text = long_text(50'000);
  std::string_view left = text;
  std::string got;
  for (int i = 0; i < 10'000 && got.size() < text.size(); ++i) {
    const std::int64_t written = write(pipe.one, left, 0);
    ASSERT_TRUE(written >= 0 || written == -EAGAIN) << written;
    if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
    const std::string some = read(pipe.other, 0, 1 + static_cast<std::size_t>(i) % 3000);
    if (some != "EAGAIN") got += some;
  }
  EXPECT_EQ(got, text);
}

TEST(CPipeBytes, SayHowFarTheyCameWhenTimeIsUp) {
  for (const int wait : {FARCALL_WAIT_ADAPTIVE, FARCALL_WAIT_SPIN, FARCALL_WAIT_BLOCK}) {
    const ByteEnds pipe(kRing, wait);
    const std::string text = long_text(10'000);
    const std::int64_t start = now_ns();
    EXPECT_EQ(write(pipe.one, text, kShort), static_cast<std::int64_t>(kRing));
    EXPECT_GE(now_ns() - start, kShort);
    EXPECT_EQ(write(pipe.one, text, kShort), -ETIMEDOUT);
    EXPECT_EQ(read(pipe.one, kShort), "ETIMEDOUT");
    EXPECT_EQ(read_all(pipe.other, kRing), text.substr(0, kRing));
  }
}

// The deadline is that of the whole write, though there is always room for some more.
TEST(CPipeBytes, AWriteThatDripsEndsInTime) {
  const ByteEnds pipe(kRing);
  std::atomic<bool> over{false};
  std::int64_t drained = 0;
  std::thread drains([&] {
    char some[512];
    for (;;) {
      const std::int64_t got = farcall_pipe_read(pipe.other.get(), some, sizeof some, 0);
      if (got > 0) drained += got;
      if (got <= 0 && over) return;
      std::this_thread::sleep_for(1ms);
    }
  });
  const std::string text = long_text(std::size_t{8} << 20);
  std::int64_t written = 0;
  std::int64_t all = 0;
  // Once more where the other thread has had no processor, and made no room.
  for (int tries = 0; tries < 100 && written <= static_cast<std::int64_t>(kRing); ++tries) {
    const std::int64_t start = now_ns();
    written = write(pipe.one, text, 10 * kShort);
    EXPECT_GE(now_ns() - start, 10 * kShort);
    EXPECT_TRUE(written > 0 || written == -ETIMEDOUT) << written;
    if (written > 0) all += written;
  }
  over = true;
  drains.join();
  EXPECT_GT(written, static_cast<std::int64_t>(kRing));
  EXPECT_LT(written, static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(drained, all);
}

TEST(CPipeBytes, AWriteMayBeLongerThanTheRing) {
  for (const int wait : {FARCALL_WAIT_ADAPTIVE, FARCALL_WAIT_SPIN, FARCALL_WAIT_BLOCK}) {
    const ByteEnds pipe(kRing, wait);
    const std::string text = long_text(1'000'003 / kSlow);
    std::thread writer([&] {
      EXPECT_EQ(write(pipe.one, text), static_cast<std::int64_t>(text.size()));
      EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
    });
    std::string got;
    std::string some;
    while (!(some = read(pipe.other, kLong, 1 + got.size() % 5'000)).empty()) got += some;
    writer.join();
    EXPECT_EQ(got, text);
  }
}

TEST(CPipeBytes, GoOneByOneBetweenProcesses) {
  const std::string text = long_text(100'000 / kSlow);
  ByteEnds pipe(kRing);
  Child child([&] {
    pipe.one.reset();
    char byte = 0;
    for (const char expected : text) {
      ASSERT_EQ(farcall_pipe_read(pipe.other.get(), &byte, 1, kLong), 1);
      ASSERT_EQ(byte, expected);
    }
    EXPECT_EQ(read(pipe.other), "");
    EXPECT_EQ(write(pipe.other, "all there"), 9);
    pipe.other.reset();
  });
  pipe.other.reset();
  for (const char& byte : text) ASSERT_EQ(farcall_pipe_write(pipe.one.get(), &byte, 1, kLong), 1);
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(read_all(pipe.one, 10), "all there");
  EXPECT_EQ(child.join(), 0);
}

TEST(CPipeBytes, EndWhenAllHaveBeenRead) {
  const ByteEnds pipe;
  EXPECT_EQ(write(pipe.one, "the last"), 8);
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(write(pipe.one, "too late"), -EPIPE);
  EXPECT_EQ(read(pipe.other, kLong, 4), "the ");
  EXPECT_EQ(read(pipe.other), "last");
  EXPECT_EQ(read(pipe.other), "");
  EXPECT_EQ(read(pipe.other, 0), "");
  // Only one way has ended.
  EXPECT_EQ(write(pipe.other, "still"), 5);
  EXPECT_EQ(read(pipe.one), "still");
}

TEST(CPipeBytes, AClosedEndEndsBothWays) {
  for (const bool used : {false, true}) {
    ByteEnds pipe;
    if (used) {
      EXPECT_EQ(write(pipe.one, "used"), 4);
    }
    pipe.one.reset();
    if (used) {
      EXPECT_EQ(read(pipe.other), "used");
    }
    EXPECT_EQ(read(pipe.other), "");
    EXPECT_EQ(write(pipe.other, "nobody"), -EPIPE);
  }
}

TEST(CPipeBytes, AWriterThatSleepsLearnsHowFarItCameWhenTheReaderCloses) {
  ByteEnds pipe(kRing, FARCALL_WAIT_BLOCK);
  const std::string text = long_text(10'000);
  std::atomic<pid_t> thread{0};
  std::int64_t written = 0;
  std::thread writer([&] {
    thread = ::gettid();
    written = write(pipe.one, text);
  });
  EXPECT_TRUE(eventually([&] { return thread != 0 && is_asleep(thread); }));
  pipe.other.reset();
  writer.join();
  EXPECT_EQ(written, static_cast<std::int64_t>(kRing));
  EXPECT_EQ(write(pipe.one, "the rest"), -EPIPE);
}

TEST(CPipeBytes, AReaderThatSleepsIsWokenByTheEnd) {
  ByteEnds pipe(0, FARCALL_WAIT_BLOCK);
  std::atomic<pid_t> thread{0};
  std::string got = "nothing yet";
  std::thread reader([&] {
    thread = ::gettid();
    got = read(pipe.other);
  });
  EXPECT_TRUE(eventually([&] { return thread != 0 && is_asleep(thread); }));
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  reader.join();
  EXPECT_EQ(got, "");
}

TEST(CPipeBytes, ChangeNoErrno) {
  const ByteEnds pipe(kRing);
  errno = EXDEV;
  EXPECT_EQ(read(pipe.one, 0), "EAGAIN");
  EXPECT_EQ(read(pipe.one, kShort), "ETIMEDOUT");
  EXPECT_EQ(write(pipe.one, long_text(5'000), kShort), static_cast<std::int64_t>(kRing));
  EXPECT_EQ(errno, EXDEV);
}

TEST(CPipeBytes, AReaderCanBePolled) {
  ByteEnds pipe;
  const int fd = farcall_pipe_poll_descriptor(pipe.one.get());
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 1);
    EXPECT_FALSE(readable(fd, 0));
    EXPECT_EQ(write(pipe.other, "now"), 3);
    EXPECT_TRUE(readable(fd, -1));
    farcall_pipe_poll_end(pipe.one.get());
    EXPECT_FALSE(readable(fd, 0));
    EXPECT_EQ(read(pipe.one, 0, 2), "no");
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0) << "there is some left";
    EXPECT_EQ(read(pipe.one, 0), "w");
  }
  ASSERT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 1);
  EXPECT_EQ(farcall_pipe_finish(pipe.other.get()), 0);
  EXPECT_TRUE(readable(fd, -1));
  farcall_pipe_poll_end(pipe.one.get());
  EXPECT_EQ(read(pipe.one, 0), "");
  EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0) << "the end is something to be told of";
}

TEST(CPipeBytes, AWriterCanBePolled) {
  ByteEnds pipe(kRing);
  const int fd = farcall_pipe_send_poll_descriptor(pipe.one.get());
  EXPECT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 0);
  EXPECT_EQ(write(pipe.one, long_text(kRing), 0), static_cast<std::int64_t>(kRing));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 1);
    EXPECT_FALSE(readable(fd, 0));
    const std::size_t taken = read_all(pipe.other, kRing / 2, 0).size();
    EXPECT_TRUE(readable(fd, -1));
    farcall_pipe_send_poll_end(pipe.one.get());
    EXPECT_EQ(write(pipe.one, long_text(kRing), 0), static_cast<std::int64_t>(taken));
  }
  ASSERT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 1);
  pipe.other.reset();
  EXPECT_TRUE(readable(fd, -1));
  farcall_pipe_send_poll_end(pipe.one.get());
  EXPECT_EQ(write(pipe.one, "x", 0), -EPIPE);
}

// One that takes little by little tells of it before it waits itself, by poll or else.
TEST(CPipeBytes, AWriterThatIsPolledLearnsOfRoomThatAReaderMadeByteByByte) {
  const ByteEnds pipe(kRing);
  EXPECT_EQ(write(pipe.one, long_text(kRing), 0), static_cast<std::int64_t>(kRing));
  ASSERT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 1);
  std::size_t taken = 0;
  while (read(pipe.other, 0, 1).size() == 1) ++taken;
  EXPECT_EQ(taken, kRing);
  EXPECT_TRUE(readable(farcall_pipe_send_poll_descriptor(pipe.one.get()), -1));
  farcall_pipe_send_poll_end(pipe.one.get());
  EXPECT_EQ(write(pipe.one, long_text(2 * kRing), 0), static_cast<std::int64_t>(kRing));
}

// Each half sleeps, and longer than on the futex: were there one doorbell for both, the one half
// would take what is meant for the other.
TEST(CPipeBytes, TwoThreadsThatSleepAtTheSameEndAreWoken) {
  const ByteEnds pipe(kRing, FARCALL_WAIT_BLOCK);
  const std::string text = long_text(2 * kRing);
  std::atomic<pid_t> writes{0};
  std::atomic<pid_t> reads{0};
  std::thread writer([&] {
    writes = ::gettid();
    EXPECT_EQ(write(pipe.one, text), static_cast<std::int64_t>(text.size()));
  });
  std::thread reader([&] {
    reads = ::gettid();
    EXPECT_EQ(read(pipe.one), "answer");
  });
  EXPECT_TRUE(eventually(
      [&] { return writes != 0 && reads != 0 && is_asleep(writes) && is_asleep(reads); }));
  std::this_thread::sleep_for(kGlance);  // beyond the shallow sleep
  EXPECT_EQ(write(pipe.other, "answer"), 6);
  reader.join();
  EXPECT_EQ(read_all(pipe.other, text.size()), text);
  writer.join();
}

}  // namespace
}  // namespace farcall::c::test
