// SPDX-License-Identifier: Apache-2.0
#include "capture/watched_process.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "observe/lease.hpp"
#include "watch/lease.hpp"

namespace farcall::capture {
namespace {

// Copies of the library in one process, each of which has rings of its own.
constexpr std::size_t kMostReaders = 8;

// Where the rings of these tables are, 0: nowhere yet. False: not all can be read.
bool rings_of(const watch::Owner& owner, std::span<const std::uint64_t> tables,
              std::uint64_t* into) {
  std::vector<iovec> there;
  for (const std::uint64_t table : tables)
    there.push_back(
        {.iov_base = reinterpret_cast<void*>(table + offsetof(observe::Process, tap_ring)),
         .iov_len = sizeof *into});
  return watch::read_memory(owner, there, into, tables.size() * sizeof *into);
}

}  // namespace

void WatchedProcess::add_table(std::uint64_t table) {
  const auto has_it = [&](const TapReader& one) { return one.process() == table; };
  if (std::ranges::any_of(readers_, has_it) || std::ranges::count(without_rings_, table) != 0)
    return;
  std::uint64_t rings = 0;
  if (!rings_of(owner_, {&table, 1}, &rings)) return;
  if (rings == 0)
    without_rings_.push_back(table);
  else if (readers_.size() < kMostReaders)
    readers_.emplace_back(owner_, table, new_);
}

void WatchedProcess::renew(const watch::Process& process, const Filter& filter) {
  same_pids_ = process.same_pids;
  program_ = process.command;  // that of the program which was executed
  // Before anything is asked for: what is in a ring by then was for somebody else.
  for (const watch::TableAt& table : process.tables) add_table(table.process);
  std::vector<watch::End> tables(process.tables.size());
  std::vector<watch::Lease> leases;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    tables[i].table = process.tables[i].address;
    leases.push_back({.word = watch::Lease::Word::tap_new, .end = &tables[i]});
    leases.push_back({.word = watch::Lease::Word::tap_children, .end = &tables[i]});
  }
  for (const watch::End& end : process.ends) {
    const Subject subject{.kind = end.kind,
                          .local = end.local,
                          .remote = end.remote,
                          .pid = process.pid,
                          .peer = end.peer};
    if (!filter.matches(subject)) continue;
    leases.push_back({.word = watch::Lease::Word::tap_sent, .end = &end});
    leases.push_back({.word = watch::Lease::Word::tap_received, .end = &end});
  }
  watch::renew(process, leases, kLease);
}

bool WatchedProcess::find_rings() {
  if (without_rings_.empty()) return false;
  std::vector<std::uint64_t> rings(without_rings_.size());
  if (!rings_of(owner_, without_rings_, rings.data())) {
    // Where one table has gone the others are still there.
    if (without_rings_.size() == 1) return false;
    std::vector<std::uint64_t> all = std::move(without_rings_);
    without_rings_.clear();
    for (const std::uint64_t table : all)
      if (std::uint64_t there = 0; rings_of(owner_, {&table, 1}, &there))
        without_rings_.push_back(table);
    return !without_rings_.empty();
  }
  for (std::size_t i = rings.size(); i-- > 0;) {
    if (rings[i] == 0) continue;
    // All that is in them has come since something was asked for.
    if (readers_.size() < kMostReaders) readers_.emplace_back(owner_, without_rings_[i], true);
    without_rings_.erase(without_rings_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return true;
}

bool WatchedProcess::read(std::vector<std::unique_ptr<Batch>>& into) {
  bool lives = readers_.empty() && without_rings_.empty();
  lives = find_rings() || lives;
  const std::int64_t before = observe::monotonic_ns();
  for (TapReader& reader : readers_) {
    const bool is_there = reader.read(into);
    // What was there before may have executed another program.
    if (is_there && waits_) reader.acknowledge(before);
    lives = is_there || lives;
  }
  if (!same_pids_)
    for (const std::unique_ptr<Batch>& batch : into)
      for (Message& message : batch->messages) message.peer = 0;
  return lives;
}

std::uint64_t WatchedProcess::lost() const noexcept {
  std::uint64_t sum = 0;
  for (const TapReader& reader : readers_) sum += reader.lost();
  return sum;
}

}  // namespace farcall::capture
