// SPDX-License-Identifier: Apache-2.0
//
// Pages that are still in the pipe are not written again.
#include "farcall/channel/vmsplice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

// Writes pieces of the sizes that `next` gives until there were `total` bytes.
template <class Next>
void write_pieces(Writer& out, std::size_t total, Next next) {
  Pattern pattern;
  std::vector<std::byte> piece;
  for (std::size_t done = 0; done < total; done += piece.size()) {
    piece.resize(std::min(next(), total - done));
    pattern.fill(piece);
    out.write(piece);
  }
}

// Each pipe is kept full: the reader is always behind by as much as the pipe can hold.
void expect_intact(const Options& options, std::size_t largest) {
  constexpr std::size_t kTotal = std::size_t{4} << 20;
  auto [child, reader] = spawn_writer(Channel<Vmsplice>(options), [largest](Writer& out) {
    std::minstd_rand random(3);
    write_pieces(out, kTotal, [&] { return 1 + random() % largest; });
    return 0;
  });
  Pattern pattern;
  std::vector<std::byte> into(3000);
  std::size_t got = 0;
  for (int i = 0;; ++i) {
    if (i % 256 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::size_t size = reader->read(into);
    if (size == 0) break;
    ASSERT_TRUE(pattern.check({into.data(), size})) << "after " << got << " bytes";
    got += size;
  }
  EXPECT_EQ(got, kTotal);
  EXPECT_TRUE(child.wait().success());
}

TEST(Vmsplice, KeepsSmallPiecesUntilTheyAreRead) { expect_intact({}, 400); }
TEST(Vmsplice, KeepsPagesUntilTheyAreRead) { expect_intact({}, 3 * 4096); }
TEST(Vmsplice, KeepsPiecesLongerThanThePipeUntilTheyAreRead) { expect_intact({}, 300'000); }
TEST(Vmsplice, KeepsPiecesInAPipeOfOnePage) { expect_intact({.buffer_bytes = 1}, 10'000); }
TEST(Vmsplice, KeepsPiecesInALargePipe) {
  expect_intact({.buffer_bytes = std::size_t{1} << 20}, 50'000);
}

TEST(Vmsplice, LeavesTheLastPagesToTheReader) {
  auto [reader, writer] = Channel<Vmsplice>().take_both();
  std::vector<std::byte> bytes(40'000);
  Pattern().fill(bytes);
  writer->write(bytes);
  writer.reset();
  std::vector<std::byte> into(bytes.size() + 1);
  EXPECT_EQ(reader->read_fully(into), bytes.size());
  EXPECT_TRUE(Pattern().check({into.data(), bytes.size()}));
}

}  // namespace
}  // namespace farcall::channel::test
