// SPDX-License-Identifier: Apache-2.0
//
// Memory that all calls of one direction may hold together, so that no peer makes a bridge run out
// of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace farcall::bridge {

class Budget {
 public:
  explicit Budget(std::uint64_t bytes) noexcept : most_(bytes) {}

  // What one call holds of it.
  class Share {
   public:
    Share() noexcept = default;
    Share(Share&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { give_back(); }

    // So much more. False: that would be too much of it all.
    [[nodiscard]] bool take(Budget& of, std::uint64_t bytes) noexcept {
      if (of.held_.fetch_add(bytes) + bytes > of.most_) {
        of.held_ -= bytes;
        return false;
      }
      of_ = &of;
      bytes_ += bytes;
      return true;
    }
    void give_back() noexcept {
      if (of_ != nullptr) of_->held_ -= std::exchange(bytes_, 0);
    }

   private:
    Budget* of_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  [[nodiscard]] std::uint64_t most() const noexcept { return most_; }

 private:
  const std::uint64_t most_;
  std::atomic<std::uint64_t> held_{0};
};

}  // namespace farcall::bridge
