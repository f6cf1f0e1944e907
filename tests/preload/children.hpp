// SPDX-License-Identifier: Apache-2.0
//
// For tests that fork, and pass descriptors.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "farcall/memory.hpp"

namespace farcall::preload {

template <class Work>
pid_t in_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    work();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

// Of a child that was killed 1000 and the signal.
inline int exit_status(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// The status of a child that exits with 0 if `check` holds.
template <class Check>
int outcome_in_child(Check check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// A byte with room for a descriptor.
class DescriptorMessage {
 public:
  DescriptorMessage() = default;
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  // By a unix socket.
  void send(int by, int fd) {
    cmsghdr* const head = CMSG_FIRSTHDR(&message_);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    ASSERT_EQ(::sendmsg(by, &message_, 0), 1);
  }
  // -1 if none came.
  UniqueFd receive(int by) {
    int fd = -1;
    EXPECT_EQ(::recvmsg(by, &message_, MSG_CMSG_CLOEXEC), 1);
    const cmsghdr* const head = CMSG_FIRSTHDR(&message_);
    if (head != nullptr) std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return UniqueFd(fd);
  }

 private:
  char byte_ = 'x';
  iovec part_{.iov_base = &byte_, .iov_len = 1};
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
  msghdr message_{.msg_name = nullptr,
                  .msg_namelen = 0,
                  .msg_iov = &part_,
                  .msg_iovlen = 1,
                  .msg_control = control_,
                  .msg_controllen = sizeof control_,
                  .msg_flags = 0};
};

}  // namespace farcall::preload
