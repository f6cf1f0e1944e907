// SPDX-License-Identifier: Apache-2.0
//
// Percentiles of real samples: nothing is put into buckets, smoothed or left out.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace farcall::compare {

struct Percentiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};

// The samples of one row, over all rounds, in nanoseconds.
class Samples {
 public:
  // One round's samples.
  void add_round(std::span<const float> samples);

  [[nodiscard]] std::size_t rounds() const noexcept { return medians_.size(); }
  [[nodiscard]] std::size_t count() const noexcept { return sorted_.size(); }
  [[nodiscard]] Percentiles percentiles() const noexcept;
  [[nodiscard]] double p50() const noexcept;
  // The least and the greatest of the rounds' medians; 0 without rounds.
  [[nodiscard]] double least_median() const noexcept;
  [[nodiscard]] double greatest_median() const noexcept;

 private:
  std::vector<float> sorted_;
  std::vector<double> medians_;
  double sum_ = 0;
};

// The middle one (of two, the lower); 0 if there are none.
double median(std::vector<double> samples);

}  // namespace farcall::compare
