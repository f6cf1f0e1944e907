// SPDX-License-Identifier: Apache-2.0
//
// The interface, as C++ sees it.
#include <door.h>
#include <gtest/gtest.h>
#include <stropts.h>
#include <sys/door.h>
#include <sys/stat.h>
#include <ucred.h>
#include <unistd.h>

#include <cstddef>
#include <type_traits>

#include "door/layout_assertions.h"

extern "C" int layout_seen_by_c(void);

namespace {

static_assert(std::is_same_v<door_ptr_t, unsigned long long>);
static_assert(std::is_same_v<door_id_t, unsigned long long>);
static_assert(std::is_same_v<door_attr_t, unsigned int>);
static_assert(std::is_same_v<decltype(door_info_t::di_target), pid_t>);

// The types of the functions, as the manual pages give them.
static_assert(
    std::is_same_v<decltype(&::door_create), int (*)(door_server_procedure_t*, void*, uint_t)>);
static_assert(
    std::is_same_v<decltype(&::door_return), int (*)(char*, size_t, door_desc_t*, uint_t)>);
static_assert(std::is_same_v<decltype(&::door_ucred), int (*)(ucred_t**)>);
static_assert(std::is_same_v<decltype(&::door_getparam), int (*)(int, int, size_t*)>);
static_assert(std::is_same_v<decltype(&::door_setparam), int (*)(int, int, size_t)>);
static_assert(
    std::is_same_v<decltype(&::door_server_create), door_server_func_t* (*)(door_server_func_t*)>);
static_assert(std::is_same_v<decltype(&::fattach), int (*)(int, const char*)>);
static_assert(std::is_same_v<decltype(&::fdetach), int (*)(const char*)>);

TEST(DoorLayout, IsTheSameInC) { EXPECT_EQ(layout_seen_by_c(), 48); }

TEST(DoorLayout, UnrefDataIsThePointerOne) {
  EXPECT_EQ(DOOR_UNREF_DATA, reinterpret_cast<void*>(1));
}

TEST(DoorLayout, NoOtherFileIsADoor) {
  struct stat status {};
  for (const char* path : {"/", "/dev/null", "/proc/self/exe"}) {
    ASSERT_EQ(::stat(path, &status), 0);
    EXPECT_FALSE(S_ISDOOR(status.st_mode)) << path;
  }
}

}  // namespace
