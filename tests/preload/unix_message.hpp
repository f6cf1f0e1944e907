// SPDX-License-Identifier: Apache-2.0
//
// Messages of unix sockets, with the descriptors and credentials that come with them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

// One that can be told from all others.
inline UniqueFd new_file() { return UniqueFd(::memfd_create("passed", MFD_CLOEXEC)); }

inline ino_t number_of(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0) << std::strerror(errno);
  return status.st_ino;
}

inline ssize_t send_with(int socket, const std::string& text, const std::vector<int>& fds,
                         int flags = MSG_NOSIGNAL) {
  return test::send_with_descriptors(socket, std::as_bytes(std::span(text)), fds, flags);
}

// What a call returned, and what came with it.
struct Got {
  ssize_t result = 0;
  std::string text;
  std::vector<UniqueFd> fds;
  int flags = 0;
  bool has_credentials = false;
  ucred credentials{};
  std::string name;
};

// The name of an error stands in place of the text.
inline Got receive_all(int socket, std::size_t size = 4096, int flags = 0, std::size_t room = 512) {
  Got got;
  got.text.resize(size);
  sockaddr_un name{};
  test::AncillaryMessage message(got.text.data(), size, room);
  message.head().msg_name = &name;
  message.head().msg_namelen = sizeof name;
  got.result = message.receive(socket, flags);
  if (got.result < 0) {
    got.text = errno_name();
    return got;
  }
  // With MSG_TRUNC it is longer than what came.
  got.text.resize(std::min(size, static_cast<std::size_t>(got.result)));
  got.flags = message.head().msg_flags;
  if (const socklen_t length = message.head().msg_namelen; length > sizeof(sa_family_t))
    got.name.assign(name.sun_path, length - sizeof(sa_family_t));
  const auto credentials = message.find<ucred>(SOL_SOCKET, SCM_CREDENTIALS);
  got.has_credentials = credentials.has_value();
  if (credentials) got.credentials = *credentials;
  for (const int fd : message.descriptors()) got.fds.emplace_back(fd);
  return got;
}

// The same of a stream, whose end is told as such.
inline Got receive_with(int socket, std::size_t size = 4096, int flags = 0,
                        std::size_t room = 512) {
  Got got = receive_all(socket, size, flags, room);
  if (got.result == 0) got.text = "(end)";
  return got;
}

}  // namespace farcall::preload
