// SPDX-License-Identifier: Apache-2.0
//
// Descriptors whose last close takes its time.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall::test {

// Two ends of a connection over TCP, of which the second takes little that nobody reads.
inline std::pair<UniqueFd, UniqueFd> tcp_pair() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int small = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(one.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  UniqueFd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(one), std::move(other)};
}

// A connection over TCP whose last close waits for `seconds`, because nobody reads at its other
// end.
inline UniqueFd lingering(int seconds) {
  auto [mine, other] = tcp_pair();
  // Kept open by this process until it ends.
  static std::vector<UniqueFd> others;
  others.push_back(std::move(other));
  ::fcntl(mine.get(), F_SETFL, O_NONBLOCK);
  static const std::vector<char> bytes(65'536);
  for (int quiet = 0; quiet < 3;)
    if (::write(mine.get(), bytes.data(), bytes.size()) < 0) {
      ++quiet;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  const linger wait{.l_onoff = 1, .l_linger = seconds};
  ::setsockopt(mine.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
  return std::move(mine);
}

}  // namespace farcall::test
