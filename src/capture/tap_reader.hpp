// SPDX-License-Identifier: Apache-2.0
//
// Reads the taps of a process (observe/tap.hpp) from outside, as they are written.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "capture/message.hpp"
#include "watch/memory.hpp"

namespace farcall::capture {

// Messages that refer to the bytes they were read into.
struct Batch {
  std::vector<std::byte> bytes;
  std::vector<Message> messages;
  std::size_t left = 0;  // messages that are still wanted
};

class TapReader {
 public:
  // Of a process, which tells of itself at `process`. `from_begin`: also what is in its
  // rings already; else that is not this capture's.
  TapReader(const watch::Owner& of, std::uint64_t process, bool from_begin);

  // Adds a batch for each ring in which something has come. False: the process has gone, or
  // executes another program.
  bool read(std::vector<std::unique_ptr<Batch>>& into);
  // Tells the process, which may wait for that, that what it has written before then has been read.
  void acknowledge(std::int64_t time) const;

  // Records that nobody could read any more.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_ + refused_ - refused_before_; }
  [[nodiscard]] std::uint64_t process() const noexcept { return process_; }

 private:
  struct Ring {
    std::uint64_t next = 0;    // position
    std::uint32_t number = 0;  // of the next record
  };
  struct Control {
    std::uint64_t bytes = 0;
    std::uint64_t refused = 0;
    std::array<std::uint64_t, observe::TapRings::kRings> tails{};
    std::array<std::uint32_t, observe::TapRings::kRings> records{};
  };
  bool find_rings();
  bool read_control(Control& into) const;
  bool read_ring(std::size_t index, std::uint64_t tail, Batch& into);
  bool read_data(std::size_t index, std::uint64_t from, std::uint64_t to,
                 std::vector<std::byte>& into) const;
  void parse(Ring& ring, Batch& into, std::uint64_t from, std::uint64_t valid_from,
             std::uint64_t to);

  watch::Owner of_;
  std::uint64_t process_;
  std::uint64_t rings_at_ = 0;  // 0: it has none yet
  std::uint64_t bytes_ = 0;     // of a ring
  std::array<Ring, observe::TapRings::kRings> rings_;
  std::uint64_t lost_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t refused_before_ = 0;
};

}  // namespace farcall::capture
