// SPDX-License-Identifier: Apache-2.0
//
// What callers may not do, and what they ask for that cannot be.
#include <cerrno>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using Misuse = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Misuse, testing::ValuesIn(all_mechanisms()), test_name);

TEST_P(Misuse, EachProcessTakesOneEndOnce) {
  AnyChannel reading = channel();
  const auto reader = reading.take_reader();
  EXPECT_THROW(reading.take_reader(), MisuseError);
  EXPECT_THROW(reading.take_writer(), MisuseError);
  EXPECT_THROW(reading.take_both(), MisuseError);
  AnyChannel writing = channel();
  const auto writer = writing.take_writer();
  EXPECT_THROW(writing.take_writer(), MisuseError);
  EXPECT_THROW(writing.take_reader(), MisuseError);
}

TEST_P(Misuse, NothingIsWrittenAfterTheEnd) {
  const auto [reader, writer] = channel().take_both();
  writer->finish();
  EXPECT_THROW(writer->write(bytes_of("a")), MisuseError);
}

TEST_P(Misuse, ReadingIntoNothingReadsNothing) {
  const auto [reader, writer] = channel().take_both();
  EXPECT_EQ(reader->read({}), 0U);
  writer->write({});
  writer->finish();
  std::vector<std::byte> into(1);
  EXPECT_EQ(reader->read(into), 0U);
}

TEST_P(Misuse, ABufferOfAbsurdSizeIsAnErrorOrCutDown) {
  const int error = error_of([] { channel(SIZE_MAX / 2 + 3); });
  EXPECT_TRUE(error == 0 || error == ENOMEM || error == EINVAL || error == EPERM ||
              error == EFBIG || error == ENOSPC)
      << errno_name(error);
}

}  // namespace
}  // namespace farcall::channel::test
