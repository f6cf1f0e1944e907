// SPDX-License-Identifier: Apache-2.0
//
// The inside of the checker: fibers, choices, and the states that have been seen.
#pragma once

#include <csetjmp>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "model/checker/checker.hpp"
#include "model/checker/kernel.hpp"
#include "model/checker/memory.hpp"

namespace farcall::model {

class Explorer {
 public:
  static Explorer& here() noexcept { return one_; }

  Result explore(const MakeScenario& make, const Options& options);

  [[nodiscard]] bool running() const noexcept { return current_ >= 0; }
  // Whether a scenario is being made, which must come out the same each time.
  [[nodiscard]] bool making() const noexcept { return making_; }
  [[nodiscard]] unsigned current() const noexcept { return static_cast<unsigned>(current_); }
  [[nodiscard]] std::size_t threads() const noexcept { return bodies_; }
  [[nodiscard]] const Options& options() const noexcept { return *options_; }
  Memory& memory() noexcept { return memory_; }
  Kernel& kernel() noexcept { return kernel_; }

  // Before an operation that may depend on what other threads do: any of them may come first.
  void step(const char* what, const std::source_location* where = nullptr);
  // A step that need not wait for anybody, see Explorer::is_early().
  void early_step(const char* what, const std::source_location* where);
  // Whether an operation may be run at once, before all that others do.
  [[nodiscard]] bool is_early(const void* word, bool stores) const noexcept;
  // What is learned of a word: who stores to it, and whether somebody sleeps on it.
  void learn_store(const void* word) { learn(word, 1U << current()); }
  void learn_sleep(const void* word) { learn(word, kSleptOn); }
  // Sleeps until `ready`. True: its deadline has come instead.
  bool block(const char* why, bool has_deadline, const std::function<bool()>& ready);
  void pause();
  void hold(const void* word) { held_.push_back(word); }
  [[nodiscard]] bool is_held(const void* word) const noexcept;
  std::memory_order pass(Kind kind, std::memory_order order, const std::source_location& where);
  void tell(std::uint64_t value) noexcept {
    if (!trace_.empty()) trace_.back().value = value;
  }
  // Whether the thread has paused in vain, and is to see what is newest.
  [[nodiscard]] bool sees_newest() const noexcept { return fibers_[current()].fresh; }
  void saw_something() noexcept { fibers_[current()].fresh = false; }

  unsigned choose(unsigned count);
  [[noreturn]] void fail(const std::string& what);

 private:
  enum class Status : std::uint8_t { ready, blocked, pausing, done };
  struct Fiber {
    std::unique_ptr<char[]> stack;
    std::jmp_buf base;
    std::jmp_buf resume;
    Status status = Status::done;
    bool fresh = false;
    bool in_vain = false;  // has paused, though it has seen what is newest
    bool has_deadline = false;
    bool timed_out = false;
    const char* why = "";
    const std::function<bool()>* ready = nullptr;
    std::uint64_t stores_seen = 0;
    struct Exceptions {
      void* caught = nullptr;
      unsigned uncaught = 0;
    } exceptions;
    std::source_location last;  // of the last operation, which tells fences apart
  };
  struct Choice {
    unsigned taken;
    unsigned count;
  };
  struct Option {
    unsigned thread;
    bool timeout;
    bool fresh = false;
  };
  struct Step {
    unsigned thread;
    const char* what;
    const char* file;
    unsigned line;
    std::uint64_t value;
  };
  enum : int { kMade = 1, kOver = 2, kGivenUp = 3, kFailed = 4, kAnew = 5 };
  static constexpr unsigned kSleptOn = 1U << 31;

  void make_fiber(Fiber& fiber);
  static void fiber_main();
  [[noreturn]] void leave(int how);
  int run(Scenario& scenario);
  int run_to_first_steps();
  void learn(const void* word, unsigned what);
  void reset();
  bool advance();
  // Where the next step is made; the calling thread goes on when it is chosen again.
  void reschedule();
  void list_options();
  [[nodiscard]] bool can_run(const Fiber& fiber) const;
  [[nodiscard]] std::uint64_t state() const;
  [[noreturn]] void stuck();
  void resume(unsigned thread);
  [[nodiscard]] std::string steps() const;

  static constexpr std::size_t kStack = 256 * 1024;
  static constexpr std::size_t kMostSteps = 4'000;

  static Explorer one_;

  Memory memory_;
  Kernel kernel_;
  std::array<Fiber, kMostThreads> fibers_;
  std::size_t bodies_ = 0;
  int current_ = -1;
  bool skip_step_ = false;
  bool making_ = false;    // a scenario
  bool starting_ = false;  // each thread runs until its first step
  std::jmp_buf main_;
  Scenario* scenario_ = nullptr;
  const Options* options_ = nullptr;
  std::vector<Choice> choices_;
  std::size_t depth_ = 0;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<Option> available_;
  std::vector<Step> trace_;
  std::vector<const void*> held_;
  std::unordered_map<std::uint32_t, unsigned> learned_;  // by the key of a word
  unsigned timeouts_left_ = 0;
  Result result_;
};

}  // namespace farcall::model
