// SPDX-License-Identifier: Apache-2.0
#include "doctor/tree.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "doctor/fake_tree.hpp"

namespace farcall::test {
namespace {

TEST(DoctorTree, SaysNothingOfFilesThatAreNotThere) {
  const FakeTree empty;
  const doctor::Tree tree = empty.tree();
  EXPECT_FALSE(tree.text("/a"));
  EXPECT_EQ(tree.line("/a"), "");
  EXPECT_FALSE(tree.number("/a"));
  EXPECT_TRUE(tree.names("/a").empty());
  EXPECT_EQ(tree.link("/a"), "");
}

TEST(DoctorTree, IsNotKeptWaitingByAPipe) {
  const FakeTree fake;
  ASSERT_EQ(::mkfifo(fake.tree().place("/pipe").c_str(), 0600), 0);
  EXPECT_EQ(fake.tree().line("/pipe"), "");
}

TEST(DoctorTree, ReadsListsOfNumbers) {
  EXPECT_EQ(doctor::to_list("0-2,7"), (std::vector<unsigned>{0, 1, 2, 7}));
  EXPECT_TRUE(doctor::to_list("").empty());
  EXPECT_TRUE(doctor::to_list("3-1,x,-").empty());
  EXPECT_LE(doctor::to_list("0-4000000000").size(), 4096U);
}

TEST(DoctorTree, ReadsWholeNumbersOnly) {
  EXPECT_EQ(doctor::to_number("42"), 42U);
  EXPECT_EQ(doctor::to_number("ff", 16), 255U);
  for (const char* const text : {"", "-1", "4x", " 4", "99999999999999999999"})
    EXPECT_FALSE(doctor::to_number(text)) << text;
}

TEST(DoctorTree, FindsFieldsByTheirWholeName) {
  EXPECT_EQ(doctor::field("Uidx:\t1\nUid:\t2\t3\n", "Uid"), "2\t3");
  EXPECT_EQ(doctor::field("Uid\n", "Uid"), "");
}

}  // namespace
}  // namespace farcall::test
