// SPDX-License-Identifier: Apache-2.0
#include "farcall/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace farcall {
namespace {

TEST(ErrnoName, IsTheSymbolicName) {
  EXPECT_STREQ(errno_name(ENOENT), "ENOENT");
  EXPECT_STREQ(errno_name(EPIPE), "EPIPE");
}

TEST(ErrnoName, IsNeverNull) {
  EXPECT_STREQ(errno_name(-1), "unknown errno");
  EXPECT_STREQ(errno_name(1 << 20), "unknown errno");
}

TEST(SystemError, TellsWhatFailedAndWhyInBothForms) {
  const SystemError error(ENOENT, "open /x");
  EXPECT_STREQ(error.what(), "open /x: ENOENT: No such file or directory");
}

TEST(SystemError, ComparesWithPortableConditions) {
  const SystemError error(EAGAIN, "recv");
  EXPECT_EQ(error.code().value(), EAGAIN);
  EXPECT_EQ(error.code(), std::errc::resource_unavailable_try_again);
}

TEST(SystemError, IsCaughtAsStdSystemError) {
  EXPECT_THROW(throw SystemError(EINVAL, "call"), std::system_error);
}

TEST(ThrowErrno, CarriesTheErrnoOfTheMoment) {
  errno = EMFILE;
  try {
    throw_errno("socket");
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), EMFILE);
    EXPECT_EQ(std::string_view(error.what()).substr(0, 15), "socket: EMFILE:");
  }
}

TEST(MisuseError, IsALogicErrorWithItsMessage) {
  try {
    throw MisuseError("read from the writing end");
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "read from the writing end");
  }
}

}  // namespace
}  // namespace farcall
