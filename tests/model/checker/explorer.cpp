// SPDX-License-Identifier: Apache-2.0
#include "model/checker/explorer.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

// What the runtime of C++ keeps for each thread of the exceptions that it handles.
namespace __cxxabiv1 {
struct __cxa_eh_globals;
extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept;
}  // namespace __cxxabiv1

namespace farcall::model {
namespace {

std::string base_name(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// A file's name from the root of the project on: compilers may be told one file by several paths.
std::string_view in_project(std::string_view path) {
  std::size_t last = 0;
  for (const std::string_view root : {"/include/farcall/", "/src/", "/tests/"})
    if (const auto at = path.rfind(root); at != std::string_view::npos)
      last = std::max(last, at + 1);
  return path.substr(last);
}

Place place_of(const std::source_location& where) {
  return {.file = std::string(in_project(where.file_name())),
          .line = where.line(),
          .column = where.column(),
          .function = where.function_name()};
}

bool is_at(const Place& place, const std::source_location& where) {
  return place.line == where.line() && place.column == where.column() &&
         place.file == in_project(where.file_name());
}

unsigned starting;  // the fiber that is being made

constexpr const char* kNotTheSame = "the scenario is not the same each time";

}  // namespace

Explorer Explorer::one_;

// --- Fibers

// A fiber is entered once; afterwards each execution begins at `base` and leaves its stack as it
// is.
void Explorer::fiber_main() {
  Explorer& self = here();
  const unsigned mine = starting;
  if (_setjmp(self.fibers_[mine].base) == 0) _longjmp(self.main_, kMade);
  const auto thread = static_cast<unsigned>(self.current_);
  self.scenario_->threads[thread]();
  self.fibers_[thread].status = Status::done;
  self.reschedule();
  std::abort();  // nobody runs what is done
}

void Explorer::make_fiber(Fiber& fiber) {
  fiber.stack = std::make_unique<char[]>(kStack);
  starting = static_cast<unsigned>(&fiber - fibers_.data());
  static ucontext_t context;
  static ucontext_t unused;
  ::getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  ::makecontext(&context, fiber_main, 0);
  if (_setjmp(main_) == 0) ::swapcontext(&unused, &context);
}

void Explorer::leave(int how) {
  current_ = -1;
  _longjmp(main_, how);
}

void Explorer::resume(unsigned thread) {
  auto* const exceptions = reinterpret_cast<Fiber::Exceptions*>(__cxxabiv1::__cxa_get_globals());
  if (current_ >= 0) {
    Fiber& mine = fibers_[current()];
    mine.exceptions = *exceptions;
    if (mine.status != Status::done && _setjmp(mine.resume) != 0) return;
  }
  current_ = static_cast<int>(thread);
  *exceptions = fibers_[thread].exceptions;
  _longjmp(fibers_[thread].resume, 1);
}

int Explorer::run(Scenario& scenario) {
  scenario_ = &scenario;
  bodies_ = scenario.threads.size();
  if (bodies_ > kMostThreads) std::abort();
  for (unsigned i = 0; i < bodies_; ++i) {
    Fiber& fiber = fibers_[i];
    if (!fiber.stack) make_fiber(fiber);
    fiber.status = Status::ready;
    fiber.fresh = fiber.in_vain = fiber.timed_out = fiber.has_deadline = false;
    fiber.exceptions = {};
    fiber.last = {};
    std::memcpy(&fiber.resume, &fiber.base, sizeof fiber.base);
  }
  if (const int early = run_to_first_steps(); early != kMade) return early;
  const int how = _setjmp(main_);
  if (how == 0) reschedule();
  current_ = -1;
  *reinterpret_cast<Fiber::Exceptions*>(__cxxabiv1::__cxa_get_globals()) = {};
  return how;
}

int Explorer::run_to_first_steps() {
  starting_ = true;
  static unsigned next;  // what changes between setjmp and longjmp
  int how = kMade;
  for (next = 0; next < bodies_ && how == kMade; ++next) {
    how = _setjmp(main_);
    if (how == 0) resume(next);
  }
  starting_ = false;
  return how;
}

// --- Choices

unsigned Explorer::choose(unsigned count) {
  if (count == 1) return 0;
  if (depth_ == choices_.size()) choices_.push_back({.taken = 0, .count = count});
  const Choice& choice = choices_[depth_++];
  if (choice.count != count) fail(kNotTheSame);
  return choice.taken;
}

// To the next execution: the last choice that has not been made in all ways is made anew.
bool Explorer::advance() {
  while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().count)
    choices_.pop_back();
  if (choices_.empty()) return false;
  ++choices_.back().taken;
  return true;
}

void Explorer::reset() {
  memory_.reset();
  kernel_.reset();
  held_.clear();
  trace_.clear();
  depth_ = 0;
  skip_step_ = false;
  timeouts_left_ = options_->timeouts;
}

Result Explorer::explore(const MakeScenario& make, const Options& options) {
  options_ = &options;
  result_ = {};
  choices_.clear();
  seen_.clear();
  learned_.clear();
  bool more = true;
  do {
    reset();
    making_ = true;
    const std::unique_ptr<Scenario> scenario = make();
    making_ = false;
    ++result_.executions;
    int how = run(*scenario);
    if (how == kOver) {
      how = _setjmp(main_);
      if (how == 0) scenario->finish();
    }
    if (how == kFailed) return result_;
    if (how == kAnew) {
      choices_.clear();
      seen_.clear();
      more = true;
      continue;
    }
    // All of them but the last have been made before.
    if (depth_ != choices_.size()) {
      result_.failure = kNotTheSame;
      return result_;
    }
    if (seen_.size() > options.most_states) return result_;
    more = advance();
  } while (more);
  result_.complete = true;
  return result_;
}

bool Explorer::can_run(const Fiber& fiber) const {
  switch (fiber.status) {
    case Status::ready: return true;
    case Status::blocked: return (*fiber.ready)();
    case Status::pausing:
      return memory_.stores_of_others(static_cast<unsigned>(&fiber - fibers_.data())) !=
             fiber.stores_seen;
    case Status::done: break;
  }
  return false;
}

void Explorer::list_options() {
  available_.clear();
  const auto first = static_cast<unsigned>(std::max(current_, 0));
  for (unsigned i = 0; i < bodies_; ++i) {
    const unsigned thread = (first + i) % static_cast<unsigned>(bodies_);
    if (can_run(fibers_[thread])) available_.push_back({.thread = thread, .timeout = false});
  }
  if (!available_.empty()) {
    // A sleep that only its deadline would end is one that nobody has ended.
    if (timeouts_left_ == 0) return;
    for (unsigned i = 0; i < bodies_; ++i)
      if (fibers_[i].status == Status::blocked && fibers_[i].has_deadline && !can_run(fibers_[i]))
        available_.push_back({.thread = i, .timeout = true});
    return;
  }
  // What has been stored is seen by whoever looks, in the end.
  for (unsigned i = 0; i < bodies_; ++i) {
    if (fibers_[i].status != Status::pausing || fibers_[i].in_vain) continue;
    available_.push_back({.thread = i, .timeout = false, .fresh = true});
  }
}

std::uint64_t Explorer::state() const {
  std::uint64_t all = mix(memory_.hash(), kernel_.hash());
  all = mix(all, timeouts_left_);
  for (unsigned i = 0; i < bodies_; ++i) {
    const Fiber& fiber = fibers_[i];
    all = mix(all, static_cast<std::uint64_t>(fiber.status) << 3 |
                       static_cast<std::uint64_t>(fiber.fresh) << 2 |
                       static_cast<std::uint64_t>(fiber.in_vain) << 1 |
                       static_cast<std::uint64_t>(can_run(fiber)));
  }
  return all;
}

void Explorer::reschedule() {
  if (starting_) {
    Fiber& mine = fibers_[current()];
    if (mine.status == Status::done || _setjmp(mine.resume) == 0) leave(kMade);
    return;
  }
  list_options();
  if (available_.empty()) {
    if (std::ranges::any_of(fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(bodies_),
                            [](const Fiber& fiber) { return fiber.status != Status::done; }))
      stuck();
    leave(kOver);
  }
  if (depth_ == choices_.size()) {
    if (!seen_.insert(state()).second) leave(kGivenUp);
    result_.states = seen_.size();
  }
  const Option next = available_[choose(static_cast<unsigned>(available_.size()))];
  Fiber& fiber = fibers_[next.thread];
  if (next.timeout) {
    --timeouts_left_;
    fiber.timed_out = true;
    memory_.note(next.thread, 9);
  }
  fiber.status = Status::ready;
  fiber.fresh |= next.fresh;
  if (static_cast<int>(next.thread) == current_) return;
  resume(next.thread);
}

// --- Steps

// A store that is made earlier than in some other order of steps permits all that came of that one:
// whoever reads may still read what is older, and whoever stores may still come before it. Not so
// where the kernel looks at the newest value, or fences reach a thread wherever it is. And a load
// is as good now as later, if nobody else ever stores there. What is believed of a word is learned:
// an execution that shows otherwise makes all begin anew.
bool Explorer::is_early(const void* word, bool stores) const noexcept {
  if (options_->fences_reach_all) return false;
  const auto found = learned_.find(memory_.key_of(word));
  const unsigned known = found == learned_.end() ? 0 : found->second;
  if (stores) return (known & kSleptOn) == 0;
  return (known & ~kSleptOn & ~(1U << current())) == 0;
}

void Explorer::learn(const void* word, unsigned what) {
  unsigned& known = learned_[memory_.key_of(word)];
  if ((known & what) == what) return;
  known |= what;
  if (!options_->fences_reach_all) leave(kAnew);
}

void Explorer::early_step(const char* what, const std::source_location* where) {
  if (trace_.size() >= kMostSteps) fail("it does not end");
  trace_.push_back({.thread = current(),
                    .what = what,
                    .file = where->file_name(),
                    .line = where->line(),
                    .value = 0});
}

void Explorer::step(const char* what, const std::source_location* where) {
  if (trace_.size() >= kMostSteps) fail("it does not end");
  if (!std::exchange(skip_step_, false)) reschedule();
  trace_.push_back({.thread = current(),
                    .what = what,
                    .file = where == nullptr ? "" : where->file_name(),
                    .line = where == nullptr ? 0 : where->line(),
                    .value = 0});
}

bool Explorer::block(const char* why, bool has_deadline, const std::function<bool()>& ready) {
  Fiber& mine = fibers_[current()];
  mine.status = Status::blocked;
  mine.why = why;
  mine.ready = &ready;
  mine.has_deadline = has_deadline;
  mine.timed_out = false;
  reschedule();
  return mine.timed_out;
}

void Explorer::pause() {
  if (!options_->pauses_wait) {
    skip_step_ = true;
    return;
  }
  Fiber& mine = fibers_[current()];
  mine.in_vain = mine.fresh && memory_.stores_of_others(current()) == mine.stores_seen;
  mine.fresh = false;
  mine.status = Status::pausing;
  mine.why = "spins for ever";
  mine.stores_seen = memory_.stores_of_others(current());
  reschedule();
}

bool Explorer::is_held(const void* word) const noexcept {
  return std::ranges::find(held_, word) != held_.end();
}

std::memory_order Explorer::pass(Kind kind, std::memory_order order,
                                 const std::source_location& where) {
  std::source_location& last = fibers_[current()].last;
  const std::source_location behind = kind == Kind::fence ? last : std::source_location();
  const Mutation* const mutation = options_->mutation;
  if (options_->sites != nullptr)
    options_->sites->insert(
        {.at = place_of(where), .kind = kind, .order = order, .behind = place_of(behind)});
  const bool mutated = mutation != nullptr && mutation->site.kind == kind &&
                       mutation->site.order == order && is_at(mutation->site.at, where) &&
                       is_at(mutation->site.behind, behind);
  if (mutated) return mutation->to;
  if (kind != Kind::fence) last = where;
  return order;
}

// --- What has gone wrong

void Explorer::stuck() {
  std::string all = "nobody goes on:";
  for (unsigned i = 0; i < bodies_; ++i)
    if (fibers_[i].status != Status::done)
      all += " thread " + std::to_string(i) + " " + fibers_[i].why + ";";
  fail(all);
}

std::string Explorer::steps() const {
  std::ostringstream all;
  for (const Step& step : trace_) {
    all << "\n  " << std::string(std::size_t{4} * step.thread, ' ') << step.thread << ": "
        << step.what << " 0x" << std::hex << step.value << std::dec;
    if (step.line != 0) all << "  " << base_name(step.file) << ":" << step.line;
  }
  return all.str();
}

void Explorer::fail(const std::string& what) {
  // There is nothing to go back to yet.
  if (making_) {
    std::fprintf(stderr, "a scenario cannot be made: %s\n", what.c_str());
    std::abort();
  }
  result_.failure = what + steps();
  leave(kFailed);
}

unsigned choose(unsigned count) { return Explorer::here().choose(count); }
void violation(const std::string& what) { Explorer::here().fail(what); }

}  // namespace farcall::model
