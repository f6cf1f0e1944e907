// SPDX-License-Identifier: Apache-2.0
//
// What mechanisms that keep message boundaries do with them, and the others without.
#include <cerrno>
#include <string>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using Messages = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Messages,
                         testing::ValuesIn(mechanisms_where(&Properties::boundaries)), test_name);
using NoMessages = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, NoMessages,
                         testing::ValuesIn(mechanisms_where(&Properties::boundaries, false)),
                         test_name);

// Around the sizes at which a ring's message takes one line more, and some others.
constexpr std::size_t kSizes[] = {1, 2, 8, 55, 56, 57, 63, 64, 65, 120, 1000, 3000, 1};

// The longest message, or where there is no limit, one that no buffer holds.
std::size_t long_message(const Writer& writer) {
  return std::min(writer.max_message(), std::size_t{3} << 20);
}

std::string received(Reader& reader) {
  std::vector<std::byte> into(100);
  const auto size = reader.receive(into);
  return size ? text_of({into.data(), *size}) : "end";
}

TEST_P(Messages, KeepTheirBoundaries) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    Pattern pattern;
    std::vector<std::byte> message(3000);
    for (const std::size_t size : kSizes) {
      pattern.fill({message.data(), size});
      out.send({message.data(), size});
    }
    return 0;
  });
  Pattern pattern;
  std::vector<std::byte> message(3000);
  for (const std::size_t size : kSizes) {
    ASSERT_EQ(reader->receive(message), size);
    EXPECT_TRUE(pattern.check({message.data(), size})) << size;
  }
  EXPECT_EQ(reader->receive(message), std::nullopt);
  EXPECT_EQ(reader->receive(message), std::nullopt);
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Messages, OfZeroBytesArrive) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->send({});
    writer->send(bytes_of("a"));
    writer->send({});
    writer->finish();
  });
  EXPECT_EQ(received(*reader), "");
  EXPECT_EQ(received(*reader), "a");
  EXPECT_EQ(received(*reader), "");
  EXPECT_EQ(received(*reader), "end");
}

TEST_P(Messages, OfZeroBytesAreNothingToAReaderOfBytes) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->send({});
    writer->send(bytes_of("a"));
    writer->send({});
    writer->finish();
  });
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read(into), 1U);
  EXPECT_EQ(reader->read(into), 0U);
}

TEST_P(Messages, ThousandsArriveInOrder) {
  constexpr int kCount = 5000;
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    for (int i = 0; i < kCount; ++i) out.send(bytes_of(std::to_string(i)));
    return 0;
  });
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(received(*reader), std::to_string(i));
  EXPECT_EQ(received(*reader), "end");
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Messages, OfTheGreatestLengthArrive) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    std::vector<std::byte> message(long_message(out));
    for (int i = 0; i < 3; ++i) {
      Pattern(static_cast<std::size_t>(i)).fill(message);
      out.send(message);
      out.send(bytes_of("between"));
    }
    return 0;
  });
  std::vector<std::byte> message(4 << 20);
  for (int i = 0; i < 3; ++i) {
    const auto size = reader->receive(message);
    ASSERT_TRUE(size);
    EXPECT_GE(*size, 1000U);
    EXPECT_TRUE(Pattern(static_cast<std::size_t>(i)).check({message.data(), *size}));
    EXPECT_EQ(received(*reader), "between");
  }
  EXPECT_EQ(received(*reader), "end");
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Messages, LongerThanTheLimitAreRefused) {
  auto [child, writer] = spawn_reader(channel(), [](Reader& in) {
    std::vector<std::byte> message(8 << 20);
    const auto size = in.receive(message);
    require(size.has_value(), "a message");
    return *size == 3 ? 1 : 2;  // what was sent before: the short one or the long one
  });
  const std::size_t limit = writer->max_message();
  if (limit == SIZE_MAX) {
    writer->send(std::vector<std::byte>(5 << 20));
    EXPECT_EQ(child.wait().code, 2);
  } else {
    EXPECT_EQ(error_of([&, &writer = writer] { writer->send(std::vector<std::byte>(limit + 1)); }),
              EMSGSIZE);
    writer->send(bytes_of("abc"));
    EXPECT_EQ(child.wait().code, 1);
  }
}

TEST_P(Messages, LongerThanTheBufferAreLostWithAnError) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    out.send(std::vector<std::byte>(100));
    out.send(bytes_of("next"));
    out.send(std::vector<std::byte>(long_message(out)));
    out.send(bytes_of("last"));
    return 0;
  });
  std::vector<std::byte> small(99);
  EXPECT_EQ(error_of([&, &reader = reader] { reader->receive(small); }), EMSGSIZE);
  EXPECT_EQ(received(*reader), "next");
  EXPECT_EQ(error_of([&, &reader = reader] { reader->receive(small); }), EMSGSIZE);
  EXPECT_EQ(received(*reader), "last");
  EXPECT_EQ(received(*reader), "end");
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Messages, CanBeReadInParts) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    out.send(bytes_of("abcdef"));
    std::vector<std::byte> message(long_message(out));
    Pattern().fill(message);
    out.send(message);
    out.send(bytes_of("last"));
    return 0;
  });
  std::vector<std::byte> part(4);
  ASSERT_EQ(reader->read(part), 4U);
  EXPECT_EQ(text_of(part), "abcd");
  EXPECT_THROW(reader->receive(part), MisuseError);
  ASSERT_EQ(reader->read(part), 2U);
  EXPECT_EQ(text_of({part.data(), 2}), "ef");
  // The rest is read as bytes: the long message and the four that follow it.
  std::vector<std::byte> rest(4 << 20);
  const std::size_t count = reader->read_fully(rest);
  ASSERT_GT(count, 1000U);
  EXPECT_TRUE(Pattern().check({rest.data(), count - 4}));
  EXPECT_EQ(text_of({rest.data() + count - 4, 4}), "last");
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Messages, CanFollowBytesOnceAllOfThoseAreRead) {
  auto [reader, writer] = channel().take_both();
  const Meanwhile writing([&writer = writer] {
    writer->write(bytes_of("ab"));
    writer->send(bytes_of("cd"));
  });
  std::vector<std::byte> into(2);
  ASSERT_EQ(reader->read_fully(into), 2U);
  EXPECT_EQ(received(*reader), "cd");
}

TEST_P(NoMessages, CannotSendOrReceive) {
  auto [reader, writer] = channel().take_both();
  std::vector<std::byte> into(8);
  EXPECT_THROW(writer->send(bytes_of("a")), MisuseError);
  EXPECT_THROW(reader->receive(into), MisuseError);
}

}  // namespace
}  // namespace farcall::channel::test
