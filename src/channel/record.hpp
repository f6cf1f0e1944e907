// SPDX-License-Identifier: Apache-2.0
//
// Ends of mechanisms that move whole messages, used as streams of bytes too: the reader keeps what
// a short read() has left of a message, the writer splits what is longer than a message can be.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "farcall/channel/end.hpp"

namespace farcall::channel {

class RecordReader : public Reader {
 protected:
  // `longest` message that the writer can send.
  explicit RecordReader(std::size_t longest) : longest_(longest) {}

  // Takes one message: its first bytes into `into`, the others into `spill`; what fits into
  // neither is lost. Returns its true length, std::nullopt at the end.
  virtual std::optional<std::size_t> take(std::span<std::byte> into,
                                          std::span<std::byte> spill) = 0;

  [[nodiscard]] std::size_t longest() const noexcept { return longest_; }

  std::size_t read_some(std::span<std::byte> into) final;
  std::optional<std::size_t> read_message(std::span<std::byte> into) final;
  int_type underflow() final;

 private:
  std::span<std::byte> spill();

  std::size_t longest_;
  std::vector<char> spill_;  // what read() left of a message; allocated when first needed
};

class RecordWriter : public Writer {
 public:
  [[nodiscard]] std::size_t max_message() const noexcept final { return longest_; }

 protected:
  // write() splits into messages of `piece` bytes.
  RecordWriter(std::size_t longest, std::size_t piece) : longest_(longest), piece_(piece) {}

  std::size_t write_some(std::span<const std::byte> bytes) final;

 private:
  std::size_t longest_;
  std::size_t piece_;
};

}  // namespace farcall::channel
