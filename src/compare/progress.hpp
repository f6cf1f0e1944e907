// SPDX-License-Identifier: Apache-2.0
//
// How far a comparison is, on stderr: one line that changes on a terminal, a line now and then
// elsewhere.
#pragma once

#include <cstdint>
#include <string_view>

namespace farcall::compare {

class Progress {
 public:
  // `expected_ns` is the estimate for all of the work.
  explicit Progress(std::int64_t expected_ns);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // clears the line

  // `work_ns` of the estimate begins now.
  void step(std::int64_t work_ns, std::string_view what);
  // A line that stays.
  void note(std::string_view text);

 private:
  void clear() const;

  bool terminal_;
  std::int64_t expected_ns_;
  std::int64_t done_ns_ = 0;
  std::int64_t current_ns_ = 0;
  std::int64_t begin_;
  std::int64_t last_line_;
};

}  // namespace farcall::compare
