// SPDX-License-Identifier: Apache-2.0
//
// The files in which the kernel tells of itself: /proc and /sys, or copies of them below another
// directory, for tests. A file that is not there, may not be read or ends meanwhile is no error: it
// says nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/to_number.hpp"

namespace farcall::doctor {

class Tree {
 public:
  explicit Tree(std::string root = {}) : root_(std::move(root)) {}

  // Paths begin with a slash.
  [[nodiscard]] std::string place(std::string_view path) const { return root_ + std::string(path); }
  [[nodiscard]] std::optional<std::string> text(std::string_view path) const;
  // /proc/PID/maps or environ, which the kernel reads from the memory of a process: one that means
  // ill can keep who reads there waiting for ever, unless it is read by somebody who knows that.
  [[nodiscard]] std::optional<std::string> memory_text(std::string_view pid,
                                                       std::string_view file) const;
  using MemoryReader = std::optional<std::string> (*)(pid_t pid, std::string_view file);
  void read_memory_by(MemoryReader reader) { memory_reader_ = reader; }
  [[nodiscard]] std::string line(std::string_view path) const;  // the first one; or empty
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view path) const;
  [[nodiscard]] std::vector<std::string> names(std::string_view directory) const;  // sorted
  [[nodiscard]] std::string link(std::string_view path) const;  // where it leads; or empty
  [[nodiscard]] bool exists(std::string_view path) const;

 private:
  std::string root_;
  MemoryReader memory_reader_ = nullptr;
};

using farcall::to_number;

// "0-3,8" as its numbers; at most 4096 of them.
std::vector<unsigned> to_list(std::string_view text);

// Of lines "Name: value" that of `name`, without blanks around it; or empty.
std::string field(std::string_view text, std::string_view name);

// The words between blanks.
std::vector<std::string_view> words(std::string_view text);
std::vector<std::string_view> lines(std::string_view text);

}  // namespace farcall::doctor
