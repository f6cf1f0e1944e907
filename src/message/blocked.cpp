// SPDX-License-Identifier: Apache-2.0
#include "message/blocked.hpp"

#include <sched.h>

#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "call/process.hpp"
#include "farcall/error.hpp"
#include "farcall/wait.hpp"

namespace farcall::message {

// Never freed, so that an id can be looked up at any time without a common lock.
struct alignas(kLine) Blocked::Place {
  std::atomic<bool> held{false};
  std::atomic<std::int64_t> id{0};
  std::int64_t uses = 0;  // of its index; the holder's, or who gives an id
  std::int64_t index = 0;
  std::uint64_t generation = 0;
  Blocked* blocked = nullptr;  // protected by `held`

  void hold() noexcept {
    constexpr int kLooks = 200;
    // acquire: pairs with the release of who held it before.
    for (int i = 0; held.exchange(true, std::memory_order_acquire); ++i) {
      if (i < kLooks)
        relax();
      else
        ::sched_yield();
    }
  }
  void let_go() noexcept { held.store(false, std::memory_order_release); }
};

namespace {

constexpr int kIndexBits = 20;
constexpr std::size_t kChunk = 256;
constexpr std::size_t kChunks = (std::size_t{1} << kIndexBits) / kChunk;

}  // namespace

struct Blocked::Places {
  std::array<std::atomic<Place*>, kChunks> chunks{};
  std::mutex lock;  // protects what follows
  std::size_t made = 0;
  std::vector<Place*> free;

  Place* take() {
    const std::lock_guard guard(lock);
    if (!free.empty()) {
      Place* place = free.back();
      free.pop_back();
      return place;
    }
    if (made == kChunks * kChunk) throw SystemError(EAGAIN, "too many clients wait for an answer");
    if (made % kChunk == 0) {
      auto* chunk = new Place[kChunk];
      for (std::size_t i = 0; i < kChunk; ++i) chunk[i].index = static_cast<std::int64_t>(made + i);
      // release: pairs with the acquire in place().
      chunks[made / kChunk].store(chunk, std::memory_order_release);
    }
    Place* place = chunks[made / kChunk].load(std::memory_order_relaxed) + made % kChunk;
    ++made;
    return place;
  }
};

Blocked::Places& Blocked::places() {
  static auto& all = *new Places;
  return all;
}

Blocked::Place* Blocked::place(std::int64_t id) noexcept {
  if (id < std::int64_t{1} << kIndexBits) return nullptr;
  const auto index = static_cast<std::size_t>(id) & ((std::size_t{1} << kIndexBits) - 1);
  Place* chunk = places().chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + index % kChunk;
}

Blocked::Blocked() : place_(places().take()) {
  place_->hold();
  place_->blocked = this;
  place_->generation = call::generation();
  place_->let_go();
}

Blocked::~Blocked() {
  place_->hold();
  place_->id.store(0, std::memory_order_relaxed);
  place_->blocked = nullptr;
  place_->let_go();
  Places& all = places();
  const std::lock_guard guard(all.lock);
  all.free.push_back(place_);
}

std::int64_t Blocked::give_id() noexcept {
  const std::int64_t id = ++place_->uses << kIndexBits | place_->index;
  // release: who finds the id sees what was received.
  place_->id.store(id, std::memory_order_release);
  return id;
}

std::int64_t Blocked::id() const noexcept { return place_->id.load(std::memory_order_acquire); }

bool Blocked::take_id() noexcept {
  place_->hold();
  const bool had = place_->id.exchange(0, std::memory_order_acq_rel) != 0;
  place_->let_go();
  return had;
}

Use::Use(std::int64_t id) : place_(Blocked::place(id)), blocked_(nullptr) {
  if (place_ == nullptr) throw SystemError(ESRCH, "no client waits for that answer");
  place_->hold();
  if (place_->id.load(std::memory_order_acquire) == id && place_->generation == call::generation())
    blocked_ = place_->blocked;
  if (blocked_ != nullptr) return;
  place_->let_go();
  throw SystemError(ESRCH, "no client waits for that answer");
}

void Use::end() noexcept {
  place_->id.store(0, std::memory_order_relaxed);
  ended_ = true;
}

Use::~Use() {
  if (ended_) blocked_->done();
  place_->let_go();
}

}  // namespace farcall::message
