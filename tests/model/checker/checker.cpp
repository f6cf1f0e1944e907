// SPDX-License-Identifier: Apache-2.0
//
// What scenarios and the sources of the library call.
#include "model/checker/checker.hpp"

#include <cstring>

#include "model/checker/explorer.hpp"

namespace farcall::model {
namespace {

Explorer& explorer() { return Explorer::here(); }

// Whether an operation is the model's: of a thread of a scenario, on memory that threads share.
bool is_modelled(const void* address) {
  return explorer().running() && explorer().memory().is_shared(address);
}

// Elsewhere it is what it would be. Threads of the library's own may run beside, so atomic.
std::uint64_t really_load(const void* address, unsigned size) noexcept {
  switch (size) {
    case 1: return __atomic_load_n(static_cast<const std::uint8_t*>(address), __ATOMIC_SEQ_CST);
    case 2: return __atomic_load_n(static_cast<const std::uint16_t*>(address), __ATOMIC_SEQ_CST);
    case 4: return __atomic_load_n(static_cast<const std::uint32_t*>(address), __ATOMIC_SEQ_CST);
    default: return __atomic_load_n(static_cast<const std::uint64_t*>(address), __ATOMIC_SEQ_CST);
  }
}

bool really_exchange(void* address, unsigned size, std::uint64_t& expected,
                     std::uint64_t desired) noexcept {
  const auto one = [&]<class T>(T*) {
    auto before = static_cast<T>(expected);
    const bool done =
        __atomic_compare_exchange_n(static_cast<T*>(address), &before, static_cast<T>(desired),
                                    false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    expected = before;
    return done;
  };
  switch (size) {
    case 1: return one(static_cast<std::uint8_t*>(nullptr));
    case 2: return one(static_cast<std::uint16_t*>(nullptr));
    case 4: return one(static_cast<std::uint32_t*>(nullptr));
    default: return one(static_cast<std::uint64_t*>(nullptr));
  }
}

}  // namespace

Result explore(const MakeScenario& make, const Options& options) {
  return explorer().explore(make, options);
}
void share(void* base, std::size_t size, bool mirrored) {
  explorer().memory().share(base, size, mirrored);
}
void hold(const void* word) { explorer().hold(word); }
void forgive_copies() { explorer().memory().forgive_copies(); }
int connect(std::size_t room) { return explorer().kernel().connect(room); }
void require(bool what, const char* text) {
  if (!what) explorer().fail(text);
}
void settle_copies(const std::byte* begin, const std::byte* end) {
  if (explorer().running()) explorer().memory().settle_copies(explorer().current(), begin, end);
}
int current_thread() noexcept {
  return explorer().running() ? static_cast<int>(explorer().current()) : -1;
}

std::uint64_t load(const void* address, unsigned size, std::memory_order order,
                   const std::source_location& where) {
  address = explorer().memory().first_copy(address);
  if (!is_modelled(address) || explorer().is_held(address)) return really_load(address, size);
  if (explorer().is_early(address, false))
    explorer().early_step("load", &where);
  else
    explorer().step("load", &where);
  order = explorer().pass(Kind::load, order, where);
  const std::uint64_t value = explorer().memory().load(explorer().current(), address, size, order,
                                                       explorer().sees_newest());
  explorer().tell(value);
  return value;
}

void store(void* address, unsigned size, std::uint64_t value, std::memory_order order,
           const std::source_location& where) {
  address = explorer().memory().first_copy(address);
  if (!is_modelled(address)) {
    std::uint64_t before = really_load(address, size);
    while (!really_exchange(address, size, before, value)) {
    }
    return;
  }
  if (explorer().is_held(address)) return;
  explorer().learn_store(address);
  if (explorer().is_early(address, true))
    explorer().early_step("store", &where);
  else
    explorer().step("store", &where);
  explorer().tell(value);
  order = explorer().pass(Kind::store, order, where);
  explorer().memory().store(explorer().current(), address, size, value, order);
}

std::uint64_t update(void* address, unsigned size,
                     std::uint64_t (*change)(std::uint64_t, std::uint64_t), std::uint64_t operand,
                     std::memory_order order, const std::source_location& where) {
  if (!is_modelled(address)) {
    std::uint64_t before = really_load(address, size);
    while (!really_exchange(address, size, before, change(before, operand))) {
    }
    return before;
  }
  explorer().learn_store(address);
  explorer().step("update", &where);
  order = explorer().pass(Kind::update, order, where);
  const std::uint64_t value = explorer().memory().update(
      explorer().current(), address, size, order, explorer().sees_newest(),
      [&](std::uint64_t before) { return change(before, operand); });
  explorer().tell(value);
  return value;
}

bool compare_exchange(void* address, unsigned size, std::uint64_t& expected, std::uint64_t desired,
                      std::memory_order success, std::memory_order failure,
                      const std::source_location& where) {
  if (!is_modelled(address)) return really_exchange(address, size, expected, desired);
  explorer().learn_store(address);
  explorer().step("compare and exchange", &where);
  success = explorer().pass(Kind::update, success, where);
  failure = explorer().pass(Kind::exchange_failed, failure, where);
  const bool done = explorer().memory().compare_exchange(explorer().current(), address, size,
                                                         expected, desired, success, failure);
  explorer().tell(expected);
  return done;
}

void fence(std::memory_order order, const std::source_location& where) {
  if (!explorer().running()) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return;
  }
  order = explorer().pass(Kind::fence, order, where);
  if (order != std::memory_order_relaxed) explorer().memory().fence(explorer().current(), order);
}

void pause() {
  if (explorer().running()) explorer().pause();
}

}  // namespace farcall::model
