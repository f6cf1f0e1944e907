// SPDX-License-Identifier: Apache-2.0
//
// What variables tell the library, what it says of them, and other libraries that are preloaded
// beside it. These tests run as those of contract_test.cpp do.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "calls.hpp"
#include "children.hpp"
#include "datagrams.hpp"
#include "executed.hpp"
#include "farcall/memory.hpp"
#include "preload/stats.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// What the other library has been asked for, see other_library.cpp.
int asked_of_other() {
  auto* const asked = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "other_library_asked"));
  return asked == nullptr ? -1 : asked();
}

int as_counter_of_mappings() {
  const Pair pair(false);
  const int before = stream_mappings();
  pair.talk(20);
  return stream_mappings() - before;
}

int as_one_with_another_library() {
  {
    Pair pair(false);
    char value[4];
    socklen_t size = sizeof value;
    ::getsockopt(pair.client.get(), SOL_SOCKET, SO_TYPE, value, &size);
    set_option(pair.client.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    ::fcntl(pair.client.get(), F_GETFL);
    int bytes = 0;
    ::ioctl(pair.client.get(), FIONREAD, &bytes);
    const UniqueFd copy(::dup(pair.client.get()));
    ::dup2(pair.client.get(), copy.get());
    ::dup3(pair.client.get(), copy.get(), O_CLOEXEC);
    ::shutdown(pair.client.get(), SHUT_WR);
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    ::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.client.get(), &event);
  }
  return asked_of_other();
}

// How many ends share memory of as many pairs as there is one for, and of what comes after them.
int as_one_with_too_many() {
  Pair first(false);
  first.talk(20);
  const int ends = stream_mappings();
  const Pair second(false);
  second.talk(20);
  const int no_more = stream_mappings() - ends;
  const int before = stream_mappings();
  first.client.reset();
  first.server.reset();
  const int left = before - stream_mappings();
  const Pair third(false);
  third.talk(20);
  const int again = stream_mappings() - before + left;
  return 100 * ends + 10 * no_more + again;
}

// Standard error becomes a file of the program, into which nobody else may write.
int as_one_whose_number_two_is_a_file() {
  const int file = ::memfd_create("data", 0);
  if (::dup2(file, STDERR_FILENO) != STDERR_FILENO) return 100;
  {
    Pair pair(false);
    pair.talk(20);
  }
  struct stat status {};
  return ::fstat(STDERR_FILENO, &status) != 0 ? 101 : status.st_size == 0 ? 0 : 102;
}

// How many ends share memory of a connection from one user to another.
int as_users(uid_t one, uid_t other) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(one, one, one) != 0) ::_exit(100);
    const UniqueFd fd = connect_to(address);
    for (int i = 0; i < 60; ++i) {
      if (send(fd.get(), "ping") != "4" || receive(fd.get()) != "pong") ::_exit(101);
    }
    ::_exit(stream_mappings());
  }
  if (::setresuid(other, other, other) != 0) return 102;
  const UniqueFd fd = accept_from(listener);
  for (int i = 0; i < 60; ++i) {
    if (receive(fd.get()) != "ping" || send(fd.get(), "pong") != "4") return 103;
  }
  return stream_mappings() + exit_status(child);
}

// How much memory two sockets share that send to each other.
int as_sender_of_datagrams() {
  const Socket one;
  const Socket other;
  one.connect_to(other);
  other.connect_to(one);
  for (int i = 0; i < 60; ++i) {
    one.send("ping");
    if (other.receive() != "ping") return 100;
    other.send("pong");
    if (one.receive() != "pong") return 101;
  }
  return shared_mappings();
}

// The same where one sends and the other receives.
int as_sender_one_way() {
  const Socket one;
  const Socket other;
  one.connect_to(other);
  for (int i = 0; i < 120; ++i) {
    one.send("ping");
    if (other.receive() != "ping") return 100;
  }
  return shared_mappings();
}

[[gnu::constructor(65535)]] void play_one_with_settings() {
  play_role("one user", [] { return as_users(4711, 4711); });
  play_role("two users", [] { return as_users(4711, 4712); });
  play_role("a user and root", [] { return as_users(4711, 0); });
  play_role("root and a user", [] { return as_users(0, 4711); });
  play_role("datagrams", as_sender_of_datagrams);
  play_role("datagrams one way", as_sender_one_way);
  play_role("mappings", as_counter_of_mappings);
  play_role("other", as_one_with_another_library);
  play_role("too many", as_one_with_too_many);
  play_role("two", as_one_whose_number_two_is_a_file);
}

TEST(Calls, ASwitchIsUnderstoodInAnyCase) {
  const int usual = preloaded() ? 2 : 0;
  const std::string variable = over_unix() ? "FARCALL_UNIX=" : "FARCALL_TCP=";
  EXPECT_EQ(execute_as("mappings", {}).status, usual);
  for (const char* const off : {"no", "No", "NO", "0", "off", "Off", "false", "FALSE"})
    EXPECT_EQ(execute_as("mappings", {variable + off}).status, 0) << off;
  for (const char* const on : {"yes", "YES", "1", "On", "True"})
    EXPECT_EQ(execute_as("mappings", {variable + on}).status, usual) << on;
}

TEST(Calls, NothingIsSharedWhereAllIsSwitchedOff) {
  for (const char* const off : {"FARCALL_ENABLED=no", "FARCALL_ENABLED=0"})
    EXPECT_EQ(execute_as("mappings", {off}).status, 0) << off;
}

TEST(Calls, WhatIsNotWantedStaysWithTheKernel) {
  const int usual = preloaded() ? 2 : 0;
  for (const char* const unwanted : {"FARCALL_EXCLUDE=*", "FARCALL_ACCELERATE=192.0.2.1"})
    EXPECT_EQ(execute_as("mappings", {unwanted}).status, 0) << unwanted;
  for (const char* const wanted : {"FARCALL_ACCELERATE=*", "FARCALL_EXCLUDE=192.0.2.1"})
    EXPECT_EQ(execute_as("mappings", {wanted}).status, usual) << wanted;
}

TEST(DatagramSwitches, AreObeyed) {
  const int usual = preloaded() ? 4 : 0;
  EXPECT_EQ(execute_as("datagrams", {}).status, usual);
  EXPECT_EQ(execute_as("datagrams", {"FARCALL_TCP=no", "FARCALL_UNIX=no"}).status, usual);
  for (const char* const off : {"FARCALL_UDP=no", "FARCALL_ENABLED=no", "FARCALL_EXCLUDE=*",
                                "FARCALL_ACCELERATE=192.0.2.1"})
    EXPECT_EQ(execute_as("datagrams", {off}).status, 0) << off;
}

// Each end counts.
TEST(DatagramSwitches, NoMoreShareMemoryThanTheSettingsAllow) {
  EXPECT_EQ(execute_as("datagrams one way", {"FARCALL_MAX_SOCKETS=2"}).status, preloaded() ? 2 : 0);
  EXPECT_EQ(execute_as("datagrams one way", {"FARCALL_MAX_SOCKETS=1"}).status, 0);
}

TEST(Calls, OnlyUsersOfWhomTheSettingsSaySoShareMemory) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes somebody else";
  // Nor may root where there are no such users.
  for (const uid_t user : {4711U, 4712U})
    if (outcome_in_child([user] { return ::setresuid(user, user, user) == 0; }) != 0) return;
  const struct {
    const char* setting;
    int one_user, two_users, with_root;
  } kShared[] = {
      {"FARCALL_USERS=same", 2, 0, 0},
      {"FARCALL_USERS=root", 2, 0, 2},
      {"FARCALL_USERS=any", 2, 2, 2},
  };
  for (const auto& [setting, one_user, two_users, with_root] : kShared) {
    SCOPED_TRACE(setting);
    const auto shared = [&](const char* role) { return execute_as(role, {setting}).status; };
    EXPECT_EQ(shared("one user"), preloaded() ? one_user : 0);
    EXPECT_EQ(shared("two users"), preloaded() ? two_users : 0);
    EXPECT_EQ(shared("a user and root"), preloaded() ? with_root : 0);
    EXPECT_EQ(shared("root and a user"), preloaded() ? with_root : 0);
  }
}

TEST(Calls, ABadSwitchIsOneWarningAndTheDefault) {
  const Ended ended = execute_as("mappings", {"FARCALL_TCP=perhaps"});
  EXPECT_EQ(ended.status, preloaded() ? 2 : 0);
  EXPECT_EQ(ended.said, preloaded() ? "farcall: FARCALL_TCP=\"perhaps\" is not yes or no, true or "
                                      "false, on or off, 1 or 0; the default is used\n"
                                    : "");
}

TEST(Calls, NoMoreConnectionsShareMemoryThanTheSettingsAllow) {
  EXPECT_EQ(execute_as("too many", {"FARCALL_MAX_SOCKETS=2"}).status, preloaded() ? 202 : 0);
  EXPECT_EQ(execute_as("too many", {"FARCALL_MAX_SOCKETS=1"}).status, preloaded() ? 101 : 0);
}

TEST(Calls, NothingIsSaidIntoAFileOfTheProgram) {
  EXPECT_EQ(execute_as("two", {"FARCALL_LOG_LEVEL=debug", "FARCALL_UDP=perhaps"}).status, 0);
}

TEST(Calls, AnotherPreloadedLibraryIsAskedToo) {
  const char* const own = std::getenv("LD_PRELOAD");
  const std::string both =
      std::string("LD_PRELOAD=") + (own == nullptr ? "" : std::string(own) + ":") + OTHER_LIBRARY;
  EXPECT_EQ(execute_as("other", {both}).status, 255) << "a bit for each of its functions";
}

// --- the file in which is counted

// As the tool makes it, but for what is wrong with it; nothing has been counted yet.
UniqueFd file_of_statistics(std::size_t size, int seals) {
  UniqueFd file(::memfd_create("statistics", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::uint64_t magic = StatsPage::kMagic;
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::pwrite(file.get(), &magic, sizeof magic, 0), ssize_t{sizeof magic});
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

bool is_counted_in(const UniqueFd& file) {
  const std::string path =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file.get());
  const Ended ended = execute_as("mappings", {kStatsVariable + ("=" + path)});
  EXPECT_EQ(ended.status, preloaded() ? 2 : 0);
  std::uint32_t state = 0;
  EXPECT_EQ(::pread(file.get(), &state, sizeof state, offsetof(StatsPage, slots)), 4);
  return state != 0;
}

TEST(Calls, NothingIsCountedInAFileThatMayBecomeSmaller) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(is_counted_in(file_of_statistics(sizeof(StatsPage), kSeals)), preloaded());
  EXPECT_FALSE(is_counted_in(file_of_statistics(sizeof(StatsPage) - 1, kSeals)));
  EXPECT_FALSE(is_counted_in(file_of_statistics(sizeof(StatsPage), F_SEAL_GROW)));
  EXPECT_FALSE(is_counted_in(file_of_statistics(sizeof(StatsPage), F_SEAL_SEAL)));
}

// A program may have one of its connections for its error output.
TEST(TcpCalls, NothingIsSaidIntoAConnection) {
  Pair pair(false);
  const pid_t child = in_child([&] {
    ::dup2(pair.server.get(), STDERR_FILENO);
    ::setenv(kRole, "mappings", 1);
    ::setenv("FARCALL_UDP", "perhaps", 1);
    ::execl("/proc/self/exe", "counts", nullptr);
  });
  pair.server.reset();
  EXPECT_EQ(exit_status(child), preloaded() ? 2 : 0);
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

}  // namespace
}  // namespace farcall::preload
