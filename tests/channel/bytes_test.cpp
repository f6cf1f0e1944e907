// SPDX-License-Identifier: Apache-2.0
//
// What every mechanism does as a stream of bytes.
#include <poll.h>
#include <signal.h>
#include <time.h>

#include <istream>
#include <memory>
#include <string>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using ByteStream = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, ByteStream, testing::ValuesIn(all_mechanisms()), test_name);

void pause_ms(long milliseconds) {
  const timespec pause{.tv_sec = 0, .tv_nsec = milliseconds * 1'000'000};
  ::nanosleep(&pause, nullptr);
}

void expect_success(Subprocess& child) {
  const ExitStatus status = child.wait();
  EXPECT_TRUE(status.success()) << status.describe();
}

void expect_to_carry(AnyChannel channel, std::size_t size) {
  auto [child, reader] = spawn_writer(std::move(channel), [size](Writer& out) {
    write_pattern(out, size);
    return 0;
  });
  EXPECT_EQ(read_pattern(*reader), size);
  expect_success(child);
}

TEST_P(ByteStream, HelloFromChildToParent) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& writer) {
    std::ostream out(&writer);
    out << "hello";
    return 0;
  });
  std::istream in(reader.get());
  std::string word;
  in >> word;
  EXPECT_EQ(word, "hello");
  EXPECT_TRUE(in.eof());
  expect_success(child);
}

TEST_P(ByteStream, LinesAndNumbersFromParentToChild) {
  auto [child, writer] = spawn_reader(channel(), [](Reader& reader) {
    std::istream in(&reader);
    std::string line;
    int number = 0;
    require(static_cast<bool>(std::getline(in, line)) && line == "first line", "the line");
    require(static_cast<bool>(in >> number) && number == 42, "the number");
    require(!(in >> number) && in.eof(), "the end");
    return 0;
  });
  std::ostream out(writer.get());
  out << "first line\n" << 42 << std::flush;
  EXPECT_TRUE(out.good());
  writer.reset();
  expect_success(child);
}

TEST_P(ByteStream, CarriesNothing) { expect_to_carry(channel(), 0); }
TEST_P(ByteStream, CarriesOneByte) { expect_to_carry(channel(), 1); }
TEST_P(ByteStream, CarriesOneByteLessThanAPage) { expect_to_carry(channel(), 4095); }
TEST_P(ByteStream, CarriesAPage) { expect_to_carry(channel(), 4096); }
TEST_P(ByteStream, CarriesOneByteMoreThanAPage) { expect_to_carry(channel(), 4097); }
TEST_P(ByteStream, CarriesOneMebibyte) { expect_to_carry(channel(), 1 << 20); }
TEST_P(ByteStream, CarriesOneMebibyteThroughASmallBuffer) {
  expect_to_carry(channel(4096), 1 << 20);
}
TEST_P(ByteStream, Carries64Mebibytes) {
  // Sanitizers make every step several times as long: 16 MiB there.
  expect_to_carry(channel(), std::size_t{kSanitized ? 16 : 64} << 20);
}

TEST_P(ByteStream, FromParentToChild) {
  constexpr std::size_t kSize = 1 << 20;
  auto [child, writer] = spawn_reader(channel(), [](Reader& in) {
    require(read_pattern(in) == kSize, "all bytes");
    return 0;
  });
  write_pattern(*writer, kSize);
  writer->finish();
  expect_success(child);
}

TEST_P(ByteStream, StreamAndSpanCallsCanBeMixed) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    std::ostream out(writer.get());
    out << "ab";
    writer->write(bytes_of("cd"));
    out << "ef" << std::flush;
  });
  std::istream in(reader.get());
  EXPECT_EQ(in.get(), 'a');
  std::vector<std::byte> rest(4);
  ASSERT_EQ(reader->read_fully(rest), rest.size());
  EXPECT_EQ(text_of(rest), "bcde");
  EXPECT_EQ(in.get(), 'f');
}

TEST_P(ByteStream, ReadFullyStopsAtTheEnd) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->write(bytes_of("abc"));
    writer->finish();
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read_fully(into), 3U);
  EXPECT_EQ(text_of({into.data(), 3}), "abc");
}

TEST_P(ByteStream, ThreadsShareAChannel) {
  constexpr std::size_t kSize = 1 << 20;
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    write_pattern(*writer, kSize);
    writer->finish();
  });
  EXPECT_EQ(read_pattern(*reader), kSize);
}

TEST_P(ByteStream, ASlowReaderGetsEverything) {
  constexpr std::size_t kSize = 2 << 20;
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    write_pattern(out, kSize);
    return 0;
  });
  Pattern pattern;
  std::vector<std::byte> buffer(std::size_t{64} * 1024);
  std::size_t total = 0;
  for (int reads = 0;; ++reads) {
    if (reads % 8 == 0) pause_ms(5);
    const std::size_t count = reader->read(buffer);
    if (count == 0) break;
    ASSERT_TRUE(pattern.check({buffer.data(), count})) << "after " << total;
    total += count;
  }
  EXPECT_EQ(total, kSize);
  expect_success(child);
}

TEST_P(ByteStream, ASlowWriterIsWaitedFor) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    for (const long pause : {0, 1, 30, 60}) {
      pause_ms(pause);
      out.write(bytes_of("x"));
    }
    return 0;
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read_fully(into), 4U);
  expect_success(child);
}

TEST_P(ByteStream, EightPairsAtOnce) {
  constexpr std::size_t kSize = std::size_t{512} * 1024;
  std::vector<ReadFromChild> pairs;
  pairs.reserve(8);
  for (int i = 0; i < 8; ++i)
    pairs.push_back(spawn_writer(channel(), [](Writer& out) {
      write_pattern(out, kSize);
      return 0;
    }));
  // The one that started last is read first: the others wait, each in its own channel.
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) {
    EXPECT_EQ(read_pattern(*pair->reader), kSize);
    expect_success(pair->child);
  }
}

TEST_P(ByteStream, SignalsDoNotDisturb) {
  struct sigaction old {};
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &old), 0);
  constexpr std::size_t kSize = 1 << 20;
  const pid_t parent = ::getpid();
  auto [child, end] = spawn(AnyDuplex(mechanism(), {}), [parent](DuplexEnd pair) {
    const auto disturb = [parent] {
      for (int i = 0; i < 20; ++i) {
        ::kill(parent, SIGUSR1);
        pause_ms(2);
      }
    };
    disturb();  // the parent waits for something to read
    pair.writer->write(bytes_of("x"));
    disturb();  // the parent waits for room to write
    require(read_pattern(*pair.reader) == kSize, "all bytes");
    return 0;
  });
  std::vector<std::byte> into(1);
  EXPECT_EQ(end.reader->read(into), 1U);
  write_pattern(*end.writer, kSize);
  end.writer->finish();
  expect_success(child);
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST_P(ByteStream, PingPongInBothDirections) {
  constexpr int kRounds = 500;
  auto [child, end] = spawn(AnyDuplex(mechanism(), {}), [](DuplexEnd pair) {
    std::vector<std::byte> ball(48);
    while (pair.reader->read_fully(ball) == ball.size()) pair.writer->write(ball);
    return 0;
  });
  std::vector<std::byte> ball(48);
  std::vector<std::byte> back(48);
  Pattern pattern;
  for (int i = 0; i < kRounds; ++i) {
    pattern.fill(ball);
    end.writer->write(ball);
    ASSERT_EQ(end.reader->read_fully(back), back.size());
    ASSERT_EQ(back, ball) << "round " << i;
  }
  end.writer->finish();
  EXPECT_EQ(end.reader->read(back), 0U);
  expect_success(child);
}

TEST_P(ByteStream, BulkInBothDirectionsAtOnce) {
  constexpr std::size_t kSize = 4 << 20;
  const auto talk = [](DuplexEnd& pair, unsigned seed) {
    const Meanwhile writing([&] {
      write_pattern(*pair.writer, kSize, seed);
      pair.writer->finish();
    });
    return read_pattern(*pair.reader, SIZE_MAX, seed + 1);
  };
  auto [child, end] = spawn(AnyDuplex(mechanism(), {}), [&talk](DuplexEnd pair) {
    require(talk(pair, 10) == kSize, "all bytes");
    return 0;
  });
  EXPECT_EQ(talk(end, 20), kSize);
  expect_success(child);
}

}  // namespace
}  // namespace farcall::channel::test
