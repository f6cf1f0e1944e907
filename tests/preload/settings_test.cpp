// SPDX-License-Identifier: Apache-2.0
#include "preload/settings.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

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
  some.exclude.patterns[some.exclude.count++] = {
      .address = endpoint("127.0.0.2", 0).address, .any_address = false, .first_port = 0,
      .last_port = 65535};
  EXPECT_FALSE(some.wants(endpoint("127.0.0.2", 4000), endpoint("127.0.0.1", 8500)));
}

}  // namespace
}  // namespace farcall::preload
