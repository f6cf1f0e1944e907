// SPDX-License-Identifier: Apache-2.0
//
// How much memory connections take, and what happens where a child writes into it. The tests run as
// those of leaving_test.cpp do.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "connected.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

TEST(Connections, LeaveNoAddressSpaceBehind) {
  long before = 0;
  for (int i = 0; i < 400; ++i) {
    const Connected connected = with_child([](int) {});
    if (i == 100) before = number_in_status("VmSize");
  }
  EXPECT_LT(number_in_status("VmSize"), before + 20'000);
}

// Kilobytes that a connection holds after some thousand questions and answers.
std::size_t resident_after_talk() {
  const Connected connected = with_child([](int peer) {
    char bytes[512];
    while (::recv(peer, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes)
      require(::send(peer, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes, "send");
  });
  char bytes[512] = {};
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(::send(connected.fd.get(), bytes, sizeof bytes, MSG_NOSIGNAL), 512);
    if (::recv(connected.fd.get(), bytes, sizeof bytes, MSG_WAITALL) != 512) {
      ADD_FAILURE() << std::strerror(errno);
      break;
    }
  }
  std::ifstream maps("/proc/self/smaps");
  std::size_t resident = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    // A mapping begins with its addresses, in small letters.
    if (std::islower(static_cast<unsigned char>(line[0])) != 0 ||
        std::isdigit(static_cast<unsigned char>(line[0])) != 0)
      ours =
          line.find(over_unix() ? "memfd:farcall-unix" : "memfd:farcall-tcp") != std::string::npos;
    if (ours && line.rfind("Rss:", 0) == 0) resident += std::stoul(line.substr(4));
  }
  return resident;
}

TEST(Connections, WithLittleInFlightTouchLittleMemory) {
  // A ring begins anew where its reader is awake. On a busy machine one may be asleep at each of
  // these moments, so the least of some counts.
  std::size_t resident = resident_after_talk();
  for (int i = 0; i < 10 && resident > 64; ++i)
    resident = std::min(resident, resident_after_talk());
  EXPECT_LE(resident, 64u) << "of 516 KB";
  if (preloaded()) {
    EXPECT_GT(resident, 0u);
  }
}

TEST(Connections, SurviveAChildThatScribblesInSharedMemory) {
  if (!preloaded()) GTEST_SKIP() << "there is none";
  const Connected connected = with_child([](int peer) {
    char bytes[64];
    while (::recv(peer, bytes, sizeof bytes, 0) > 0) continue;
  });
  Child parent([&] {
    Child child([&] {
      std::ifstream maps("/proc/self/maps");
      for (std::string line; std::getline(maps, line);) {
        if (line.find(" rw-s ") == std::string::npos || line.find("memfd:") != std::string::npos)
          continue;
        unsigned long from = 0;
        unsigned long to = 0;
        require(std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2, "read a mapping");
        // What has been used of it.
        to = std::min(to, from + (1 << 20));
        for (unsigned long at = from; at < to; at += 8) {
          const std::uint64_t value = at % 64 == 0 ? 0 : 0x4141414141414141;
          std::memcpy(reinterpret_cast<void*>(at), &value, sizeof value);
        }
      }
    });
    require(child.wait() == 0, "scribble");
    // Any answer is good, but there must be one.
    char bytes[64] = {};
    (void)::send(connected.fd.get(), bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)::recv(connected.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    pollfd look{.fd = connected.fd.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&look, 1, 10);
    ::close(connected.fd.get());
  });
  EXPECT_EQ(parent.wait(), 0);
}

}  // namespace
}  // namespace farcall::preload
