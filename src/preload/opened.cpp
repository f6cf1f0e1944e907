// SPDX-License-Identifier: Apache-2.0
#include "preload/opened.hpp"

#include <array>
#include <atomic>
#include <cstddef>

#include "preload/fork.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

constinit std::array<std::atomic<std::uint64_t>, kMostDescriptors / 64> opened{};
constinit std::atomic<int> highest{-1};

// How many forks have begun, and how many of them are not over.
constexpr std::uint64_t kBegun = std::uint64_t{1} << 32;
constexpr std::uint64_t kUnderWay = 1;
constinit std::atomic<std::uint64_t> forks{0};

bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors);
}
std::atomic<std::uint64_t>& word_of(int fd) noexcept {
  return opened[static_cast<std::size_t>(fd) / 64];
}
std::uint64_t bit_of(int fd) noexcept { return std::uint64_t{1} << fd % 64; }

[[gnu::constructor]] void start() noexcept {
  // In one order with note_opened(): either it sees that a fork has begun, or this what it noted.
  at_fork({.before =
               []() noexcept {
                 forks.fetch_add(kBegun + kUnderWay);
                 forget_all_opened();
               },
           .in_parent = []() noexcept { forks.fetch_sub(kUnderWay); },
           .in_child = []() noexcept { forks.store(forks.load() & ~(kBegun - 1)); }});
}

}  // namespace

std::uint64_t forks_so_far() noexcept { return forks.load(); }

void note_opened(int fd, std::uint64_t before) noexcept {
  if (!in_range(fd) || (before & (kBegun - 1)) != 0) return;
  int most = highest.load();
  while (most < fd && !highest.compare_exchange_weak(most, fd)) {
  }
  word_of(fd).fetch_or(bit_of(fd));
  if (forks.load() != before) forget_opened(fd);
}

bool is_opened_alone(int fd) noexcept {
  return in_range(fd) && (word_of(fd).load() & bit_of(fd)) != 0;
}

void forget_opened(int fd) noexcept {
  if (is_opened_alone(fd)) word_of(fd).fetch_and(~bit_of(fd));
}

void forget_all_opened() noexcept {
  const int last = highest.load();
  for (int first = 0; first <= last; first += 64) word_of(first).store(0);
}

int highest_opened() noexcept { return highest.load(std::memory_order_relaxed); }

}  // namespace farcall::preload
