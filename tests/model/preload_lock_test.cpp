// SPDX-License-Identifier: Apache-2.0
//
// The lock of what is shared between processes: one at a time has it, and sees what the last one
// has left.
#include <memory>
#include <vector>

#include "model/mutation.hpp"
#include "preload/lock.hpp"

namespace farcall::preload {

// No signal comes here.
namespace detail {
thread_local constinit Section section{};
void deliver() noexcept {}
}  // namespace detail

// What the one who waits looks at is the kernel's: here whoever finds it taken goes away.
bool Lock::lock_slowly() noexcept { return false; }

}  // namespace farcall::preload

namespace farcall::model {
namespace {

struct Words {
  preload::Lock lock;
  int protected_count = 0;
};

struct Locked : Scenario {
  Locked() {
    preload::known_thread = 1;
    share(&words, sizeof words);
  }
  Words words;
};

template <bool (preload::Lock::*Take)() noexcept>
struct IsTaken : Locked {
  IsTaken() {
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([this] {
        if (!(words.lock.*Take)()) return;
        ++words.protected_count;
        words.lock.unlock();
      });
  }
  void finish() override { require(words.protected_count != 0, "nobody got it"); }
};

template <bool (preload::Lock::*Take)() noexcept>
Check check(const char* name) {
  return {.name = name, .make = [] { return std::make_unique<IsTaken<Take>>(); }, .options = {}};
}

std::vector<Check> checks() {
  return {check<&preload::Lock::lock>("two lock"), check<&preload::Lock::try_lock>("two try")};
}

TEST(ModelPreloadLock, OneAtATimeHasIt) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelPreloadLock, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"preload/lock.hpp"});
}

}  // namespace
}  // namespace farcall::model
