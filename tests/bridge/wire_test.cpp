// SPDX-License-Identifier: Apache-2.0
//
// What is believed of what other bridges say.
#include "bridge/wire.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "bridge/window.hpp"

namespace farcall::bridge {
namespace {

int error_in(const std::string& number) {
  const auto header = parse("1;k=r;e=" + number);
  return header ? header->error : -1;
}

TEST(BridgeWire, AnErrnoIsOneThatThereIsHere) {
  EXPECT_EQ(error_in("0"), 0);
  for (int error = 1; error <= EHWPOISON; ++error)
    EXPECT_EQ(error_in(std::to_string(error)),
              ::strerrorname_np(error) != nullptr ? error : EPROTO);
  for (const char* number : {"134", "512", "4000", "4095"})
    EXPECT_EQ(error_in(number), EPROTO) << number;
  for (const char* number : {"-1", "4096", "4294967297", "9223372036854775808"})
    EXPECT_EQ(error_in(number), -1) << number;
}

TEST(BridgeWire, TheBoundForSignsOfLifeIsSaidWhereItIsNotTheUsual) {
  EXPECT_EQ(encode({.kind = Kind::call, .bound_ms = 500}), "1;k=c;b=500");
  EXPECT_EQ(encode({.kind = Kind::call, .bound_ms = 2000}), "1;k=c");
  EXPECT_EQ(parse("1;k=c;b=500")->bound_ms, 500U);
  EXPECT_EQ(parse("1;k=c")->bound_ms, 2000U) << "of one that does not say it";
}

TEST(BridgeWire, WhatComesInCrumbsDoesNotComeOn) {
  using std::chrono::seconds;
  constexpr seconds kBound{2};
  EXPECT_FALSE(is_too_slow(seconds(3), 1, kBound));
  EXPECT_TRUE(is_too_slow(seconds(5), 1, kBound));
  EXPECT_TRUE(is_too_slow(seconds(3600), kLongest, kBound)) << "nor is all of it long in coming";
  for (unsigned pieces = 1; pieces < 1000; ++pieces)
    EXPECT_FALSE(is_too_slow(kBound * pieces, kPieceBytes * (pieces - 1), kBound)) << pieces;
}

}  // namespace
}  // namespace farcall::bridge
