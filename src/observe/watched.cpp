// SPDX-License-Identifier: Apache-2.0
//
// What happens to messages only while somebody looks.
#include "farcall/observe.hpp"
#include "observe/lease.hpp"
#include "observe/tap.hpp"

namespace farcall::observe {
namespace {

// The time from which an answer is timed; 0: none is. Clocks cost, so they are looked at only then.
std::int64_t watched_since(Half& half) noexcept {
  const std::uint64_t until = detail::get(half.watch);
  if (until == 0) return 0;
  const std::int64_t now = monotonic_ns();
  if (lasts(until, now)) return now;
  // A watcher that renews it just now loses it until it renews it again.
  detail::set(half.watch, 0);
  return 0;
}

// Whoever passes no bytes has them captured where they are in pieces.
void tap_whole(Half& half, const void* data, std::size_t size) noexcept {
  if (data == nullptr || !is_tapped(&half)) return;
  const Counters& counters = *counters_of(&half);
  const auto all = [](const Half& of) {
    return detail::get(of.bytes) + detail::get(of.kernel_bytes);
  };
  Passed passed{.sent = all(counters.sent), .received = all(counters.received)};
  (is_sent(&half) ? passed.sent : passed.received) -= size;
  const iovec part{.iov_base = const_cast<void*>(data), .iov_len = size};
  tap(half, &part, 1, size, passed);
}

}  // namespace

void detail::sent_watched(Half& half, const void* data, std::size_t size) noexcept {
  if (const std::int64_t since = watched_since(half); since != 0)
    set(counters_of(&half)->received.started, static_cast<std::uint64_t>(since));
  tap_whole(half, data, size);
}

void detail::received_watched(Half& half, const void* data, std::size_t size) noexcept {
  tap_whole(half, data, size);
  const std::uint64_t started = get(half.started);
  if (started == 0) return;
  set(half.started, 0);
  const auto now = static_cast<std::uint64_t>(monotonic_ns());
  if (started > now) return;
  Times& times = times_of(*counters_of(&half));
  std::uint32_t& in_class = times.classes[class_of(now - started)];
  __atomic_store_n(&in_class, in_class + 1, __ATOMIC_RELAXED);
  add(times.count, 1);
  add(times.sum_ns, now - started);
}

namespace {

void count_by_kernel(Half& half, std::size_t size, Threads threads) noexcept {
  if (threads == Threads::in_turns) {
    detail::add(half.kernel_messages, 1);
    detail::add(half.kernel_bytes, size);
  } else {
    detail::add_shared(half.kernel_messages, 1);
    detail::add_shared(half.kernel_bytes, size);
  }
}

}  // namespace

void note_sent_by_kernel(Half* half, const void* data, std::size_t size, Threads threads) noexcept {
  FARCALL_PROBE3(send, half, size, 1);
  if (half == nullptr) return;
  count_by_kernel(*half, size, threads);
  const std::uint64_t messages = detail::get(half->kernel_messages) + detail::get(half->messages);
  const std::uint64_t watch = detail::get(half->watch);
  const std::uint64_t tap = detail::get(half->tap);
  if ((watch | tap) == 0) return;
  const std::uint64_t others = (std::uint64_t{1} << (watch & detail::kSampleBits)) - 1;
  if (tap != 0 || (messages & others) == 0) detail::sent_watched(*half, data, size);
}

void note_received_by_kernel(Half* half, const void* data, std::size_t size,
                             Threads threads) noexcept {
  FARCALL_PROBE3(receive, half, size, 1);
  if (half == nullptr) return;
  count_by_kernel(*half, size, threads);
  if ((detail::get(half->started) | detail::get(half->tap)) != 0)
    detail::received_watched(*half, data, size);
}

}  // namespace farcall::observe
