// SPDX-License-Identifier: Apache-2.0
//
// What the ends themselves do between a stream and a mechanism.
#include "farcall/channel/end.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "channel/conformance.hpp"
#include "farcall/channel/pipe.hpp"
#include "farcall/channel/unix_dgram.hpp"
#include "farcall/error.hpp"

namespace farcall::channel::test {
namespace {

TEST(End, ReadsAMessageThatIsLongerThanAStreamGathersAtOnce) {
  auto [reader, writer] = Channel<UnixDgram>().take_both();
  std::vector<std::byte> message(100'000);
  Pattern().fill(message);
  writer->send(message);
  writer->send(bytes_of("next"));
  std::istream in(reader.get());
  std::vector<std::byte> into(message.size());
  const int first = in.peek();
  EXPECT_EQ(first, std::to_integer<int>(message[0]));
  in.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size()));
  EXPECT_TRUE(std::ranges::equal(into, message));
  // The stream took no more than it needed, so the next message is whole.
  const auto size = reader->receive(into);
  ASSERT_EQ(size, 4U);
  EXPECT_EQ(text_of({into.data(), *size}), "next");
}

TEST(End, RefusesToReceiveWhatAStreamHasBegunToRead) {
  auto [reader, writer] = Channel<UnixDgram>().take_both();
  writer->send(bytes_of("abc"));
  EXPECT_EQ(std::istream(reader.get()).get(), 'a');
  std::vector<std::byte> into(8);
  EXPECT_THROW(reader->receive(into), MisuseError);
  EXPECT_EQ(reader->read(into), 2U);
}

TEST(End, SendsWhatAStreamHasBufferedBeforeAMessage) {
  auto [reader, writer] = Channel<UnixDgram>().take_both();
  std::ostream(writer.get()) << "buffered";
  writer->send(bytes_of("sent"));
  std::vector<std::byte> into(64);
  EXPECT_EQ(reader->receive(into), 8U);
  EXPECT_EQ(reader->receive(into), 4U);
}

TEST(End, ReadsNothingIntoNothingWithoutWaiting) {
  auto [reader, writer] = Channel<Pipe>().take_both();
  EXPECT_EQ(reader->read({}), 0U);
}

TEST(End, RefusesToWriteAfterFinish) {
  auto [reader, writer] = Channel<Pipe>().take_both();
  std::ostream out(writer.get());
  out << "buffered";
  writer->finish();
  EXPECT_THROW(writer->write(bytes_of("a")), MisuseError);
  EXPECT_THROW(writer->send(bytes_of("a")), MisuseError);
  out << "more";
  EXPECT_TRUE(out.bad());
  std::vector<std::byte> into(64);
  EXPECT_EQ(reader->read_fully(into), 8U);
}

TEST(End, ReportsByFinishThatBufferedBytesCouldNotBeWritten) {
  auto [reader, writer] = Channel<Pipe>().take_both();
  std::ostream(writer.get()) << "buffered";
  reader.reset();
  EXPECT_EQ(error_of([&writer = writer] { writer->finish(); }), EPIPE);
}

}  // namespace
}  // namespace farcall::channel::test
