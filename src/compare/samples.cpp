// SPDX-License-Identifier: Apache-2.0
#include "compare/samples.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace farcall::compare {
namespace {

// The least sample that at least `fraction` of all samples do not exceed.
double nearest_rank(std::span<const float> sorted, double fraction) noexcept {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(sorted.size()));
  return static_cast<double>(sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1]);
}

}  // namespace

void Samples::add_round(std::span<const float> samples) {
  if (samples.empty()) return;
  const auto before = static_cast<std::ptrdiff_t>(sorted_.size());
  sorted_.insert(sorted_.end(), samples.begin(), samples.end());
  const auto added = sorted_.begin() + before;
  std::sort(added, sorted_.end());
  medians_.push_back(nearest_rank({added, sorted_.end()}, 0.5));
  std::inplace_merge(sorted_.begin(), added, sorted_.end());
  sum_ = std::accumulate(samples.begin(), samples.end(), sum_);
}

double Samples::p50() const noexcept { return nearest_rank(sorted_, 0.5); }

Percentiles Samples::percentiles() const noexcept {
  if (sorted_.empty()) return {};
  return {.mean = sum_ / static_cast<double>(sorted_.size()),
          .p50 = p50(),
          .p90 = nearest_rank(sorted_, 0.9),
          .p99 = nearest_rank(sorted_, 0.99),
          .p999 = nearest_rank(sorted_, 0.999),
          .max = static_cast<double>(sorted_.back())};
}

double Samples::least_median() const noexcept {
  return medians_.empty() ? 0 : *std::min_element(medians_.begin(), medians_.end());
}

double Samples::greatest_median() const noexcept {
  return medians_.empty() ? 0 : *std::max_element(medians_.begin(), medians_.end());
}

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>((samples.size() - 1) / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace farcall::compare
