// SPDX-License-Identifier: Apache-2.0
//
// A terminal that changes nothing and loses nothing.
#include "farcall/channel/pty.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

TEST(Pty, PassesEveryByteUnchanged) {
  auto [reader, writer] = Channel<Pty>().take_both();
  std::vector<std::byte> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  writer->write(all);
  writer->finish();
  std::vector<std::byte> into(300);
  EXPECT_EQ(reader->read_fully(into), all.size());
  into.resize(all.size());
  EXPECT_EQ(into, all);
}

TEST(Pty, GivesAllThatWasWrittenBeforeTheEnd) {
  for (std::size_t round = 0; round < 200; ++round) {
    const std::size_t total = 1 + (round * 7919) % 150'000;
    auto [child, reader] = spawn_writer(Channel<Pty>(), [total](Writer& out) {
      write_pattern(out, total);
      return 0;
    });
    ASSERT_EQ(read_pattern(*reader), total);
    ASSERT_TRUE(child.wait().success());
  }
}

TEST(Pty, GivesWhatItHoldsAfterTheWriterHasGone) {
  for (std::size_t size = 1; size <= 4000; size += 333) {
    auto [reader, writer] = Channel<Pty>().take_both();
    write_pattern(*writer, size);
    writer.reset();
    ASSERT_EQ(read_pattern(*reader), size);
  }
}

TEST(Pty, DoesNotBecomeTheControllingTerminal) {
  Subprocess child([] {
    require(::setsid() >= 0, "a session without a terminal");
    auto [reader, writer] = Channel<Pty>().take_both();
    require(::open("/dev/tty", O_RDWR | O_CLOEXEC) < 0, "no controlling terminal");
    return 0;
  });
  EXPECT_EQ(child.wait().describe(), "exited with 0");
}

}  // namespace
}  // namespace farcall::channel::test
