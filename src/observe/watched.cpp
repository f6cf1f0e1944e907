// SPDX-License-Identifier: Apache-2.0
//
// What happens to messages only while somebody looks.
#include <ctime>

#include "farcall/observe.hpp"

namespace farcall::observe {
namespace {

// A lease for longer than that is somebody's mistake, or of another time namespace.
constexpr std::uint64_t kLongestLease = 20'000'000'000;

std::uint64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

bool lasts(std::uint64_t& lease, std::uint64_t now) noexcept {
  const std::uint64_t until = detail::get(lease);
  if (until == 0) return false;
  if (until > now && until - now <= kLongestLease) return true;
  // A watcher that renews it just now loses it until it renews it again.
  detail::set(lease, 0);
  return false;
}

}  // namespace

void detail::sent_watched(Half& half, const void*, std::size_t) noexcept {
  const std::uint64_t now = now_ns();
  Counters& counters = *counters_of(&half);
  if (lasts(half.watch, now)) set(counters.received.started, now);
  static_cast<void>(lasts(half.tap, now));
}

void detail::received_watched(Half& half, const void*, std::size_t) noexcept {
  const std::uint64_t now = now_ns();
  static_cast<void>(lasts(half.tap, now));
  const std::uint64_t started = get(half.started);
  if (started == 0) return;
  set(half.started, 0);
  if (started > now) return;
  Times& times = times_of(*counters_of(&half));
  std::uint32_t& in_class = times.classes[class_of(now - started)];
  __atomic_store_n(&in_class, in_class + 1, __ATOMIC_RELAXED);
  add(times.count, 1);
  add(times.sum_ns, now - started);
}

void note_sent_by_kernel(Half* half, const void* data, std::size_t size) noexcept {
  FARCALL_PROBE3(send, half, size, 1);
  if (half == nullptr) return;
  const std::uint64_t messages =
      __atomic_add_fetch(&half->kernel_messages, 1, __ATOMIC_RELAXED) + detail::get(half->messages);
  detail::add_shared(half->kernel_bytes, size);
  const std::uint64_t watch = detail::get(half->watch);
  const std::uint64_t tap = detail::get(half->tap);
  if ((watch | tap) == 0) return;
  const std::uint64_t others = (std::uint64_t{1} << (watch & detail::kSampleBits)) - 1;
  if (tap != 0 || (messages & others) == 0) detail::sent_watched(*half, data, size);
}

void note_received_by_kernel(Half* half, const void* data, std::size_t size) noexcept {
  FARCALL_PROBE3(receive, half, size, 1);
  if (half == nullptr) return;
  detail::add_shared(half->kernel_messages, 1);
  detail::add_shared(half->kernel_bytes, size);
  if ((detail::get(half->started) | detail::get(half->tap)) != 0)
    detail::received_watched(*half, data, size);
}

}  // namespace farcall::observe
