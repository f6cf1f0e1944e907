// SPDX-License-Identifier: Apache-2.0
#include "message/pending_reply.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/wait.hpp"

namespace farcall::message {

// Never freed, so that an id can be looked up at any time without a common lock.
struct alignas(kLine) PendingReply::Place {
  std::atomic<std::uint32_t> held{0};      // a futex
  std::atomic<std::uint32_t> awaiting{0};  // threads that may sleep on it
  std::atomic<std::int64_t> id{0};
  std::int64_t uses = 0;  // of its index; the holder's, or who gives an id
  std::int64_t index = 0;
  // Protected by `held`.
  PendingReply* pending = nullptr;
  std::shared_ptr<void> let_go_after_use;

  void lock() noexcept {
    // acquire: pairs with the release of who held it before.
    if (held.exchange(1, std::memory_order_acquire) != 0) [[unlikely]]
      lock_slowly();
  }
  // Each answer passes this: no locked instruction.
  void unlock() noexcept {
    held.store(0, std::memory_order_release);
    asymmetric_fence_light();
    if (awaiting.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ::syscall(SYS_futex, &held, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  // Sleeps in the end, so that a holder of lower priority runs on, on the same processor, too.
  [[gnu::noinline]] void lock_slowly() noexcept {
    constexpr int kLooks = 200;
    for (int i = 0; i < kLooks; ++i) {
      relax();
      if (held.exchange(1, std::memory_order_acquire) == 0) return;
    }
    awaiting.fetch_add(1, std::memory_order_relaxed);
    asymmetric_fence_heavy();  // pairs with the light one of who unlocks
    while (held.exchange(1, std::memory_order_acquire) != 0)
      ::syscall(SYS_futex, &held, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
    awaiting.fetch_sub(1, std::memory_order_relaxed);
  }
};

namespace {

constexpr int kIndexBits = 20;
constexpr std::size_t kChunk = 256;
constexpr std::size_t kChunks = (std::size_t{1} << kIndexBits) / kChunk;

// The ids of a child begin elsewhere than those of its parent, which are good for nothing there.
std::int64_t first_uses() noexcept {
  constexpr std::uint64_t kDifferent = 1 << 10;
  return static_cast<std::int64_t>(process::generation() % kDifferent << 32);
}

}  // namespace

struct PendingReply::Places {
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
      for (std::size_t i = 0; i < kChunk; ++i) {
        chunk[i].index = static_cast<std::int64_t>(made + i);
        chunk[i].uses = first_uses();
      }
      // release: pairs with the acquire in place().
      chunks[made / kChunk].store(chunk, std::memory_order_release);
    }
    Place* place = chunks[made / kChunk].load(std::memory_order_relaxed) + made % kChunk;
    ++made;
    return place;
  }
};

// A child makes its own: its parent's may have been in the middle of a change.
constinit process::MadeOnce<PendingReply::Places> PendingReply::places_;
const bool PendingReply::registered_ = [] {
  process::around_fork(process::ForkOrder::above_call, nullptr, nullptr, [] { places_.abandon(); });
  return true;
}();

PendingReply::Place* PendingReply::place(std::int64_t id) noexcept {
  if (id < std::int64_t{1} << kIndexBits) return nullptr;
  const auto index = static_cast<std::size_t>(id) & ((std::size_t{1} << kIndexBits) - 1);
  Place* chunk = places_.get().chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + index % kChunk;
}

PendingReply::PendingReply() : place_(places_.get().take()), generation_(process::generation()) {
  const std::lock_guard guard(*place_);
  place_->pending = this;
}

PendingReply::~PendingReply() {
  if (generation_ != process::generation()) return;
  {
    const std::lock_guard guard(*place_);
    place_->id.store(0, std::memory_order_relaxed);
    place_->pending = nullptr;
  }
  Places& all = places_.get();
  const std::lock_guard guard(all.lock);
  all.free.push_back(place_);
}

std::int64_t PendingReply::give_id() noexcept {
  const std::int64_t id = ++place_->uses << kIndexBits | place_->index;
  // release: who finds the id sees what was received.
  place_->id.store(id, std::memory_order_release);
  return id;
}

void PendingReply::give_id_again(std::int64_t id) noexcept {
  const std::lock_guard guard(*place_);
  place_->id.store(id, std::memory_order_release);
}

std::int64_t PendingReply::id() const noexcept {
  return place_->id.load(std::memory_order_acquire);
}

bool PendingReply::take_id() noexcept {
  const std::lock_guard guard(*place_);
  // acquire: pairs with the release in give_id(); whoever takes it takes what was received, too.
  return place_->id.exchange(0, std::memory_order_acquire) != 0;
}

void PendingReply::let_go_after_use(std::shared_ptr<void> object) noexcept {
  place_->let_go_after_use = std::move(object);
}

Use::Use(std::int64_t id) : place_(PendingReply::place(id)), pending_(nullptr) {
  if (place_ == nullptr) throw SystemError(ESRCH, "no client waits for that answer");
  place_->lock();
  if (place_->id.load(std::memory_order_acquire) == id) pending_ = place_->pending;
  if (pending_ != nullptr) return;
  place_->unlock();
  throw SystemError(ESRCH, "no client waits for that answer");
}

void Use::end() noexcept {
  place_->id.store(0, std::memory_order_relaxed);
  ended_ = true;
}

PendingReply* Use::withdraw() noexcept {
  place_->id.store(0, std::memory_order_relaxed);
  return pending_;
}

Use::~Use() {
  if (ended_) pending_->done();
  const std::shared_ptr<void> last = std::move(place_->let_go_after_use);
  place_->unlock();
}

}  // namespace farcall::message
