// SPDX-License-Identifier: Apache-2.0
//
// How a channel ends: by a writer that finishes, and by either side that goes or dies.
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

using Ending = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Ending, testing::ValuesIn(all_mechanisms()), test_name);

constexpr std::size_t kMoreThanAnyBuffer = std::size_t{64} << 20;

// Reads all that is left. At the death of the writer: ECONNRESET where the mechanism notices,
// else the end.
void expect_death(Reader& reader, const Properties& properties) {
  const int error = error_of([&] { read_pattern(reader); });
  EXPECT_EQ(error, properties.notices_death ? ECONNRESET : 0);
}

// Writes until the reader's absence is noticed.
int error_of_writing(Writer& writer) {
  const std::vector<std::byte> bytes(4096);
  return error_of([&] {
    for (std::size_t done = 0; done < kMoreThanAnyBuffer; done += bytes.size()) writer.write(bytes);
  });
}

// How long a call still took after another process died by a signal that it sent itself. That it
// is soon, tests/channel/kill_test.cpp measures beside somebody else who waits for the death; here
// a machine that stops for a second or two is not to be taken for one that does not notice.
constexpr auto kSoon = 10s;
class TimeToNotice {
 public:
  TimeToNotice() : died_at_(Mapping::anonymous_shared(page_size())) {}

  // In the process that dies.
  [[noreturn]] void die() const {
    *reinterpret_cast<std::int64_t*>(died_at_.data()) = monotonic_ns();
    ::kill(::getpid(), SIGKILL);
    std::abort();
  }
  [[nodiscard]] std::chrono::nanoseconds since_death() const {
    return std::chrono::nanoseconds(monotonic_ns() -
                                    *reinterpret_cast<const std::int64_t*>(died_at_.data()));
  }

 private:
  Mapping died_at_;
};

TEST_P(Ending, OfAWriterThatFinishesIsSeenAgainAndAgain) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->write(bytes_of("ab"));
    writer->finish();
    writer->finish();
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read_fully(into), 2U);
  EXPECT_EQ(reader->read(into), 0U);
  EXPECT_EQ(reader->read(into), 0U);
}

TEST_P(Ending, OfAWriterThatIsDestroyedIsSeen) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->write(bytes_of("ab"));
    writer.reset();
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read_fully(into), 2U);
  EXPECT_EQ(reader->read(into), 0U);
}

TEST_P(Ending, IsSeenByAReaderThatWaits) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    std::this_thread::sleep_for(60ms);
    out.finish();
    std::this_thread::sleep_for(60ms);
    return 0;
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read(into), 0U);
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Ending, ByAnExceptionInTheWriterIsADeath) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) -> int {
    write_pattern(out, 1000);
    throw std::runtime_error("thrown on purpose");
  });
  expect_death(*reader, properties());
  EXPECT_EQ(child.wait().code, 125);
}

TEST_P(Ending, ByExitWithoutFinishingIsADeath) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) -> int {
    write_pattern(out, 1000);
    ::_exit(7);
  });
  expect_death(*reader, properties());
  EXPECT_EQ(child.wait().code, 7);
}

TEST_P(Ending, OfAWriterThatIsKilledIsNoticedByAReaderThatWaits) {
  const TimeToNotice time;
  auto [child, reader] = spawn_writer(channel(), [&time](Writer& out) -> int {
    write_pattern(out, 1000);
    std::this_thread::sleep_for(50ms);
    time.die();
  });
  expect_death(*reader, properties());
  EXPECT_LT(time.since_death(), kSoon);
  EXPECT_EQ(child.wait().signal, SIGKILL);
}

TEST_P(Ending, OfAWriterThatIsKilledInTheMiddleOfWritingIsNoticed) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    std::vector<std::byte> bytes(kMoreThanAnyBuffer);
    Pattern().fill(bytes);
    out.write(bytes);
    return 0;
  });
  std::vector<std::byte> start(1000);
  ASSERT_EQ(reader->read_fully(start), start.size());
  std::this_thread::sleep_for(50ms);  // it has filled the channel and waits
  child.kill(SIGKILL);
  EXPECT_EQ(child.wait().signal, SIGKILL);
  const int error = error_of([&, &reader = reader] {
    std::vector<std::byte> rest(1 << 16);
    while (reader->read(rest) != 0) {
    }
  });
  EXPECT_EQ(error, properties().notices_death ? ECONNRESET : 0);
}

TEST_P(Ending, OfAReaderThatIsDestroyedIsEpipe) {
  auto [reader, writer] = channel().take_both();
  {
    // Goes with something unread.
    const Meanwhile writing(
        [&writer = writer] { error_of([&] { writer->write(bytes_of("ab")); }); });
    std::vector<std::byte> into(1);
    EXPECT_EQ(reader->read(into), 1U);
    reader.reset();
  }
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
}

TEST_P(Ending, OfAReaderThatExitsIsEpipe) {
  auto [child, writer] = spawn_reader(channel(), [](Reader& in) {
    std::vector<std::byte> into(1);
    return in.read(into) == 1 ? 0 : 1;
  });
  writer->write(bytes_of("a"));
  EXPECT_TRUE(child.wait().success());
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
}

TEST_P(Ending, OfAReaderThatIsKilledIsEpipe) {
  auto [child, writer] = spawn_reader(channel(), [](Reader& in) {
    std::vector<std::byte> into(1);
    return in.read(into) == 1 ? ::pause() : 1;
  });
  writer->write(bytes_of("a"));
  child.kill(SIGKILL);
  EXPECT_EQ(child.wait().signal, SIGKILL);
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
}

TEST_P(Ending, OfAReaderThatIsDestroyedWakesAWriterThatWaits) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile closing([&reader = reader] {
    std::this_thread::sleep_for(60ms);
    reader.reset();
  });
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
}

TEST_P(Ending, OfAReaderThatIsKilledIsNoticedByAWriterThatWaits) {
  const TimeToNotice time;
  auto [child, writer] = spawn_reader(channel(), [&time](Reader&) -> int {
    std::this_thread::sleep_for(60ms);
    time.die();
  });
  EXPECT_EQ(error_of_writing(*writer), EPIPE);
  EXPECT_LT(time.since_death(), kSoon);
  EXPECT_EQ(child.wait().signal, SIGKILL);
}

TEST_P(Ending, OfTheReaderIsAnErrorOfTheStream) {
  auto [reader, writer] = channel().take_both();
  reader.reset();
  std::ostream out(writer.get());
  const std::string line(4000, 'x');
  for (std::size_t done = 0; out && done < kMoreThanAnyBuffer; done += line.size()) out << line;
  out.flush();
  EXPECT_FALSE(out.good());
}

TEST_P(Ending, OfAnInheritedEndInAChildIsNotTheEndOfTheChannel) {
  auto [reader, writer] = channel().take_both();
  Subprocess child([&reader = reader, &writer = writer] {
    reader.reset();
    writer.reset();
    return 0;
  });
  EXPECT_TRUE(child.wait().success());
  const Meanwhile writing([&writer = writer] { writer->write(bytes_of("ab")); });
  std::vector<std::byte> into(2);
  EXPECT_EQ(reader->read_fully(into), 2U);
}

}  // namespace
}  // namespace farcall::channel::test
