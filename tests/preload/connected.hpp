// SPDX-License-Identifier: Apache-2.0
//
// A connection to a child, which does something with its end, and a stream of bytes of which each
// place is known.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "farcall/memory.hpp"
#include "harness/forked.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

inline char byte_at(std::size_t offset) {
  return static_cast<char>(offset * 0x9E3779B97F4A7C15 >> 56);
}

inline std::string bytes_at(std::size_t offset, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = byte_at(offset + i);
  return text;
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "in a child: %s: %s\n", what, std::strerror(errno));
  ::_exit(1);
}

// A user who may look into no process that does not let it, as root may; nor does this one let
// others.
inline void become_anybody() {
  constexpr uid_t kAnybody = 4711;
  if (::geteuid() == 0) require(::setresuid(kAnybody, kAnybody, kAnybody) == 0, "become anybody");
  ::prctl(PR_SET_DUMPABLE, 0);
}

using Child = test::Forked;

// A connection to a child that does `work` with the other end. Both have waited for each other
// often, so that memory is what they use.
struct Connected {
  UniqueFd fd;
  std::unique_ptr<Child> child;
};

inline void wait_for_each_other(int end, bool first) {
  for (int i = 0; i < 60; ++i) {
    char byte = 'x';
    if (first) require(::send(end, &byte, 1, MSG_NOSIGNAL) == 1, "send");
    require(::recv(end, &byte, 1, 0) == 1, "recv");
    if (!first) require(::send(end, &byte, 1, MSG_NOSIGNAL) == 1, "send");
  }
}

inline constexpr char kMore = 'm';
inline constexpr char kBegin = 'b';

inline Connected with_child(const std::function<void(int)>& work) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const int before = stream_mappings();
  Connected made;
  made.child = std::make_unique<Child>([&] {
    const int peer = ::accept(listener.get(), nullptr, nullptr);
    char next = kMore;
    while (next == kMore) {
      wait_for_each_other(peer, false);
      require(::recv(peer, &next, 1, 0) == 1, "recv");
      require(::send(peer, &next, 1, MSG_NOSIGNAL) == 1, "send");
    }
    work(peer);
  });
  made.fd = UniqueFd(::socket(stream_family(), socket_type(), 0));  // children keep it
  EXPECT_EQ(::connect(made.fd.get(), address.get(), address.size), 0);
  // The two find each other where neither has bytes under way, which on a busy machine takes
  // longer.
  char next = kMore;
  for (int i = 0; next == kMore; ++i) {
    wait_for_each_other(made.fd.get(), true);
    if (!preloaded() || stream_mappings() != before || i == 2) next = kBegin;
    require(::send(made.fd.get(), &next, 1, MSG_NOSIGNAL) == 1, "send");
    require(::recv(made.fd.get(), &next, 1, 0) == 1, "recv");
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), before + 1) << "not accelerated";
  }
  return made;
}

// Sends the stream's bytes from `from` up to `to`, in pieces.
inline void send_stream(int fd, std::size_t from, std::size_t to, std::size_t piece) {
  while (from < to) {
    const std::string text = bytes_at(from, std::min(piece, to - from));
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    require(sent > 0, "send the stream");
    from += static_cast<std::size_t>(sent);
  }
}

// Expects the bytes up to `to`; returns how far it came.
inline std::size_t expect_stream(int fd, std::size_t from, std::size_t to) {
  std::string text(65'536, '\0');
  while (from < to) {
    const ssize_t got = ::read(fd, text.data(), std::min(text.size(), to - from));
    if (got <= 0) {
      ADD_FAILURE() << "at " << from << ": " << (got == 0 ? "the end" : std::strerror(errno));
      break;
    }
    const auto size = static_cast<std::size_t>(got);
    if (text.compare(0, size, bytes_at(from, size)) != 0) {
      ADD_FAILURE() << "wrong bytes behind " << from;
      break;
    }
    from += size;
  }
  return from;
}

}  // namespace farcall::preload
