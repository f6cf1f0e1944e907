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
#include <string>
#include <vector>

#include "farcall/memory.hpp"
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
  iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(socket, &message, flags);
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
  iovec part{.iov_base = got.text.data(), .iov_len = size};
  std::vector<char> control(room);
  sockaddr_un name{};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room == 0 ? nullptr : control.data();
  message.msg_controllen = room;
  got.result = ::recvmsg(socket, &message, flags);
  if (got.result < 0) {
    got.text = errno_name();
    return got;
  }
  // With MSG_TRUNC it is longer than what came.
  got.text.resize(std::min(size, static_cast<std::size_t>(got.result)));
  got.flags = message.msg_flags;
  if (message.msg_namelen > sizeof(sa_family_t))
    got.name.assign(name.sun_path, message.msg_namelen - sizeof(sa_family_t));
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET) continue;
    if (head->cmsg_type == SCM_CREDENTIALS) {
      got.has_credentials = true;
      std::memcpy(&got.credentials, CMSG_DATA(head), sizeof got.credentials);
    }
    if (head->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> fds((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(head), fds.size() * sizeof(int));
    for (const int fd : fds) got.fds.emplace_back(fd);
  }
  return got;
}

}  // namespace farcall::preload
