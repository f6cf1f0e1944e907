// SPDX-License-Identifier: Apache-2.0
//
// Where a message goes that is longer than a session's slot: one sealed memory file that both
// sides have. It is written whole before the turn passes and read whole afterwards, so nobody ever
// waits for the other in the middle of a message. It is kept for the next one, and either side may
// put a larger one in its place.
//
// Who distrusts the other maps no more than kMostMapped: pages that are taken away again and again
// (FALLOC_FL_PUNCH_HOLE) cost whoever touches them a wait each. Larger memory is read and written
// by system call, which waits for nobody.
#pragma once

#include <cstddef>
#include <span>

#include "farcall/memory.hpp"
#include "process/ledger.hpp"
#include "process/private_mapping.hpp"
#include "process/process.hpp"

namespace farcall::call {

class TransferMemory {
 public:
  static constexpr std::size_t kLeast = std::size_t{64} * 1024;
  static constexpr std::size_t kMostMapped = std::size_t{1} << 20;
  // Larger memory serves one exchange and goes when its reply has been given or taken.
  static constexpr std::size_t kMostKept = std::size_t{32} << 20;

  TransferMemory() noexcept = default;
  // What create() makes for messages of `size` bytes; more for small ones, so that a message that
  // is a little longer does not need another.
  static std::size_t capacity_for(std::size_t size) noexcept;
  // For messages of `size` bytes at least. Throws SystemError.
  static TransferMemory create(std::size_t size, bool trusted);
  // What the other side has sent. Throws SystemError: EPERM and EPROTO for what is no such memory,
  // E2BIG where it is larger than `most`; then the descriptor stays the caller's.
  static TransferMemory adopt(UniqueFd&& fd, bool trusted, std::size_t most);

  // Of create(), until keep() is called: what is to be sent to the other side.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // It has been sent.
  void keep() noexcept {
    if (mapping_) fd_.reset();
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  // At most `capacity` bytes each, from `offset` on. False: there is no memory for that, or the
  // file has been made unfit for it, or larger than this process may write (errno is EFBIG).
  [[nodiscard]] bool write(std::span<const std::byte> data) noexcept;
  [[nodiscard]] bool read(std::span<std::byte> into, std::size_t offset = 0) const noexcept;
  void exchanged() noexcept {
    if (capacity_ > kMostKept) *this = {};
  }
  [[nodiscard]] bool made_here() const noexcept { return made_here_; }
  // Of create(), where the other side may keep it and is to read there no more: its pages are given
  // back.
  void discard() noexcept;

  Charge charge;  // for who keeps accounts

 private:
  std::size_t capacity_ = 0;
  bool made_here_ = false;
  PrivateMapping mapping_;  // or else, where it is not to be trusted or there is no room for it
  PrivateFd fd_;
  CopyToPeer copier_;
};

}  // namespace farcall::call
