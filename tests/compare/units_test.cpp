// SPDX-License-Identifier: Apache-2.0
#include "compare/units.hpp"

#include <gtest/gtest.h>

namespace farcall::compare {
namespace {

TEST(Units, OfTimeFitTheFigure) {
  EXPECT_EQ(format_ns(1.94), "1.94 ns");
  EXPECT_EQ(format_ns(293.4), "293 ns");
  EXPECT_EQ(format_ns(999.7), "1.00 us");
  EXPECT_EQ(format_ns(55'120), "55.1 us");
  EXPECT_EQ(format_ns(3.2e6), "3.20 ms");
  EXPECT_EQ(format_ns(7.5e10), "75.0 s");
}

TEST(Units, OfRatesArePowersOfTen) {
  EXPECT_EQ(format_rate(7.1e9), "7.10 GB/s");
  EXPECT_EQ(format_rate(640), "640 B/s");
  EXPECT_EQ(format_count(1.73e6), "1.73 M");
  EXPECT_EQ(format_count(812), "812");
}

TEST(Units, OfSizesArePowersOfTwo) {
  EXPECT_EQ(format_size(64), "64 B");
  EXPECT_EQ(format_size(1024), "1 KiB");
  EXPECT_EQ(format_size(1500), "1500 B");
  EXPECT_EQ(format_size(16 << 20), "16 MiB");
}

TEST(Sizes, AreReadWithAndWithoutUnits) {
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("48"), 48U);
  EXPECT_EQ(parse_size("1K"), 1024U);
  EXPECT_EQ(parse_size("64KiB"), 65536U);
  EXPECT_EQ(parse_size("16M"), 16U << 20);
}

TEST(Sizes, ThatAreNoneAreRefused) {
  for (const char* text :
       {"", "K", "x", "-1", "1.5K", "64Q", "8 8", "99999999999999999999", "9999999999G"})
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
}

TEST(ShellLine, IsWhatAShellMakesTheSameWordsOf) {
  const auto line = [](std::initializer_list<std::string_view> words) {
    std::string all;
    for (const std::string_view word : words) all.append(word) += '\0';
    return shell_line(all);
  };
  EXPECT_EQ(line({}), "");
  EXPECT_EQ(line({"farcall", "compare", "--sizes", "48,64K"}), "farcall compare --sizes 48,64K");
  EXPECT_EQ(line({"a", "", "b c"}), "a '' 'b c'");
  EXPECT_EQ(line({"it's", "$HOME", "*"}), "'it'\\''s' '$HOME' '*'");
  EXPECT_EQ(shell_line("unended"), "unended");
}

}  // namespace
}  // namespace farcall::compare
