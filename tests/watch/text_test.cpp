// SPDX-License-Identifier: Apache-2.0
#include "watch/text.hpp"

#include <gtest/gtest.h>

#include "watch/maps.hpp"

namespace farcall::test {
namespace {

using namespace std::string_literals;
using watch::printable;

TEST(WatchText, NothingThatATerminalObeysIsPrinted) {
  EXPECT_EQ(printable("/run/a b.sock"), "/run/a b.sock");
  EXPECT_EQ(printable("\x1b[2J\r\n\t"), "\\x1b[2J\\x0d\\x0a\\x09");
  EXPECT_EQ(printable("\0abstract"s), "@abstract");
  EXPECT_EQ(printable("a\0b"s), "a\\x00b");
  EXPECT_EQ(printable("back\\slash"), "back\\x5cslash");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // a control of eight bits
  EXPECT_EQ(printable("\x9b"), "\\x9b");                    // the same, bare
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // from right to left
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // too long for what it says
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half a pair of UTF-16
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("end\xc3"), "end\\xc3");
}

TEST(WatchText, AddressesAreWrittenAsUsual) {
  observe::Address address{};
  EXPECT_EQ(watch::to_text(address), "");
  address.known = 1;
  address.port = 6379;
  EXPECT_EQ(watch::to_text(address), "[::]:6379");
  address.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_EQ(watch::to_text(address), "127.0.0.1:6379");
}

TEST(WatchMaps, TablesAreRecognisedByTheirShapeAlone) {
  const auto tables = [](std::initializer_list<const char*> lines) {
    watch::MapsReader reader;
    watch::Maps maps;
    for (const char* line : lines) reader.line(line, maps);
    return maps.tables;
  };
  const char* const guard = "7f0000000000-7f0000010000 ---p 00000000 00:00 0 \n";
  const char* const first = "7f0000010000-7f0000020000 rw-p 00000000 00:00 0 \n";
  const char* const rest = "7f0000020000-7f0000050000 rw-p 00000000 00:00 0 \n";
  EXPECT_EQ(tables({guard, first, rest}), std::vector<std::uint64_t>{0x7f0000010000});
  EXPECT_TRUE(tables({first, rest}).empty());
  EXPECT_TRUE(tables({guard, rest}).empty());
  EXPECT_TRUE(tables({guard, first}).empty());
  EXPECT_TRUE(tables({guard, first, "7f0000020000-7f0000051000 rw-p 00000000 00:00 0 \n"}).empty());
  EXPECT_TRUE(
      tables({guard, first, "7f0000020000-7f0000050000 rw-p 00000000 08:01 7 /a\n"}).empty());
  EXPECT_TRUE(tables({guard, "nonsense\n", "", "7f00-\n"}).empty());
}

}  // namespace
}  // namespace farcall::test
