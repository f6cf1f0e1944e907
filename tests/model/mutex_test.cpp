// SPDX-License-Identifier: Apache-2.0
//
// The mutex that forked children find free: one thread at a time has it, who sleeps is woken, and
// of two threads of which each changes something and then looks at what the other changes one sees
// it.
#include <cstring>

#include "model/mutation.hpp"
#include "process/process_mutex.hpp"

namespace farcall::model {
namespace {

using process::ProcessMutex;

struct Words {
  ProcessMutex mutex;
  int protected_count = 0;
  std::atomic<int> said{0};
};

struct Mutex : Scenario {
  Mutex() { share(&words, sizeof words); }
  // An execution that is given up leaves it as it is.
  ~Mutex() override { std::memset(static_cast<void*>(&words), 0, sizeof words); }
  void count_inside() {
    words.mutex.lock();
    ++words.protected_count;
    words.mutex.unlock();
  }
  Words words;
};

struct TakeTurns : Mutex {
  explicit TakeTurns(int count) : all(count) {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { count_inside(); });
  }
  void finish() override { require(words.protected_count == all, "not one at a time"); }
  const int all;
};

struct IsTried : Mutex {
  IsTried() {
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([this] {
        if (!words.mutex.try_lock()) return;
        ++words.protected_count;
        words.mutex.unlock();
      });
  }
  void finish() override { require(words.protected_count != 0, "nobody got it"); }
};

// As who has answered a client and who begins to receive (src/message/shared_channel.cpp): the one
// lets go of its part and looks whether anybody receives, the other says so and then tries to get
// that part. If neither saw the other the client would wait for ever.
struct SeeEachOther : Mutex {
  SeeEachOther() {
    words.mutex.lock();
    threads.emplace_back([this] {
      words.mutex.unlock();
      one = words.said.load(std::memory_order_seq_cst) != 0;
    });
    threads.emplace_back([this] {
      words.said.fetch_add(1, std::memory_order_seq_cst);
      other = words.mutex.try_lock();
    });
  }
  void finish() override { require(one || other, "neither sees the other"); }
  bool one = false;
  bool other = false;
};

template <class Kind, class... Arguments>
Check check(const char* name, Arguments... arguments) {
  // relax() is part of a loop that ends anyhow, and goes on to sleep.
  return {.name = name,
          .make = [arguments...] { return std::make_unique<Kind>(arguments...); },
          .options = {.pauses_wait = false}};
}

std::vector<Check> checks() {
  return {
      check<TakeTurns>("two take turns", 2),
      check<IsTried>("two try"),
      check<SeeEachOther>("one lets go and looks, the other says and tries"),
  };
}

TEST(ModelMutex, OneThreadAtATimeHasItAndWhoSleepsIsWoken) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelMutex, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"process/process_mutex.hpp"});
}

}  // namespace
}  // namespace farcall::model
