// SPDX-License-Identifier: Apache-2.0
//
// A visitor who knows all that is public of a connection, and leaves memory of its own.
// These tests run as those of contract_test.cpp do.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "children.hpp"
#include "executed.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

std::uint64_t cookie_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
  return cookie;
}

// The name at which the library of `client` listens, of those in /proc/net/unix; empty: none.
std::string meeting_name_of(int client) {
  char wanted[64];
  if (over_unix()) {
    struct stat status {};
    EXPECT_EQ(::fstat(client, &status), 0);
    std::snprintf(wanted, sizeof wanted, "@farcall/unix/%016lx", status.st_ino);
  } else {
    sockaddr_in own{};
    socklen_t size = sizeof own;
    EXPECT_EQ(::getsockname(client, reinterpret_cast<sockaddr*>(&own), &size), 0);
    std::snprintf(wanted, sizeof wanted, "@farcall/tcp/00000000000000000000ffff7f000001%04x",
                  ntohs(own.sin_port));
  }
  std::ifstream names("/proc/net/unix");
  for (std::string line; std::getline(names, line);)
    if (const std::size_t at = line.find(wanted); at != std::string::npos)
      return line.substr(at + 1);
  return {};
}

// What a visitor leaves.
struct Left {
  std::size_t ring = 65'536;  // a power of two
  bool is_sealed = true;
  int instead = -1;         // of memory
  std::size_t missing = 0;  // of what the memory is said to have
  bool knows_connector = true;
  bool knows_acceptor = true;
  std::uint64_t magic = 0x33504354'4C4C4143;
  int beside = -1;  // comes with the memory
  int behind = -1;  // comes with a message of its own
};

void leave_memory(const std::string& name, int connector, int acceptor, std::uint64_t bytes,
                  const Left& left) {
  constexpr std::size_t kDirection = 2048;
  const std::size_t size = 2 * (kDirection + left.ring);
  const UniqueFd memory(::memfd_create("visitor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(size - left.missing)), 0);
  for (const std::size_t direction : {std::size_t{0}, kDirection})
    for (const std::size_t word : {144U, 264U})  // bytes taken, bytes sent
      ASSERT_EQ(::pwrite(memory.get(), &bytes, sizeof bytes, static_cast<off_t>(direction + word)),
                8);
  const int seals = left.is_sealed ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL : F_SEAL_GROW;
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  const UniqueFd visitor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  ASSERT_EQ(::connect(visitor.get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size())),
            0)
      << std::strerror(errno);
  const std::uint64_t hello[] = {left.magic, cookie_of(acceptor) + (left.knows_acceptor ? 0 : 1),
                                 cookie_of(connector) + (left.knows_connector ? 0 : 1), left.ring};
  const std::string said(reinterpret_cast<const char*>(hello), sizeof hello);
  const int shown = left.instead < 0 ? memory.get() : left.instead;
  std::vector<int> fds{shown};
  if (left.beside >= 0) fds.push_back(left.beside);
  ASSERT_EQ(send_with(visitor.get(), said, fds), std::ssize(said));
  if (left.behind >= 0) {
    ASSERT_EQ(send_with(visitor.get(), "", {left.behind}), 0);
  }
}

// How much memory a connection takes whose other end has no library, when somebody of that user
// comes.
int as_one_with_a_visitor(
    uid_t user, const Left& left = {}, const std::function<void()>& once_there = [] {}) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const UniqueFd client = connect_to(address);
  const UniqueFd server(static_cast<int>(kernel(SYS_accept4, listener.get(), 0, 0, SOCK_CLOEXEC)));
  const auto talk = [&](int rounds) {
    char bytes[4];
    const auto there = reinterpret_cast<long>(&bytes);
    for (int i = 0; i < rounds; ++i) {
      EXPECT_EQ(send(client.get(), "ping"), "4");
      EXPECT_EQ(kernel(SYS_read, server.get(), there, sizeof bytes), 4);
      EXPECT_EQ(kernel(SYS_write, server.get(), there, sizeof bytes), 4);
      EXPECT_EQ(receive(client.get()), "ping");
    }
  };
  constexpr int kRounds = 4;
  talk(kRounds);
  const std::string name = meeting_name_of(client.get());
  if (name.empty()) return 100;
  const pid_t visitor = ::fork();
  if (visitor == 0) {
    if (::setresuid(user, user, user) != 0) ::_exit(1);
    leave_memory(name, client.get(), server.get(), 4 * kRounds, left);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  once_there();
  if (exit_status(visitor) != 0) return 101;
  // Where these go, if the visitor was believed, nobody reads.
  for (int i = 0; i < 60; ++i) EXPECT_EQ(send(client.get(), "ping"), "4");
  return shared_mappings("visitor");
}

// A socket whose last close waits for a minute, because nobody reads at the other end.
struct Lingering {
  Lingering() {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    socklen_t size = sizeof name;
    EXPECT_EQ(kernel(SYS_bind, listener.get(), &name, size), 0);
    EXPECT_EQ(kernel(SYS_listen, listener.get(), 1), 0);
    EXPECT_EQ(kernel(SYS_getsockname, listener.get(), &name, &size), 0);
    EXPECT_EQ(kernel(SYS_connect, one.get(), &name, size), 0);
    other.reset(static_cast<int>(kernel(SYS_accept4, listener.get(), 0, 0, SOCK_CLOEXEC)));
    const std::string many(1 << 20, 'x');
    while (kernel(SYS_sendto, one.get(), many.data(), many.size(), MSG_DONTWAIT, 0, 0) > 0)
      continue;
    const linger minute{.l_onoff = 1, .l_linger = 60};
    EXPECT_EQ(kernel(SYS_setsockopt, one.get(), SOL_SOCKET, SO_LINGER, &minute, sizeof minute), 0);
  }
  static UniqueFd socket() {
    return UniqueFd(static_cast<int>(kernel(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  }
  UniqueFd listener = socket(), one = socket(), other;
};

// Closes it in the child that takes it along.
int as_one_whose_visitor_leaves_what_lingers(uid_t user, int Left::*where) {
  Lingering lingering;
  Left left;
  left.*where = lingering.one.get();
  const auto close_own = [&] { kernel(SYS_close, lingering.one.release()); };
  const auto start = std::chrono::steady_clock::now();
  const int taken = as_one_with_a_visitor(user, left, close_own);
  return std::chrono::steady_clock::now() - start < std::chrono::seconds(20) ? taken : 102;
}

struct Place {
  const char* name;
  int Left::*where;
};
constexpr Place kPlaces[] = {{"instead of memory", &Left::instead},
                             {"beside memory", &Left::beside},
                             {"behind memory", &Left::behind}};

[[gnu::constructor(65535)]] void play_one_visited() {
  for (const auto& [role, where] : kPlaces) {
    play_role((std::string("left what lingers ") + role).c_str(),
              [&] { return as_one_whose_visitor_leaves_what_lingers(4711, where); });
    play_role((std::string("left by its user what lingers ") + role).c_str(),
              [&] { return as_one_whose_visitor_leaves_what_lingers(::geteuid(), where); });
  }
  play_role("visited by its user", [] { return as_one_with_a_visitor(::geteuid()); });
  play_role("visited by a stranger", [] { return as_one_with_a_visitor(4711); });
  play_role("left what may shrink",
            [] { return as_one_with_a_visitor(::geteuid(), {.is_sealed = false}); });
  play_role("left a ring of an odd size",
            [] { return as_one_with_a_visitor(::geteuid(), {.ring = 65'536 + 4096}); });
  play_role("left a ring that is too large",
            [] { return as_one_with_a_visitor(::geteuid(), {.ring = std::size_t{1} << 26}); });
  play_role("left less than it says",
            [] { return as_one_with_a_visitor(::geteuid(), {.missing = 4096}); });
  play_role("does not know the connecting end",
            [] { return as_one_with_a_visitor(::geteuid(), {.knows_connector = false}); });
  play_role("does not know the accepting end",
            [] { return as_one_with_a_visitor(::geteuid(), {.knows_acceptor = false}); });
  play_role("speaks another version",
            [] { return as_one_with_a_visitor(::geteuid(), {.magic = 0x34504354'4C4C4143}); });
}

TEST(Calls, MemoryIsTakenOnlyFromTheUserWhoHoldsTheOtherEnd) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes a stranger";
  const std::string anybody = "FARCALL_USERS=any";
  EXPECT_EQ(execute_as("visited by its user", {anybody}).status, 1);
  const Ended stranger = execute_as("visited by a stranger", {anybody});
  EXPECT_EQ(stranger.status, 0) << stranger.said;
}

TEST(Calls, WhatAStrangerLeavesHoldsNobodyUp) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes a stranger";
  for (const Place& place : kPlaces) {
    const Ended stranger = execute_as(std::string("left what lingers ") + place.name, {});
    EXPECT_EQ(stranger.status, 0) << place.name << ": " << stranger.said;
  }
}

// The memory itself is taken where nothing comes with it, as what comes behind it is nobody's.
TEST(Calls, WhatAnAllowedVisitorLeavesHoldsNobodyUp) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  for (const Place& place : kPlaces) {
    const Ended ended = execute_as(std::string("left by its user what lingers ") + place.name, {});
    EXPECT_EQ(ended.status, place.where == &Left::behind ? 1 : 0)
        << place.name << ": " << ended.said;
  }
}

// What could be taken away again would end who looks there, and a ring is masked.
TEST(Calls, MemoryThatCannotBeTrustedIsNotTaken) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  for (const char* const role : {"left what may shrink", "left a ring of an odd size",
                                 "left a ring that is too large", "left less than it says"}) {
    const Ended ended = execute_as(role, {});
    EXPECT_EQ(ended.status, 0) << role << ": " << ended.said;
  }
}

// Who does not name both ends has come for another connection, or guesses.
TEST(Calls, WhoComesForAnotherConnectionLeavesNothing) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  EXPECT_EQ(execute_as("visited by its user", {}).status, 1);
  for (const char* const role : {"does not know the connecting end",
                                 "does not know the accepting end", "speaks another version"}) {
    const Ended ended = execute_as(role, {});
    EXPECT_EQ(ended.status, 0) << role << ": " << ended.said;
  }
}

}  // namespace
}  // namespace farcall::preload
