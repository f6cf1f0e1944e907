// SPDX-License-Identifier: Apache-2.0
//
// A process can keep whoever reads its memory waiting: by a page of a file system that it serves
// itself, and does not serve. Root is not held up by that.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

#include "harness/eventually.hpp"
#include "harness/scratch.hpp"
#include "harness/silent_file.hpp"
#include "watch/ends.hpp"
#include "watch/memory.hpp"

namespace farcall::test {
namespace {

constexpr uid_t kStranger = 60'001;
constexpr std::size_t kPage = 4096;

struct Told {
  std::atomic<int> error{-1};
  std::atomic<std::uint64_t> good{0};  // addresses
  std::atomic<std::uint64_t> bad{0};
};

Told& shared_told() {
  void* const memory =
      ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) Told;
}

void put(const char* file, const std::string& text) { std::ofstream(file) << text; }

// In a user namespace of its own, as anybody may. Returns an errno value.
int map_what_nobody_serves(const std::string& file, std::uint64_t& address) {
  if (::setresgid(kStranger, kStranger, kStranger) != 0 ||
      ::setresuid(kStranger, kStranger, kStranger) != 0 ||
      ::prctl(PR_SET_DUMPABLE, 1) != 0 ||  // as who has that user by login
      ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    return errno;
  put("/proc/self/setgroups", "deny");
  put("/proc/self/uid_map", "0 " + std::to_string(kStranger) + " 1");
  put("/proc/self/gid_map", "0 " + std::to_string(kStranger) + " 1");
  if (const int error = serve_file(file, FUSE_READ); error != 0) return error;
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};  // asked for, so that the kernel knows the size
  if (opened < 0 || ::fstat(opened, &status) != 0) return errno;
  void* const memory = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, opened, 0);
  if (memory == MAP_FAILED) return errno;
  address = reinterpret_cast<std::uintptr_t>(memory);
  return 0;
}

bool read_word(const watch::Owner& of, std::uint64_t address, std::uint64_t& word) {
  const iovec there{.iov_base = reinterpret_cast<void*>(address), .iov_len = sizeof word};
  return watch::read_memory(of, {&there, 1}, &word, sizeof word);
}

TEST(WatchSilent, WhoKeepsItsReadersWaitingIsGivenUp) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to look at another user's";
  const ScratchDirectory folder(0755);
  const std::string file = folder.write("file", "x");
  ASSERT_EQ(::chown(file.c_str(), kStranger, kStranger), 0);
  Told& told = shared_told();
  static constexpr std::uint64_t kWord = 0x1234567890abcdef;
  static std::uint64_t word = kWord;
  const auto holds_up = [&] {
    ::setpgid(0, 0);
    std::uint64_t address = 0;
    const int error = map_what_nobody_serves(file, address);
    told.good = reinterpret_cast<std::uintptr_t>(&word);
    told.bad = address;
    told.error = error;
    ::alarm(60);
    for (;;) ::pause();
    return 0;
  };
  const Gate ready;
  const auto only_waits = [&] {
    if (::setresgid(kStranger, kStranger, kStranger) != 0 ||
        ::setresuid(kStranger, kStranger, kStranger) != 0)
      return 1;
    ::prctl(PR_SET_DUMPABLE, 1);
    ready.open();
    ::alarm(110);
    for (;;) ::pause();
  };
  const Child other(only_waits);
  const Child child(holds_up);
  ready.wait();
  ASSERT_TRUE(eventually([&] { return told.error >= 0; }, 30s));
  const int error = told.error;
  if (error == 0) {
    const watch::Owner of{.pid = child.pid(), .user = kStranger, .group = kStranger};
    std::uint64_t seen = 0;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(read_word(of, told.bad, seen));
    EXPECT_EQ(errno, ETIMEDOUT);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    EXPECT_FALSE(read_word(of, told.bad, seen)) << "it is not tried again";
    EXPECT_EQ(errno, ETIMEDOUT);
    const watch::Owner innocent{.pid = other.pid(), .user = kStranger, .group = kStranger};
    // Where this process had no processor the other one has kept it waiting, as far as it can tell,
    // and a user who did that for more than two seconds has to make up for it first.
    bool read = read_word(innocent, told.good, seen);
    for (int i = 0; i < 60'000 && !read && errno == ETIMEDOUT; ++i) {
      ::usleep(1000);
      read = read_word(innocent, told.good, seen);
    }
    ASSERT_TRUE(read) << std::strerror(errno);
    EXPECT_EQ(seen, kWord);
  }
  ::kill(-child.pid(), SIGKILL);
  if (error != 0) GTEST_SKIP() << "no file systems of users here: " << std::strerror(error);
}

}  // namespace
}  // namespace farcall::test
