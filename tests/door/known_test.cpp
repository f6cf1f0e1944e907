// SPDX-License-Identifier: Apache-2.0
//
// What a process knows of its descriptors.
#include <gtest/gtest.h>

#include "door/door.hpp"
#include "farcall/call.hpp"

namespace farcall::door {
namespace {

void nothing(void*, char*, std::size_t, door_desc_t*, uint_t) {}

// A thread may use a number that another has closed, and that is a new door's by then.
TEST(KnownDoors, AreTheProcesssOwnHoweverEarlyTheyAreLookedUp) {
  Process& process = Process::here();
  const auto pool = std::make_shared<SharedPool>(WaitMode::block);
  const auto door = std::make_shared<Door>(
      OwnDoor::Order{.procedure = nothing, .cookie = nullptr, .attributes = 0}, pool);
  const auto endpoint = pool->port.open_endpoint({}, {});
  std::uint64_t socket = 0;
  const UniqueFd fd = endpoint->branch(make_name({.id = door->id, .attributes = 0}), &socket);
  const auto before = process.find(fd.get());
  ASSERT_TRUE(before);
  EXPECT_FALSE(before->local.lock());
  process.add_branch(socket, door);
  const auto after = process.find(fd.get());
  ASSERT_TRUE(after);
  EXPECT_EQ(after->local.lock(), door);
  EXPECT_TRUE(after->is_local);
  process.remove_branch(socket);
}

}  // namespace
}  // namespace farcall::door
