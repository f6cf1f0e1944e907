// SPDX-License-Identifier: Apache-2.0
//
// Whether each memory order and each fence is needed: every one that is passed is weakened, one at
// a time, and some scenario must then go wrong. What may be weaker should be, or an excuse says why
// it stays as it is.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "model/checker/checker.hpp"

namespace farcall::model {

struct Check {
  const char* name;
  MakeScenario make;
  Options options;
  bool large = false;  // of orders that are excused it is not asked again
};

// An order that no scenario needs. It is found by the function that it stands in, or that a fence
// follows an operation of; where not all of that function is meant, by a word of the line, too. An
// excuse that nothing needs is an error.
struct Excuse {
  std::string_view function;   // with its class
  std::string_view weaker;     // as in "acquire to relaxed"
  std::string_view because;    // for who reads the test
  std::string_view line = {};  // part of it
};

// Runs the checks as they are, and then with each operation of `files` weakened.
void expect_every_order_matters(const std::vector<Check>& checks,
                                std::initializer_list<std::string_view> files,
                                const std::vector<Excuse>& excuses = {});

// The same for membarrier(2): without it one of the checks goes wrong.
void expect_heavy_fences_matter(const std::vector<Check>& checks);

// Runs one check; its failure is the test's.
Result expect_right(const Check& check);

// Larger bounds, for the soak: FARCALL_MODEL_SOAK=1.
bool soaking();

}  // namespace farcall::model
