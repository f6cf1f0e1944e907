// SPDX-License-Identifier: Apache-2.0
#include "watch/lease.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "observe/clock.hpp"
#include "watch/maps.hpp"
#include "watch/status.hpp"

namespace farcall::watch {
namespace {

using observe::Counters;
using observe::Half;
using observe::Table;

std::uint64_t address_of(const Lease& lease) {
  if (lease.word == Lease::Word::tap_new)
    return lease.end->table + offsetof(Table, counters) + offsetof(observe::Process, tap_until);
  if (lease.word == Lease::Word::tap_children)
    return lease.end->table + offsetof(observe::Header, tap_until);
  const std::uint64_t counters =
      lease.end->table + offsetof(Table, counters) + lease.end->index * sizeof(Counters);
  switch (lease.word) {
    case Lease::Word::watch: return counters + offsetof(Counters, sent) + offsetof(Half, watch);
    case Lease::Word::tap_sent: return counters + offsetof(Counters, sent) + offsetof(Half, tap);
    case Lease::Word::tap_received:
    case Lease::Word::tap_new:
    case Lease::Word::tap_children: break;
  }
  return counters + offsetof(Counters, received) + offsetof(Half, tap);
}

std::uint64_t end_of_lease(std::chrono::nanoseconds duration) {
  return static_cast<std::uint64_t>(observe::monotonic_ns() + duration.count());
}

// Those whose tables are still there. The process may have executed something else meanwhile, or
// unmapped one, and have what is its own at that address.
std::vector<const Lease*> with_tables(const Owner& of, const std::vector<Lease>& leases) {
  std::map<std::uint64_t, bool> there;
  std::vector<const Lease*> left;
  for (const Lease& lease : leases) {
    const auto [table, is_new] = there.try_emplace(lease.end->table, false);
    if (is_new) table->second = has_table(of, table->first);
    if (table->second) left.push_back(&lease);
  }
  return left;
}

}  // namespace

std::size_t renew(const Process& process, const std::vector<Lease>& leases,
                  std::chrono::nanoseconds duration) {
  Status status;
  if (!read_status(process.pid, status) || status.started != process.started ||
      status.user != process.user || !status.one_identity)
    return 0;
  constexpr std::size_t kAtOnce = 512;  // the kernel takes 1024
  const std::uint64_t until = end_of_lease(duration);
  std::size_t written = 0;
  const std::vector<const Lease*> left = with_tables(owner_of(process), leases);
  for (std::size_t from = 0; from < left.size(); from += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, left.size() - from);
    std::vector<std::uint64_t> words(count);
    std::vector<iovec> there(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Lease& lease = *left[from + i];
      words[i] = (until & ~observe::detail::kSampleBits) |
                 std::min<std::uint64_t>(lease.sampling, observe::detail::kSampleBits);
      there[i] = {.iov_base = reinterpret_cast<void*>(address_of(lease)),
                  .iov_len = sizeof(std::uint64_t)};
    }
    const std::size_t put =
        write_memory(owner_of(process), there, words.data(), count * sizeof(std::uint64_t));
    if (put == 0) break;
    written += put / sizeof(std::uint64_t);
  }
  return written;
}

}  // namespace farcall::watch
