// SPDX-License-Identifier: Apache-2.0
//
// Reads the tap of a process (observe/tap.hpp) from outside, as it is written.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "capture/message.hpp"

namespace farcall::capture {

// Messages that refer to the bytes they were read into.
struct Batch {
  std::vector<std::byte> bytes;
  std::vector<Message> messages;
  std::size_t left = 0;  // messages that are still wanted
};

class TapReader {
 public:
  // Of the process `pid`, which tells of itself at `process`. What is in its ring already is not
  // this capture's; the caller holds the rights that it takes to look.
  TapReader(pid_t pid, std::uint64_t process);

  enum class Result : std::uint8_t { nothing, some, gone };
  // Holds the rights that it takes. What comes is added to `into`, if there is any.
  Result read(Batch& into);

  // Records that were written over before they were read.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }
  [[nodiscard]] std::uint64_t process() const noexcept { return process_; }

 private:
  struct Control {
    std::uint64_t bytes;
    std::uint64_t tail;
    std::uint64_t records;
  };
  bool find_ring();
  bool read_control(Control& into) const;
  bool read_data(std::uint64_t from, std::uint64_t to, std::vector<std::byte>& into) const;
  void parse(Batch& into, std::uint64_t from, std::uint64_t valid_from, std::uint64_t to);
  [[nodiscard]] bool wait_for_writer(std::uint64_t position, std::uint64_t tail);

  pid_t pid_;
  std::uint64_t process_;
  std::uint64_t ring_ = 0;  // 0: it has none yet
  std::uint64_t ring_bytes_ = 0;
  std::uint64_t next_ = 0;     // position
  std::uint64_t records_ = 0;  // before the first one that is to be read
  std::uint64_t taken_ = 0;
  std::uint64_t lost_ = 0;
  std::int64_t stuck_since_ = 0;  // at next_, without its stamp; 0: not
  bool skipped_ = false;          // something, ever
};

}  // namespace farcall::capture
