// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is. Threads of a port are shared among users, not among sessions: of those who
// wait, equally urgent, the next is one of the user who has had the least of the threads' time, and
// of that user whoever has waited longest. So what one user's thousand sessions wait for is each
// other, and who takes long gets turns the more seldom.
//
//   account   used: the time (ticks) that threads have attended to sessions of that user, several
//             times where nobody waits for what they do
//   floor     that of the user served last; nobody's turn comes by what they have not used before
//             (start-time fair queueing), and what was used while nobody waited counts for nothing
//
//   level (priority) ──> users by time used ──> one user's: first come, first served
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "farcall/wait.hpp"

namespace farcall {
class Endpoint;
}

namespace farcall::call {

class ServerSession;
struct ListenedSource;

// How long a thread attends to one session while others wait, in ticks: 40 to 100 us.
#if defined(__x86_64__)
inline constexpr std::uint64_t kTicksPerTurn = 150'000;
#else
inline constexpr std::uint64_t kTicksPerTurn = 60'000;
#endif
// What somebody costs who is found to have rung.
inline constexpr std::uint64_t kTicksPerEvent = kTicksPerTurn / 50;
// Work that nobody waits for, as pulses and what is sent one way, counts so many times. Who sends
// these can go on without end, while who waits for an answer asks for one thing at a time.
inline constexpr std::uint64_t kWeightOfUnawaited = 3;

// One user's, with the threads of one port.
class Account {
 public:
  explicit Account(uid_t its_user) noexcept : user(its_user) {}
  // relaxed: an account orders nothing, and what comes late counts the next time.
  [[nodiscard]] std::uint64_t used() const noexcept {
    return used_.load(std::memory_order_relaxed);
  }

  const uid_t user;
  std::size_t sessions = 0;  // protected by the port's lock
  // Long requests of which a part has been copied. relaxed: one more or less makes no difference.
  std::atomic<int> copies{0};
  // Descriptors that wait for its turn. Written with the port's lock held; relaxed, as who looks
  // has held that since, or has seen what came with it.
  std::atomic<int> deferred{0};

 private:
  friend class FairQueue;
  std::atomic<std::uint64_t> used_{0};
};
using AccountPointer = std::shared_ptr<Account>;

// What waits for a thread: a session, claimed, with something to do; or a notice; or a descriptor
// that the port has stopped listening to, because its user has had more than others who wait.
struct Item {
  AccountPointer account;
  std::shared_ptr<ServerSession> session;
  std::shared_ptr<Endpoint> notice;
  std::shared_ptr<ListenedSource> source;
  std::uint8_t priority = 0;
  bool late = false;      // a request that comes after what descriptors bring that waited before it
  bool admitted = false;  // after what has come before it
  explicit operator bool() const noexcept { return account != nullptr; }
};

// Protected by the port's lock, but for what is said to be for any thread.
class FairQueue {
 public:
  // May throw std::bad_alloc, and then holds what it held.
  AccountPointer account(uid_t user);
  // Behind all others of its user, or before them.
  void push(Item item, bool first = false);
  // Whoever's turn it is; empty where nobody waits.
  Item pop() noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Whether somebody is to go before one of that user and priority who comes anew; where `first`,
  // before the others of that user.
  [[nodiscard]] bool precedes(const Account& account, std::uint8_t priority,
                              bool first = false) noexcept;
  // Takes out all for which `unwanted` is true.
  template <class Unwanted>
  void extract(Unwanted unwanted, std::list<Item>& into) noexcept;

  // For any thread. So long has a thread worked for that user.
  void charge(Account& account, std::uint64_t ticks) noexcept;
  // The same for work that did not wait for its turn.
  void charge_at_once(Account& account, std::uint64_t ticks) noexcept {
    raise(account.used_, floor_.load(std::memory_order_relaxed));
    charge(account, ticks);
  }
  // For any thread, which has found that nobody waits.
  void settle() noexcept { raise(floor_, highest_.load(std::memory_order_relaxed)); }
  // For any thread. How much more than others who wait that user has had.
  [[nodiscard]] std::uint64_t ahead(const Account& account) const noexcept {
    const std::uint64_t floor = floor_.load(std::memory_order_relaxed);
    return std::max(account.used(), floor) - floor;
  }
  // For any thread. That one is served, and nobody else has waited.
  void serve_only(Account& account) noexcept;

 private:
  struct Line {
    AccountPointer account;
    std::list<Item> items;
  };
  using Order = std::multimap<std::uint64_t, Line>;  // by time used, as it was once
  struct Level {
    Order order;
    std::unordered_map<const Account*, Order::iterator> lines;
  };

  static void raise(std::atomic<std::uint64_t>& to, std::uint64_t at_least) noexcept;
  static Order::iterator first(Level& level) noexcept;
  void forget_unused() noexcept;

  std::map<int, Level> levels_;  // by falling priority; none is empty
  std::size_t size_ = 0;
  std::unordered_map<uid_t, AccountPointer> accounts_;
  std::size_t sweep_at_ = 64;
  std::atomic<std::uint64_t> floor_{0};
  std::atomic<std::uint64_t> highest_{0};
};

// What a thread does, put to the account of the user for whom it does so.
class Work {
 public:
  explicit Work(FairQueue& queue) noexcept : queue_(queue) {}

  // For that one from now on, which is returned in ticks; what was done before has been charged.
  std::uint64_t begin(const AccountPointer& account, std::uint64_t weight) noexcept {
    // Mostly it is the same as last time; a look is cheaper than counting them up and down.
    if (account_ != account) account_ = account;
    weight_ = weight;
    return since_ = ticks();
  }
  // What has been done since it began, or was last charged.
  void charge() noexcept {
    if (!account_) return;
    const std::uint64_t now = ticks();
    queue_.charge(*account_, weight_ * (now - since_));
    since_ = now;
  }
  void weigh(std::uint64_t weight) noexcept {
    if (weight == weight_) [[likely]]
      return;
    charge();
    weight_ = weight;
  }
  // So long it has done nothing for that user.
  void leave_out(std::uint64_t time) noexcept { since_ += time; }
  void end() noexcept {
    charge();
    account_ = nullptr;
  }
  [[nodiscard]] bool is_for(const Account& account) const noexcept {
    return account_.get() == &account;
  }

 private:
  FairQueue& queue_;
  AccountPointer account_;
  std::uint64_t since_ = 0;   // ticks
  std::uint64_t weight_ = 1;  // see kWeightOfUnawaited
};

// How many there were.
template <class Unwanted>
std::size_t move_if(std::list<Item>& items, Unwanted unwanted, std::list<Item>& into) noexcept {
  const std::size_t before = into.size();
  for (auto next = items.begin(); next != items.end();) {
    const auto item = next++;
    if (unwanted(*item)) into.splice(into.end(), items, item);
  }
  return into.size() - before;
}

template <class Unwanted>
void FairQueue::extract(Unwanted unwanted, std::list<Item>& into) noexcept {
  for (auto level = levels_.begin(); level != levels_.end();) {
    auto& [order, lines] = level->second;
    for (auto line = order.begin(); line != order.end();) {
      auto& items = line->second.items;
      size_ -= move_if(items, unwanted, into);
      if (items.empty()) {
        lines.erase(line->second.account.get());
        line = order.erase(line);
      } else {
        ++line;
      }
    }
    level = order.empty() ? levels_.erase(level) : std::next(level);
  }
}

}  // namespace farcall::call
