// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are free: each is one thread's at a time, which sees what the last one has left
// there.
#include "preload/free_list.hpp"

#include <array>
#include <memory>
#include <vector>

#include "model/mutation.hpp"

namespace farcall::model {
namespace {

using preload::FreeList;

struct Numbers : Scenario {
  static constexpr std::uint32_t kMost = 2;
  // With so many free, each of two threads takes one, and where it `keeps_none` puts it back.
  Numbers(std::uint32_t count, bool keeps_none) : free(count), expected(keeps_none ? count : 0) {
    share(&words, sizeof words);
    for (std::uint32_t i = 0; i < count; ++i) words.list.put(i);
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([this, keeps_none] {
        const std::uint32_t number = words.list.take();
        if (number == kMost) return;
        ++words.content[number];
        if (keeps_none) words.list.put(number);
      });
  }
  void finish() override {
    std::uint32_t left = 0;
    while (words.list.take() != kMost) require(++left <= expected, "a number is free twice");
    require(left == expected, "a number is lost");
    for (std::uint32_t i = 0; i < kMost && expected == 0; ++i)
      require(words.content[i] == (i < free ? 1 : 0), "a number was two threads'");
  }
  struct {
    FreeList<kMost> list;
    std::array<int, kMost> content;
  } words{};
  std::uint32_t free;
  std::uint32_t expected;
};

std::vector<Check> checks() {
  const auto check = [](const char* name, std::uint32_t count, bool keeps_none) {
    return Check{.name = name,
                 .make = [=] { return std::make_unique<Numbers>(count, keeps_none); },
                 .options = {}};
  };
  return {check("two take what there is", 2, false), check("two take, and put back", 2, true),
          check("two take the same", 1, true)};
}

TEST(ModelFreeList, ANumberIsOneThreadsAtATime) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelFreeList, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"preload/free_list.hpp"});
}

}  // namespace
}  // namespace farcall::model
