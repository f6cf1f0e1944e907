// SPDX-License-Identifier: Apache-2.0
//
// What these commands write to by name, where others may make files, too.
#include "watch/output_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "harness/error_of.hpp"
#include "harness/scratch.hpp"

namespace farcall::watch {
namespace {

constexpr uid_t kOther = 65533;

class OutputFile : public testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.file(name); }
  [[nodiscard]] std::string make(const std::string& name) const {
    return folder_.write(name, "what was there");
  }
  static std::string contents(const std::string& name) {
    std::ifstream file(name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void give_away(const std::string& name) {
    ASSERT_EQ(::lchown(name.c_str(), kOther, kOther), 0);
  }
  static int error_of_opening(const std::string& name,
                              UniqueFd (*open)(const std::string&) = open_private) {
    return test::error_of([&] { open(name); });
  }

  test::ScratchDirectory folder_;
};

TEST_F(OutputFile, IsMadeForItsOwnerAlone) {
  const mode_t before = ::umask(0);
  EXPECT_TRUE(open_private(at("new")));
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(at("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(OutputFile, OfOnesOwnIsEmptiedAndKeptFromOthers) {
  const std::string file = make("old");
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  EXPECT_TRUE(open_private(file));
  EXPECT_EQ(contents(file), "");
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(OutputFile, MayBeWhatOnesOwnLinkLeadsTo) {
  const std::string file = make("old");
  ASSERT_EQ(::symlink("old", at("link").c_str()), 0);
  EXPECT_TRUE(open_private(at("link")));
  EXPECT_EQ(contents(file), "");
  EXPECT_EQ(std::filesystem::path(followed(at("link"))), std::filesystem::canonical(file));
  EXPECT_TRUE(std::filesystem::is_symlink(at("link")));
}

// It could be a file that its owner would never have emptied.
TEST_F(OutputFile, WithAnotherNameIsLeftAlone) {
  const std::string file = make("precious");
  ASSERT_EQ(::link(file.c_str(), at("name").c_str()), 0);
  EXPECT_EQ(error_of_opening(at("name")), EPERM);
  EXPECT_EQ(contents(file), "what was there");
}

TEST_F(OutputFile, MayBeADeviceOrAPipe) {
  EXPECT_EQ(error_of_opening("/dev/null"), 0);
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  const UniqueFd reader(::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(error_of_opening(at("pipe")), 0);
  ASSERT_EQ(
      ::symlink(("/proc/self/fd/" + std::to_string(reader.get())).c_str(), at("output").c_str()),
      0);
  EXPECT_EQ(error_of_opening(at("output")), 0);
}

TEST_F(OutputFile, ThatIsNoFileIsOpenedWithoutWaiting) {
  EXPECT_EQ(error_of_opening("/dev/null", open_other), 0);
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of_opening(at("pipe"), open_other), ENXIO);
  const UniqueFd reader(::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(error_of_opening(at("pipe"), open_other), 0);
  const std::string file = make("file");
  EXPECT_EQ(error_of_opening(file, open_other), EEXIST);
  EXPECT_EQ(contents(file), "what was there");
  if (::geteuid() != 0) return;
  give_away(at("pipe"));
  EXPECT_EQ(error_of_opening(at("pipe"), open_other), EPERM);
}

TEST_F(OutputFile, OfAnotherUserIsLeftAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const std::string file = make("theirs");
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  give_away(file);
  EXPECT_EQ(error_of_opening(file), EPERM);
  EXPECT_EQ(contents(file), "what was there");
  // Who waits for a reader of theirs waits as long as they like.
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  give_away(at("pipe"));
  EXPECT_EQ(error_of_opening(at("pipe")), EPERM);
}

TEST_F(OutputFile, OfAnotherUsersLinkIsLeftAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const std::string file = make("precious");
  ASSERT_EQ(::symlink(file.c_str(), at("link").c_str()), 0);
  ASSERT_EQ(::symlink(at("made").c_str(), at("dangling").c_str()), 0);
  give_away(at("link"));
  give_away(at("dangling"));
  EXPECT_EQ(error_of_opening(at("link")), EPERM);
  EXPECT_EQ(error_of_opening(at("dangling")), EPERM);
  EXPECT_EQ(contents(file), "what was there");
  EXPECT_FALSE(std::filesystem::exists(at("made")));
}

}  // namespace
}  // namespace farcall::watch
