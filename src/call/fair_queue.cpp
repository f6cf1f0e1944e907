// SPDX-License-Identifier: Apache-2.0
#include "call/fair_queue.hpp"

#include <algorithm>
#include <utility>

#include "call/server_session.hpp"

namespace farcall::call {

void FairQueue::raise(std::atomic<std::uint64_t>& to, std::uint64_t at_least) noexcept {
  std::uint64_t now = to.load(std::memory_order_relaxed);
  while (now < at_least && !to.compare_exchange_weak(now, at_least, std::memory_order_relaxed)) {
  }
}

AccountPointer FairQueue::account(uid_t user) {
  const auto found = accounts_.find(user);
  if (found != accounts_.end()) return found->second;
  if (accounts_.size() >= sweep_at_) forget_unused();
  auto made = std::make_shared<Account>(user);
  accounts_.emplace(user, made);
  return made;
}

// What a user has had is not forgotten with their last session, or a new one would be worth more.
void FairQueue::forget_unused() noexcept {
  constexpr std::size_t kFewest = 64;
  std::erase_if(accounts_, [this](const auto& one) {
    return one.second.use_count() == 1 && ahead(*one.second) == 0;
  });
  sweep_at_ = std::max(kFewest, 2 * accounts_.size());
}

void FairQueue::charge(Account& account, std::uint64_t ticks) noexcept {
  raise(highest_, account.used_.fetch_add(ticks, std::memory_order_relaxed) + ticks);
}

void FairQueue::serve_only(Account& account) noexcept {
  raise(account.used_, floor_.load(std::memory_order_relaxed));
  raise(floor_, account.used());
}

void FairQueue::push(Item item, bool first) {
  Account& account = *item.account;
  raise(account.used_, floor_.load(std::memory_order_relaxed));
  std::list<Item> single;
  const int key = -static_cast<int>(item.priority);
  single.push_back(std::move(item));
  const auto level = levels_.try_emplace(key).first;
  auto& [order, lines] = level->second;
  try {
    const auto [place, fresh] = lines.try_emplace(&account, order.end());
    if (fresh) {
      try {
        place->second = order.emplace(account.used(), Line{single.front().account, {}});
      } catch (...) {
        lines.erase(place);
        throw;
      }
    }
    auto& items = place->second->second.items;
    items.splice(first ? items.begin() : items.end(), single);
  } catch (...) {
    if (order.empty()) levels_.erase(level);
    throw;
  }
  ++size_;
}

// Whose account has grown while they waited is put where that belongs.
FairQueue::Order::iterator FairQueue::first(Level& level) noexcept {
  auto& [order, lines] = level;
  for (;;) {
    const auto line = order.begin();
    const Account& account = *line->second.account;
    const std::uint64_t used = account.used();
    if (used <= line->first) return line;
    auto node = order.extract(line);
    node.key() = used;
    lines.find(&account)->second = order.insert(std::move(node));
  }
}

Item FairQueue::pop() noexcept {
  if (levels_.empty()) return {};
  const auto level = levels_.begin();
  auto& [order, lines] = level->second;
  const auto line = first(level->second);
  raise(floor_, line->first);
  charge(*line->second.account, kTicksPerEvent);
  auto& items = line->second.items;
  Item item = std::move(items.front());
  items.pop_front();
  --size_;
  if (items.empty()) {
    lines.erase(line->second.account.get());
    order.erase(line);
    if (order.empty()) levels_.erase(level);
  }
  return item;
}

bool FairQueue::precedes(const Account& account, std::uint8_t priority, bool first) noexcept {
  if (levels_.empty()) return false;
  const auto level = levels_.begin();
  const int most_urgent = -level->first;
  if (most_urgent != priority) return most_urgent > priority;
  const auto& [order, lines] = level->second;
  if (!first && lines.contains(&account)) return true;
  const std::uint64_t used = account.used();
  for (auto line = this->first(level->second); line != order.end() && line->first <= used; ++line) {
    const Account& other = *line->second.account;
    if (&other != &account && other.used() <= used) return true;
  }
  return false;
}

}  // namespace farcall::call
