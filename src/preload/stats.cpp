// SPDX-License-Identifier: Apache-2.0
#include "preload/stats.hpp"

namespace farcall::preload {
namespace {

constinit std::atomic<StatsPage*> page{nullptr};

}  // namespace

bool stats_wanted() noexcept { return page.load(std::memory_order_relaxed) != nullptr; }

Counters* counters_for(Protocol protocol, const Endpoint& server) noexcept {
  using Slot = StatsPage::Slot;
  StatsPage* file = page.load(std::memory_order_acquire);
  if (file == nullptr) return nullptr;
  for (Slot& slot : file->slots) {
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state == Slot::kFree) {
      if (slot.state.compare_exchange_strong(state, Slot::kBeingMade)) {
        slot.protocol = protocol;
        slot.endpoint = server;
        // release: pairs with the acquire above and with that of whoever prints.
        slot.state.store(Slot::kUsed, std::memory_order_release);
        return &slot.counters;
      }
    }
    // Its maker may have been killed, hence the bound.
    for (int i = 0; state == Slot::kBeingMade && i < 1000; ++i)
      state = slot.state.load(std::memory_order_acquire);
    if (state == Slot::kUsed && slot.protocol == protocol && slot.endpoint == server)
      return &slot.counters;
  }
  file->overflow.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace farcall::preload
