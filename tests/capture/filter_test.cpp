// SPDX-License-Identifier: Apache-2.0
#include "capture/filter.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace farcall::capture {
namespace {

using observe::Kind;

observe::Address address(const char* text, std::uint16_t port) {
  observe::Address made{};
  made.known = 1;
  made.port = port;
  made.bytes[10] = made.bytes[11] = 0xff;
  if (::inet_pton(AF_INET, text, made.bytes.data() + 12) != 1 &&
      ::inet_pton(AF_INET6, text, made.bytes.data()) != 1)
    throw std::logic_error(text);
  return made;
}

const Subject kTcp{.kind = Kind::tcp,
                   .local = address("127.0.0.1", 6379),
                   .remote = address("127.0.0.2", 40'000),
                   .pid = 10,
                   .peer = 20};
const Subject kDoor{.kind = Kind::door, .local = {}, .remote = {}, .pid = 30, .peer = 0};

bool matches(const char* filter, const Subject& subject) { return Filter(filter).matches(subject); }

std::string complaint(const char* filter) {
  try {
    Filter made(filter);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Filter, WithoutAnyConditionTakesEverything) {
  EXPECT_TRUE(matches("", kTcp));
  EXPECT_TRUE(matches(" \t", kDoor));
}

TEST(Filter, KnowsTheKindsOfEnds) {
  EXPECT_TRUE(matches("tcp", kTcp));
  EXPECT_FALSE(matches("udp", kTcp));
  EXPECT_TRUE(matches("door", kDoor));
  Subject seqpacket = kDoor;
  seqpacket.kind = Kind::unix_packets;
  EXPECT_TRUE(matches("unix", seqpacket));
}

TEST(Filter, LooksAtBothEnds) {
  EXPECT_TRUE(matches("host 127.0.0.1", kTcp));
  EXPECT_TRUE(matches("host 127.0.0.2", kTcp));
  EXPECT_FALSE(matches("host ::1", kTcp));
  EXPECT_TRUE(matches("port 6379", kTcp));
  EXPECT_TRUE(matches("port 40000", kTcp));
  EXPECT_TRUE(matches("pid 10", kTcp));
  EXPECT_TRUE(matches("pid 20", kTcp));
  EXPECT_FALSE(matches("pid 30", kTcp));
}

TEST(Filter, FindsNoAddressWhereThereIsNone) {
  EXPECT_FALSE(matches("host ::", kDoor));
  EXPECT_FALSE(matches("host 0.0.0.0", kDoor));
}

TEST(Filter, AndBindsStrongerThanOr) {
  EXPECT_TRUE(matches("tcp or udp and port 1", kTcp));
  EXPECT_FALSE(matches("(tcp or udp) and port 1", kTcp));
  EXPECT_TRUE(matches("udp && port 1 || tcp", kTcp));
}

TEST(Filter, NotIsOfTheNextConditionAlone) {
  EXPECT_FALSE(matches("not tcp and port 6379", kTcp));
  EXPECT_TRUE(matches("not udp and port 6379", kTcp));
  EXPECT_TRUE(matches("! ! tcp", kTcp));
  EXPECT_TRUE(matches("!(udp or door)", kTcp));
  EXPECT_FALSE(matches("not(udp||tcp)", kTcp));
}

TEST(Filter, SaysWhatCannotBeRead) {
  EXPECT_NE(complaint("prot 1").find("\"prot\" is none of host, port"), std::string::npos);
  EXPECT_NE(complaint("port 0").find("from 1 to 65535"), std::string::npos);
  EXPECT_NE(complaint("port 65536").find("from 1 to 65535"), std::string::npos);
  EXPECT_NE(complaint("port 80x").find("\"80x\" is not a number"), std::string::npos);
  EXPECT_NE(complaint("port").find("\"\" is not a number"), std::string::npos);
  EXPECT_NE(complaint("host localhost").find("is not an address"), std::string::npos);
  EXPECT_NE(complaint("(tcp").find("\")\" is missing"), std::string::npos);
  EXPECT_NE(complaint("tcp)").find("comes \")\""), std::string::npos);
  EXPECT_NE(complaint("tcp udp").find("comes \"udp\""), std::string::npos);
  EXPECT_NE(complaint("tcp and").find("it ends where"), std::string::npos);
  EXPECT_NE(complaint("&").find("is none of"), std::string::npos);
}

TEST(Filter, IsNotNestedWithoutEnd) {
  EXPECT_NE(complaint(std::string(100'000, '(').c_str()).find("too deeply"), std::string::npos);
}

}  // namespace
}  // namespace farcall::capture
