// SPDX-License-Identifier: Apache-2.0
//
// Runs the threads of a scenario in every order, with every value that each load may take.
//
// A scenario is made anew for each execution. Its threads are fibers of one thread, and change only
// at atomic operations and system calls. An execution is given by what is chosen at each; the next
// one repeats all choices but the last. Two executions that have come to the same state go on
// alike, so the second one is given up: a state is what each thread has read, and the order of the
// stores to each word. So threads must know nothing of each other but through shared memory.
//
// Sources of the library see this instead of the C++ library's atomics and of some system calls;
// see substitute.hpp.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <source_location>
#include <string>
#include <tuple>
#include <vector>

namespace farcall::model {

enum class Kind : std::uint8_t { load, store, update, exchange_failed, fence };

// Where in the sources something stands.
struct Place {
  std::string file;
  unsigned line = 0;
  unsigned column = 0;
  std::string function;  // as the compiler calls it; instances of a template are one place
  [[nodiscard]] bool operator==(const Place& other) const { return (*this <=> other) == 0; }
  [[nodiscard]] std::strong_ordering operator<=>(const Place& other) const {
    return std::tie(line, column, file) <=> std::tie(other.line, other.column, other.file);
  }
};

// An atomic operation in the sources. Fences are told apart by what their thread has done before
// them: an inline function with a fence in it stands in many places.
struct Site {
  Place at;
  Kind kind = Kind::load;
  std::memory_order order = std::memory_order::relaxed;
  Place behind;  // of a fence
  auto operator<=>(const Site&) const = default;
};

struct Mutation {
  Site site;
  std::memory_order to = std::memory_order::relaxed;  // a relaxed fence is none
};

struct Scenario {
  Scenario() = default;
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;
  virtual ~Scenario() = default;
  // After all threads have ended.
  virtual void finish() {}

  std::vector<std::function<void()>> threads;
};
using MakeScenario = std::function<std::unique_ptr<Scenario>()>;

struct Options {
  const Mutation* mutation = nullptr;
  std::set<Site>* sites = nullptr;  // gets all that are passed
  std::uint64_t most_states = 3'000'000;
  bool may_be_part = false;            // to have seen so many states is enough
  unsigned timeouts = 0;               // so many sleeps with a deadline may end by it
  bool pauses_wait = true;             // relax(): until another thread has stored something
  bool fences_reach_all = false;       // membarrier(2) is used
  bool heavy_fences_are_none = false;  // to show that they are needed
};

struct Result {
  std::string failure;  // empty: none; else what, and the steps that led there
  bool complete = false;
  std::uint64_t executions = 0;
  std::uint64_t states = 0;
};
Result explore(const MakeScenario& make, const Options& options = {});

// --- For scenarios: before their threads run.

// Memory that threads share. What else they use must be each thread's own.
// Mirrored: the same bytes once more behind them, as map_twice() maps them.
void share(void* base, std::size_t size, bool mirrored = false);
// A word that is a hint only, and chooses among ways that are all right: it stays as it is.
void hold(const void* word);
// See Memory::forgive_copies().
void forgive_copies();
// Two descriptors that are connected: the one returned, and the next. Each takes so many bytes that
// nobody has received.
int connect(std::size_t room = 64);

// --- For their threads.

void require(bool what, const char* text);
void settle_copies(const std::byte* begin, const std::byte* end);  // see Memory
// Which thread runs: 0 and up. -1: none, the scenario is being made or finished.
int current_thread() noexcept;

// --- What substitute.hpp puts in the place of atomic operations.

std::uint64_t load(const void* address, unsigned size, std::memory_order order,
                   const std::source_location& where);
void store(void* address, unsigned size, std::uint64_t value, std::memory_order order,
           const std::source_location& where);
std::uint64_t update(void* address, unsigned size,
                     std::uint64_t (*change)(std::uint64_t, std::uint64_t), std::uint64_t operand,
                     std::memory_order order, const std::source_location& where);
bool compare_exchange(void* address, unsigned size, std::uint64_t& expected, std::uint64_t desired,
                      std::memory_order success, std::memory_order failure,
                      const std::source_location& where);
void fence(std::memory_order order, const std::source_location& where);
void pause();

}  // namespace farcall::model
