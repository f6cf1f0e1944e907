// SPDX-License-Identifier: Apache-2.0
//
// Several messages with one call.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace farcall::preload {

class Several {
 public:
  Several(std::size_t count, std::size_t room) : texts_(count, std::string(room, '.')) {
    parts_.resize(count);
    messages_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      parts_[i] = {.iov_base = texts_[i].data(), .iov_len = room};
      messages_[i].msg_hdr.msg_iov = &parts_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  Several(const Several&) = delete;
  Several& operator=(const Several&) = delete;

  int receive(int fd, int flags = 0, timespec* limit = nullptr) {
    return ::recvmmsg(fd, messages_.data(), count(), flags, limit);
  }
  int send(int fd, int flags = 0) { return ::sendmmsg(fd, messages_.data(), count(), flags); }
  [[nodiscard]] std::string text(std::size_t i) const {
    return texts_[i].substr(0, messages_[i].msg_len);
  }
  [[nodiscard]] msghdr& head(std::size_t i) { return messages_[i].msg_hdr; }

 private:
  [[nodiscard]] unsigned count() const { return static_cast<unsigned>(messages_.size()); }

  std::vector<std::string> texts_;
  std::vector<iovec> parts_;
  std::vector<mmsghdr> messages_;
};

inline std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}
inline std::int64_t now_in_nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return nanoseconds(now);
}

// One message is there. Of its time limit no more is gone afterwards than has passed.
inline void expect_the_limit_to_be_told(int fd) {
  Several one(1, 1);
  timespec limit{.tv_sec = 60, .tv_nsec = 999'999'999};
  const std::int64_t before = nanoseconds(limit);
  const std::int64_t began = now_in_nanoseconds();
  ASSERT_EQ(one.receive(fd, 0, &limit), 1);
  EXPECT_LE(before - nanoseconds(limit), now_in_nanoseconds() - began);
  EXPECT_LE(nanoseconds(limit), before);
}

}  // namespace farcall::preload
