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
  // `Alone::may`: who has it alone may take more, so that nothing is too long for ever.
  enum class Alone { may_not, may };
  explicit Budget(std::uint64_t bytes, Alone alone = Alone::may_not) noexcept
      : most_(bytes), alone_(alone) {}

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
      const std::uint64_t before = of.held_.fetch_add(bytes);
      if (before + bytes > of.most_ && (before != 0 || of.alone_ == Alone::may_not)) {
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
  const Alone alone_;
  std::atomic<std::uint64_t> held_{0};
};

// What has been promised, or is on its way, is held while it travels in pieces: by whoever says so,
// for as long as it likes within the bounds. So it has three quarters of what there is, and one
// name half of that: what comes whole finds room at any time.
class PiecesBudget : public Budget {
 public:
  explicit PiecesBudget(std::uint64_t of_bytes) noexcept : Budget(of_bytes / 4 * 3, Alone::may) {}
};
class NamePiecesBudget : public Budget {
 public:
  explicit NamePiecesBudget(std::uint64_t of_bytes) noexcept
      : Budget(of_bytes / 8 * 3, Alone::may) {}
};

// What one call holds for what travels in pieces.
class PiecesShare {
 public:
  [[nodiscard]] bool take(Budget& of_name, PiecesBudget& of_pieces, Budget& of_all,
                          std::uint64_t bytes) noexcept {
    return of_name_.take(of_name, bytes) && of_pieces_.take(of_pieces, bytes) &&
           of_all_.take(of_all, bytes);
  }
  void give_back() noexcept {
    for (Budget::Share* const each : {&of_name_, &of_pieces_, &of_all_}) each->give_back();
  }

 private:
  Budget::Share of_name_;
  Budget::Share of_pieces_;
  Budget::Share of_all_;
};

}  // namespace farcall::bridge
