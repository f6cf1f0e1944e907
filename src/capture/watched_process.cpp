// SPDX-License-Identifier: Apache-2.0
#include "capture/watched_process.hpp"

#include <algorithm>

#include "observe/lease.hpp"
#include "watch/lease.hpp"

namespace farcall::capture {
namespace {

// Copies of the library in one process, each of which has rings of its own.
constexpr std::size_t kMostReaders = 8;

}  // namespace

void WatchedProcess::renew(const watch::Process& process, const Filter& filter) {
  same_pids_ = process.same_pids;
  program_ = process.command;  // that of the program which was executed
  {
    // Before anything is asked for: what is in a ring by then was for somebody else.
    for (const watch::TableAt& table : process.tables) {
      const bool known = std::any_of(readers_.begin(), readers_.end(), [&](const TapReader& one) {
        return one.process() == table.process;
      });
      if (!known && readers_.size() < kMostReaders)
        readers_.emplace_back(owner_, table.process, new_);
    }
  }
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

bool WatchedProcess::read(std::vector<std::unique_ptr<Batch>>& into) {
  bool lives = readers_.empty();
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
