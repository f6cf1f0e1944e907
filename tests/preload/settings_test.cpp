// SPDX-License-Identifier: Apache-2.0
#include "preload/settings.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <vector>

namespace farcall::preload {
namespace {

Endpoint endpoint(const char* address, std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET, address, &in.sin_addr), 1);
  Endpoint made{};
  EXPECT_TRUE(Endpoint::from(reinterpret_cast<const sockaddr*>(&in), made));
  return made;
}

TEST(Settings, WantsEveryEndpointUnlessToldOtherwise) {
  EXPECT_TRUE(Settings{}.wants(endpoint("127.0.0.1", 80), endpoint("127.0.0.1", 4000)));
}

TEST(Settings, WantsOnlyWhatIsListedAndNeverWhatIsExcluded) {
  Settings some;
  some.accelerate.patterns[some.accelerate.count++] = {
      .address = {}, .any_address = true, .first_port = 8000, .last_port = 8999};
  EXPECT_TRUE(some.wants(endpoint("127.0.0.1", 4000), endpoint("127.0.0.1", 8500)));
  EXPECT_FALSE(some.wants(endpoint("127.0.0.1", 4000), endpoint("127.0.0.1", 80)));
  some.exclude.patterns[some.exclude.count++] = {.address = endpoint("127.0.0.2", 0).address,
                                                 .any_address = false,
                                                 .first_port = 0,
                                                 .last_port = 65535};
  EXPECT_FALSE(some.wants(endpoint("127.0.0.2", 4000), endpoint("127.0.0.1", 8500)));
}

UnixName unix_name(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return UnixName::from(reinterpret_cast<const sockaddr*>(&address),
                        static_cast<socklen_t>(sizeof(sa_family_t) + path.size()));
}

std::vector<std::string> complaints;

Settings read(const std::vector<const char*>& variables) {
  std::vector<const char*> environment = variables;
  environment.push_back(nullptr);
  complaints.clear();
  return read_settings(environment.data(),
                       [](const char* sentence) noexcept { complaints.emplace_back(sentence); });
}

TEST(Settings, HaveDefaults) {
  const Settings all = read({"PATH=/bin"});
  EXPECT_TRUE(all.enabled && all.tcp && all.udp);
  EXPECT_EQ(all.ring_bytes, 256U << 10);
  EXPECT_EQ(all.log_level, LogLevel::warn);
  EXPECT_EQ(all.uids, UidPolicy::same_user);
  EXPECT_TRUE(complaints.empty());
}

TEST(Settings, UnixSocketsAreListedByName) {
  const Settings all = read({"FARCALL_ACCELERATE=/run/one.sock,@abstract,/run/many/*",
                             "FARCALL_EXCLUDE=/run/many/not", "FARCALL_UNIX=yes"});
  EXPECT_TRUE(complaints.empty());
  EXPECT_TRUE(all.wants(unix_name("/run/one.sock")));
  EXPECT_TRUE(all.wants(unix_name(std::string("/run/one.sock") + '\0'))) << "with its end";
  EXPECT_FALSE(all.wants(unix_name("/run/one.sock2")));
  EXPECT_TRUE(all.wants(unix_name(std::string("\0abstract", 9))));
  EXPECT_FALSE(all.wants(unix_name("abstract")));
  EXPECT_TRUE(all.wants(unix_name("/run/many/more")));
  EXPECT_TRUE(all.wants(unix_name("/run/many/"))) << "that begins so, and ends there";
  EXPECT_FALSE(all.wants(unix_name("/run/many/not")));
  EXPECT_FALSE(all.wants(unix_name(""))) << "a pair";
  EXPECT_FALSE(all.wants(endpoint("127.0.0.1", 80), endpoint("127.0.0.1", 81)));
}

// As long as the kernel lets one be, and no longer.
TEST(Settings, UnixSocketsAreListedByNamesOfAnyLength) {
  const std::string longest = "/" + std::string(UnixName::kMost - 1, 'n');
  const Settings all = read({("FARCALL_ACCELERATE=" + longest).c_str()});
  EXPECT_TRUE(complaints.empty());
  EXPECT_TRUE(all.wants(unix_name(longest)));
  EXPECT_FALSE(all.wants(unix_name("/n")));
  EXPECT_EQ(read({("FARCALL_ACCELERATE=" + longest + "n").c_str()}).accelerate.count, 0U);
  EXPECT_EQ(complaints.size(), 1U);
}

TEST(Settings, UnixSocketsAreListedByRelativePaths) {
  const Settings all =
      read({"FARCALL_ACCELERATE=./here.sock,../above.sock,./run/*,127.0.0.1:6379"});
  EXPECT_TRUE(complaints.empty());
  EXPECT_TRUE(all.wants(unix_name("./here.sock")));
  EXPECT_TRUE(all.wants(unix_name("here.sock"))) << "the same, spelled without its place";
  EXPECT_FALSE(all.wants(unix_name("/here.sock")));
  EXPECT_FALSE(all.wants(unix_name(std::string("\0here.sock", 10))));
  EXPECT_TRUE(all.wants(unix_name("../above.sock")));
  EXPECT_FALSE(all.wants(unix_name("above.sock")));
  EXPECT_TRUE(all.wants(unix_name("run/more"))) << "with a star";
  EXPECT_TRUE(all.wants(endpoint("127.0.0.1", 6379), endpoint("127.0.0.1", 81))) << "behind them";
  const Settings some = read({"FARCALL_EXCLUDE=./*"});
  EXPECT_FALSE(some.wants(unix_name("here.sock")));
  EXPECT_TRUE(some.wants(unix_name("/here.sock"))) << "which begins elsewhere";
  EXPECT_TRUE(some.wants(unix_name(std::string("\0here.sock", 10))));
  EXPECT_TRUE(some.wants(unix_name(""))) << "a pair";
}

TEST(Settings, AStarAloneIsEveryEndpoint) {
  const Settings all = read({"FARCALL_EXCLUDE=*"});
  EXPECT_FALSE(all.wants(unix_name("/run/one.sock")));
  EXPECT_FALSE(all.wants(endpoint("127.0.0.1", 80), endpoint("127.0.0.1", 81)));
  const Settings some = read({"FARCALL_EXCLUDE=*:80"});
  EXPECT_TRUE(some.wants(unix_name("/run/one.sock")));
}

TEST(Settings, AreReadFromBothSpellingsAndTheDocumentedOneCounts) {
  EXPECT_EQ(read({"LOOPKB_LOG_LEVEL=debug"}).log_level, LogLevel::debug);
  EXPECT_EQ(read({"LOOPKB_LOG_LEVEL=debug", "FARCALL_LOG_LEVEL=error"}).log_level, LogLevel::error);
  EXPECT_EQ(read({"LOOPKB_MAX_SOCKETS=7"}).max_sockets, 7U);
  EXPECT_EQ(read({"FARCALL_MAX_SOCKETS=8"}).max_sockets, 8U);
  EXPECT_TRUE(complaints.empty());
}

TEST(Settings, ThatHaveOneNameAreReadByItAlone) {
  const Settings all = read({"LOOPKB_ENABLED=no", "LOOPKB_TCP=no", "LOOPKB_UDP=no",
                             "LOOPKB_UNIX=no", "LOOPKB_USERS=any", "LOOPKB_RING_BYTES=64K",
                             "LOOPKB_ACCELERATE=*:80", "LOOPKB_EXCLUDE=*", "LOOPKB_TCP=perhaps"});
  EXPECT_TRUE(all.enabled && all.tcp && all.udp && all.unix_streams);
  EXPECT_EQ(all.uids, UidPolicy::same_user);
  EXPECT_EQ(all.ring_bytes, Settings{}.ring_bytes);
  EXPECT_EQ(all.accelerate.count + all.exclude.count, 0U);
  EXPECT_TRUE(complaints.empty());
}

TEST(Settings, OfTheRingMultiplyUnlessItsBytesAreGiven) {
  EXPECT_EQ(read({"LOOPKB_RING_SIZE=64", "LOOPKB_PACKET_SIZE=2048"}).ring_bytes, 128U << 10);
  EXPECT_EQ(read({"LOOPKB_RING_SIZE=15"}).ring_bytes, 32U << 10) << "15 x 1500, to a power of two";
  EXPECT_EQ(read({"FARCALL_RING_BYTES=1M", "FARCALL_RING_SIZE=15"}).ring_bytes, 1U << 20);
  EXPECT_EQ(read({"FARCALL_RING_BYTES=100000"}).ring_bytes, 128U << 10);
  EXPECT_EQ(read({"FARCALL_RING_BYTES=1"}).ring_bytes, 4096U) << "at least a page";
  for (const char* const eight : {"FARCALL_RING_BYTES=8K", "FARCALL_RING_BYTES=8k"})
    EXPECT_EQ(read({eight}).ring_bytes, 8192U) << eight;
  EXPECT_EQ(read({"FARCALL_RING_BYTES=64m"}).ring_bytes, 64U << 20);
  EXPECT_EQ(read({"FARCALL_RING_SIZE=65536", "FARCALL_PACKET_SIZE=65536"}).ring_bytes, 64U << 20)
      << "at most";
  EXPECT_EQ(read({"FARCALL_MAX_SOCKETS=1000000"}).max_sockets, 1'000'000U);
  EXPECT_TRUE(complaints.empty());
}

TEST(Settings, AreUnderstoodInAnyCase) {
  for (const char* const off : {"FARCALL_TCP=NO", "FARCALL_TCP=False", "FARCALL_TCP=oFF"})
    EXPECT_FALSE(read({off}).tcp) << off;
  for (const char* const on : {"FARCALL_TCP=YES", "FARCALL_TCP=True", "FARCALL_TCP=ON"})
    EXPECT_TRUE(read({on}).tcp) << on;
  EXPECT_EQ(read({"FARCALL_LOG_LEVEL=Debug"}).log_level, LogLevel::debug);
  EXPECT_EQ(read({"FARCALL_USERS=ANY"}).uids, UidPolicy::anybody);
  EXPECT_TRUE(complaints.empty());
  EXPECT_TRUE(read({"FARCALL_TCP=nope"}).tcp);
  EXPECT_EQ(complaints.size(), 1U);
}

TEST(Settings, OfAProtocolSwitchItOff) {
  const Settings all = read({"FARCALL_TCP=no", "FARCALL_UDP=0", "FARCALL_ENABLED=off"});
  EXPECT_FALSE(all.enabled || all.tcp || all.udp);
}

TEST(Settings, ListEndpointsOfBothFamilies) {
  const Settings all =
      read({"FARCALL_ACCELERATE=127.0.0.1:6379,*:8000-8999,[::1]:80,::1,10.0.0.1"});
  ASSERT_EQ(all.accelerate.count, 5U);
  const Endpoint client = endpoint("127.0.0.1", 4000);
  EXPECT_TRUE(all.wants(client, endpoint("127.0.0.1", 6379)));
  EXPECT_FALSE(all.wants(client, endpoint("127.0.0.2", 6379)));
  EXPECT_TRUE(all.wants(client, endpoint("127.0.0.2", 8999)));
  EXPECT_TRUE(all.wants(client, endpoint("10.0.0.1", 1)));
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(81);
  in6.sin6_addr = in6addr_loopback;
  Endpoint six{};
  ASSERT_TRUE(Endpoint::from(reinterpret_cast<const sockaddr*>(&in6), six));
  EXPECT_TRUE(all.accelerate.patterns[3].matches(six));
  EXPECT_FALSE(all.accelerate.patterns[2].matches(six)) << "that is port 80";
}

TEST(Settings, ListAsManyEndpointsAsThereIsRoomFor) {
  std::string list = "FARCALL_EXCLUDE=127.0.0.1:1";
  for (std::size_t i = 2; i <= EndpointList::kMost; ++i) list += ",127.0.0.1:" + std::to_string(i);
  const Settings all = read({list.c_str()});
  EXPECT_TRUE(complaints.empty());
  EXPECT_EQ(all.exclude.count, EndpointList::kMost);
  EXPECT_FALSE(all.wants(endpoint("127.0.0.1", EndpointList::kMost), endpoint("127.0.0.1", 999)));
  list += ",127.0.0.1:999";
  EXPECT_EQ(read({list.c_str()}).exclude.count, 0U);
  EXPECT_EQ(complaints.size(), 1U);
}

// What is too long for any address is none, and what is said of it fits a line.
TEST(Settings, OfAnyLengthAreReadOrComplainedOf) {
  for (std::size_t length = 40; length < 90; ++length) {
    const std::string variable = "FARCALL_EXCLUDE=" + std::string(length, '1');
    EXPECT_EQ(read({variable.c_str()}).exclude.count, 0U) << length;
    EXPECT_EQ(complaints.size(), 1U) << length;
  }
  const std::string variable = "FARCALL_EXCLUDE=" + std::string(100'000, '1');
  EXPECT_EQ(read({variable.c_str()}).exclude.count, 0U);
  ASSERT_EQ(complaints.size(), 1U);
  EXPECT_LT(complaints[0].size(), 1000U);
}

class BadSetting : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Values, BadSetting,
    testing::Values("FARCALL_LOG_LEVEL=loud", "LOOPKB_RING_SIZE=many", "FARCALL_RING_SIZE=0",
                    "FARCALL_RING_SIZE=65537", "FARCALL_PACKET_SIZE=65537",
                    "FARCALL_MAX_SOCKETS=1000001", "FARCALL_RING_BYTES=", "FARCALL_RING_BYTES=0",
                    "FARCALL_RING_BYTES=1G", "FARCALL_RING_BYTES=-1",
                    "FARCALL_RING_BYTES=99999999999999999999", "LOOPKB_PACKET_SIZE=1500x",
                    "FARCALL_MAX_SOCKETS=0", "FARCALL_USERS=me", "FARCALL_TCP=maybe",
                    "FARCALL_ACCELERATE=localhost:80", "FARCALL_ACCELERATE=127.0.0.1:80-70",
                    "FARCALL_EXCLUDE=127.0.0.1:65536", "FARCALL_EXCLUDE=[::1:80",
                    "FARCALL_EXCLUDE=127.0.0.1:,*"));

TEST_P(BadSetting, IsOneComplaintAndTheDefault) {
  const Settings all = read({GetParam()});
  const std::string variable = GetParam();
  ASSERT_EQ(complaints.size(), 1U);
  EXPECT_NE(complaints[0].find(variable.substr(0, variable.find('='))), std::string::npos);
  EXPECT_TRUE(all.enabled && all.tcp);
  EXPECT_EQ(all.ring_bytes, 256U << 10);
  EXPECT_EQ(all.accelerate.count, 0U);
  EXPECT_EQ(all.exclude.count, 0U);
}

}  // namespace
}  // namespace farcall::preload
