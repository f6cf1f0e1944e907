// SPDX-License-Identifier: Apache-2.0
//
// What the receiver of a measured message must notice.
#include "compare/payload.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace farcall::compare {
namespace {

class PayloadOfSize : public testing::TestWithParam<std::size_t> {
 protected:
  void stamp(std::uint64_t sequence, bool last = false) {
    payload_.stamp(message_, sequence, Payload::kRequest, last);
  }
  bool check(std::uint64_t sequence) const {
    return payload_.check(message_, sequence, Payload::kRequest);
  }

  std::atomic<std::uint64_t> last_short_{0};
  Payload payload_{12345, last_short_};
  std::vector<std::byte> message_ = std::vector<std::byte>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Sizes, PayloadOfSize,
                         testing::Values(1, 2, 7, 8, 9, 64, 65, 72, 1000, 1 << 20),
                         testing::PrintToStringParamName());

TEST_P(PayloadOfSize, IsAcceptedAsItWasSent) {
  stamp(7);
  EXPECT_FALSE(check(7));
}

TEST_P(PayloadOfSize, TellsTheLastMessageOfAPhase) {
  stamp(7, true);
  EXPECT_TRUE(check(7));
  stamp(8);
  EXPECT_FALSE(check(8));
}

TEST_P(PayloadOfSize, IsAnsweredAsTheLastOne) {
  stamp(7, true);
  EXPECT_TRUE(payload_.answer(message_, 7));
  EXPECT_TRUE(payload_.check(message_, 7, Payload::kReply));
}

TEST_P(PayloadOfSize, OfTheMessageBeforeIsRefused) {
  stamp(6);
  EXPECT_THROW(check(7), PayloadError);
}

TEST_P(PayloadOfSize, OfARequestIsNoReply) {
  stamp(7);
  EXPECT_THROW(payload_.check(message_, 7, Payload::kReply), PayloadError);
}

TEST_P(PayloadOfSize, WithOtherKeyIsRefused) {
  stamp(7);
  EXPECT_THROW(Payload(54321, last_short_).check(message_, 7, Payload::kRequest), PayloadError);
}

TEST_P(PayloadOfSize, WithOneLineLostIsRefused) {
  for (std::size_t line = 0; line < message_.size(); line += Payload::kLineBytes) {
    stamp(7);
    const std::size_t end = std::min(line + Payload::kLineBytes, message_.size());
    // What a lost line leaves in the buffer is the message before.
    std::vector<std::byte> before(message_.size());
    payload_.stamp(before, 6, Payload::kRequest);
    std::copy(before.begin() + static_cast<std::ptrdiff_t>(line),
              before.begin() + static_cast<std::ptrdiff_t>(end),
              message_.begin() + static_cast<std::ptrdiff_t>(line));
    ASSERT_THROW(check(7), PayloadError) << "line at " << line;
    if (line > 64 * Payload::kLineBytes) break;
  }
}

TEST_P(PayloadOfSize, WithABitFlippedInTheLastLineIsRefused) {
  stamp(7);
  const std::size_t last = (message_.size() - 1) / Payload::kLineBytes * Payload::kLineBytes;
  message_[last] ^= std::byte{1};
  EXPECT_THROW(check(7), PayloadError);
}

TEST_P(PayloadOfSize, IsAnsweredByItsReply) {
  stamp(7);
  EXPECT_FALSE(payload_.answer(message_, 7));
  EXPECT_FALSE(payload_.check(message_, 7, Payload::kReply));
}

TEST_P(PayloadOfSize, IsNotAnsweredWhereItIsWrong) {
  stamp(7);
  message_[0] ^= std::byte{1};
  EXPECT_THROW(payload_.answer(message_, 7), PayloadError);
}

TEST(Payload, OfNoBytesTellsOnlyWhetherItIsTheLast) {
  std::atomic<std::uint64_t> last_short{0};
  const Payload payload(1, last_short);
  payload.stamp({}, 7, Payload::kRequest);
  EXPECT_FALSE(payload.answer({}, 7));
  payload.stamp({}, 8, Payload::kRequest, true);
  EXPECT_TRUE(payload.answer({}, 8));
}

TEST(Payload, WithTwoLinesExchangedIsRefused) {
  std::atomic<std::uint64_t> last_short{0};
  const Payload payload(1, last_short);
  std::vector<std::byte> message(4096);
  payload.stamp(message, 7, Payload::kRequest);
  std::swap_ranges(message.begin(), message.begin() + Payload::kLineBytes,
                   message.begin() + Payload::kLineBytes);
  EXPECT_THROW(payload.check(message, 7, Payload::kRequest), PayloadError);
}

TEST(Payload, NamesTheByteThatIsWrong) {
  std::atomic<std::uint64_t> last_short{0};
  const Payload payload(1, last_short);
  std::vector<std::byte> message(4096);
  payload.stamp(message, 7, Payload::kRequest);
  message[640] ^= std::byte{1};
  try {
    payload.check(message, 7, Payload::kRequest);
    FAIL() << "accepted";
  } catch (const PayloadError& error) {
    EXPECT_NE(std::string(error.what()).find("byte 640 of 4096"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace farcall::compare
