// SPDX-License-Identifier: Apache-2.0
//
// What <string.h> and <zone.h> of Solaris have, held against their pages.
#include <gtest/gtest.h>
#include <string.h>
#include <zone.h>

#include <string_view>

// As the headers for Solaris declare them; a C library may have its own.
extern "C" size_t strlcpy(char* to, const char* from, size_t size);
extern "C" size_t strlcat(char* to, const char* from, size_t size);

namespace {

TEST(Strings, WhatIsCopiedEndsInItsRoom) {
  char room[] = "xxxxxxx";
  EXPECT_EQ(strlcpy(room, "abcdef", 4), 6U);
  EXPECT_EQ(std::string_view(room, sizeof room), std::string_view("abc\0xxx", sizeof room));
  EXPECT_EQ(strlcpy(room, "12", 3), 2U);
  EXPECT_EQ(std::string_view(room, sizeof room), std::string_view("12\0\0xxx", sizeof room));
  EXPECT_EQ(strlcpy(room, "long", 0), 4U);
  EXPECT_STREQ(room, "12");
}

TEST(Strings, WhatIsAddedEndsInItsRoom) {
  char room[] = "ab\0xxxx";
  EXPECT_EQ(strlcat(room, "cdef", 5), 6U);
  EXPECT_EQ(std::string_view(room, sizeof room), std::string_view("abcd\0xx", sizeof room));
  EXPECT_EQ(strlcat(room, "e", sizeof room), 5U);
  EXPECT_STREQ(room, "abcde");
}

// Where the room has no end, nothing is looked for or written beyond it.
TEST(Strings, NothingIsAddedToWhatDoesNotEndInItsRoom) {
  char room[] = "abcdef";
  EXPECT_EQ(strlcat(room, "gh", 3), 5U);
  EXPECT_STREQ(room, "abcdef");
}

TEST(Zones, ThereIsOne) { EXPECT_EQ(getzoneid(), GLOBAL_ZONEID); }

}  // namespace
