// SPDX-License-Identifier: Apache-2.0
//
// How long a request may be that does not come alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "call/server.hpp"
#include "farcall/error.hpp"

namespace farcall::call::test {
namespace {

TEST(RequestBounds, AreThoseOfOthersWhereDescriptorsComeWithIt) {
  constexpr std::size_t kMost = 100;
  Server server(echo, 1, WaitMode::adaptive, {.request_bytes = kMost});
  Client client(server.port.descriptor());
  const auto call_with = [&](std::size_t size) {
    const std::vector<std::byte> data(size);
    CallResults results;
    const std::array descriptors{STDERR_FILENO};
    EXPECT_EQ(client.call({.data = data, .descriptors = descriptors}, results,
                          Deadline::after(kPatience)),
              Outcome::ok);
    return results.data.size();
  };
  EXPECT_EQ(call_with(kMost), kMost);
  try {
    call_with(kMost + 1);
    ADD_FAILURE() << "it was taken";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), E2BIG);
  }
}

}  // namespace
}  // namespace farcall::call::test
