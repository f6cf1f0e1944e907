// SPDX-License-Identifier: Apache-2.0
#include "process/ledger.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "process/identity.hpp"
#include "process/per_process.hpp"

namespace farcall::process {
namespace {

struct Account {
  std::unordered_map<uid_t, std::size_t> users;
  std::size_t others = 0;  // all but this process's own user and root
};

struct Ledger {
  std::mutex lock;                  // protects the rest
  std::array<Account, 3> accounts;  // by Resource
};

// A forked child holds nothing for anybody yet.
Ledger& ledger() { return PerProcess<Ledger>::here(); }

struct Limits {
  std::size_t user;
  std::size_t others;  // together
};

Limits limits_of(Resource resource, bool own, std::size_t most) noexcept {
  if (resource == Resource::bytes) {
    if (own) return {.user = SIZE_MAX, .others = SIZE_MAX};
    if (most == 0) most = kBytesPerUser;
    return {.user = most, .others = most > SIZE_MAX / 4 ? SIZE_MAX : 4 * most};
  }
  const std::size_t table = descriptor_table();
  if (own) return {.user = table - table / 8, .others = SIZE_MAX};
  return {.user = most != 0 ? most : table / 4, .others = table / 2};
}

// What one user may hold where others hold so much already: in proportion to what those leave, so
// that there is something left for whoever comes.
std::size_t share(const Limits& limits, std::size_t held_by_others) noexcept {
  if (limits.others == SIZE_MAX) return limits.user;
  if (held_by_others >= limits.others) return 0;
  const double left = static_cast<double>(limits.others - held_by_others);
  return static_cast<std::size_t>(static_cast<double>(limits.user) * left /
                                  static_cast<double>(limits.others));
}

}  // namespace

std::size_t descriptor_table() noexcept {
  rlimit table{};
  return ::getrlimit(RLIMIT_NOFILE, &table) == 0 ? table.rlim_cur : 1024;
}

bool is_own(uid_t user) noexcept { return user == 0 || is_only(user); }

Charge::Charge(Resource resource, uid_t user, std::size_t amount, std::size_t most) noexcept
    : resource_(resource), own_(is_own(user)), user_(user), generation_(generation()) {
  if (amount == 0) return;
  const Limits limits = limits_of(resource, own_, most);
  try {
    Ledger& book = ledger();
    const std::lock_guard guard(book.lock);
    Account& account = book.accounts[static_cast<std::size_t>(resource)];
    std::size_t& held = account.users[user];
    // What was held before this process became somebody else was its own user's, perhaps.
    const std::size_t most_now = share(limits, account.others - std::min(held, account.others));
    if (amount > most_now || held > most_now - amount) {
      if (held == 0) account.users.erase(user);
      return;
    }
    held += amount;
    if (!own_) account.others += amount;
    amount_ = amount;
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): not granted
  }
}

void Charge::give_back() noexcept {
  if (amount_ == 0) return;
  const std::size_t amount = std::exchange(amount_, 0);
  if (!counted_ || generation_ != generation()) return;  // or else the parent's
  Ledger& book = ledger();
  const std::lock_guard guard(book.lock);
  Account& account = book.accounts[static_cast<std::size_t>(resource_)];
  const auto found = account.users.find(user_);
  if (found == account.users.end()) return;
  if ((found->second -= amount) == 0) account.users.erase(found);
  if (!own_) account.others -= amount;
}

}  // namespace farcall::process
