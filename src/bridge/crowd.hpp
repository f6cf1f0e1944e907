// SPDX-License-Identifier: Apache-2.0
//
// Whether more threads want to run than there are processors, lately. Then another one that is
// woken helps nobody: it waits for those that are at it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

namespace farcall::bridge {

class Crowd {
 public:
  Crowd() noexcept
      : fd_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)),
        processors_(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))) {}
  ~Crowd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // To be called often. Not counted is the thread that calls.
  void look() noexcept {
    std::array<char, 64> text;
    const ssize_t size = ::pread(fd_, text.data(), text.size(), 0);
    if (size <= 0) return;
    // 0.20 0.18 0.12 3/80 11206: three want to run, of 80
    const char* at = text.data();
    const char* const end = at + size;
    for (int word = 0; word < 3 && at != nullptr; ++word) {
      at = static_cast<const char*>(std::memchr(at, ' ', static_cast<std::size_t>(end - at)));
      if (at != nullptr) ++at;
    }
    int want = 0;
    if (at == nullptr || std::from_chars(at, end, want).ec != std::errc()) return;
    level_ += (16 * (want - 1) - level_) / 8;
    crowded_ = level_ > 16 * processors_;
  }
  [[nodiscard]] bool crowded() const noexcept { return crowded_; }

 private:
  const int fd_;
  const int processors_;
  int level_ = 0;  // sixteenths of a thread, smoothed
  std::atomic<bool> crowded_{false};
};

}  // namespace farcall::bridge
