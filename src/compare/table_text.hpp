// SPDX-License-Identifier: Apache-2.0
//
// What the tables of all workloads have in common.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "compare/colours.hpp"
#include "compare/result.hpp"

namespace farcall::compare {

class TableText {
 public:
  TableText(const Comparison& comparison, bool colours)
      : comparison_(comparison), colours_(colours) {}

 protected:
  void line(std::string_view colour, std::string_view text) {
    text_ += coloured_line(colours_, colour, text);
  }

  // The results of a block: those that failed last, the others by what is to rise.
  template <class Wanted, class Rising>
  [[nodiscard]] std::vector<const Result*> chosen(Wanted wanted, Rising rising) const {
    std::vector<const Result*> rows;
    for (const Result& result : comparison_.results)
      if (wanted(result)) rows.push_back(&result);
    std::stable_sort(rows.begin(), rows.end(), [&](const Result* a, const Result* b) {
      if (a->error.empty() != b->error.empty()) return a->error.empty();
      return rising(*a) < rising(*b);
    });
    return rows;
  }

  const Comparison& comparison_;
  const bool colours_;
  std::string text_;
};

}  // namespace farcall::compare
