// SPDX-License-Identifier: Apache-2.0
//
// What other processes make this one hold, by user: descriptors, and bytes of memory. Everything
// that somebody else's request takes is charged here first, so that nobody can take it all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <utility>

namespace farcall::process {

// in_flight: descriptors that have been sent, and that nobody has taken yet. Of these the kernel
// lets a user have no more than a process may have descriptors, whichever of its processes sends
// them.
enum class Resource : unsigned char { descriptors, bytes, in_flight };

// Whoever may do as it likes with this process: its own user, where it is nobody else now, and
// root.
bool is_own(uid_t user) noexcept;

// How many descriptors this process may have.
std::size_t descriptor_table() noexcept;

// What one user who is neither this process's own nor root may hold, where nobody has said another.
inline constexpr std::size_t kBytesPerUser = std::size_t{256} << 20;

// Something held for a user, given back when it goes. Empty: nothing was granted.
class Charge {
 public:
  Charge() noexcept = default;
  // `most`: what one user who is neither this process's own nor root may hold; 0 means the default:
  // a quarter of the descriptor table, and as many in flight, 256 MiB. All of them together may
  // have half of the table, as many in flight, and four times the bytes; each the less, in
  // proportion, the more of that others have. This process's own user, and root, may have seven
  // eighths of the table, and bytes without limit.
  Charge(Resource resource, uid_t user, std::size_t amount, std::size_t most = 0) noexcept;
  // Of whom nothing is counted: bytes of the own user and of root.
  static Charge exempt() noexcept {
    Charge made;
    made.amount_ = 1;
    made.counted_ = false;
    return made;
  }
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept {
    if (this != &other) {
      give_back();
      resource_ = other.resource_;
      counted_ = other.counted_;
      own_ = other.own_;
      user_ = other.user_;
      generation_ = other.generation_;
      amount_ = std::exchange(other.amount_, 0);
    }
    return *this;
  }
  ~Charge() { give_back(); }

  explicit operator bool() const noexcept { return amount_ != 0; }

 private:
  void give_back() noexcept;

  Resource resource_{};
  bool counted_ = true;
  bool own_ = false;
  uid_t user_ = 0;
  unsigned long long generation_ = 0;
  std::size_t amount_ = 0;
};

}  // namespace farcall::process
