// SPDX-License-Identifier: Apache-2.0
#include "compare/slot.hpp"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace farcall::compare {

namespace {
constexpr std::int64_t kMilli = 1'000'000;
}  // namespace

Effort Effort::full() noexcept {
  return {.rounds = 5,
          .warmup_ns = 20 * kMilli,
          .rtt_ns = 150 * kMilli,
          .rtt_samples = 20'000,
          .stream_ns = 100 * kMilli,
          .wakeups = 3,
          .trace_ns = 200 * kMilli,
          .trace_calls = 500};
}

Effort Effort::quick() noexcept {
  return {.rounds = 5,
          .warmup_ns = 10 * kMilli,
          .rtt_ns = 50 * kMilli,
          .rtt_samples = 10'000,
          .stream_ns = 40 * kMilli,
          .wakeups = 2,
          .trace_ns = 60 * kMilli,
          .trace_calls = 200};
}

Effort Effort::tiny(std::int64_t ns) noexcept {
  return {.rounds = 2,
          .warmup_ns = ns / 8,
          .rtt_ns = ns / 2,
          .rtt_samples = 5'000,
          .stream_ns = ns / 4,
          .wakeups = 1,
          .trace_ns = ns / 2,
          .trace_calls = 20};
}

namespace {
constexpr std::int64_t kProcesses = 4 * kMilli;
// One call with a message of this size, where memory is what limits it: a byte there and back.
std::int64_t call_ns(std::size_t message_bytes) { return static_cast<std::int64_t>(message_bytes); }
}  // namespace

std::int64_t Effort::slot_ns(const RowInfo& row, const Conditions& conditions) const noexcept {
  const std::size_t message_bytes = conditions.message_bytes;
  if (conditions.readers != 0)
    return (1 + conditions.readers) * (kProcesses + 4 * call_ns(message_bytes)) + warmup_ns +
           rtt_ns + stream_ns * 3 / 2;
  if (const Crowd& crowd = conditions.crowd; crowd.clients != 0) {
    constexpr std::int64_t kConnection = 100'000;
    return (1 + crowd.servers + crowd.clients) * (kProcesses + 4 * call_ns(message_bytes)) +
           warmup_ns + (crowd.idle != 0 ? 2 : 1) * rtt_ns + crowd.idle * kConnection;
  }
  // Fast rows have their samples before the time is over; slow ones take a least number of calls.
  std::int64_t ns = kProcesses + warmup_ns + rtt_ns * 3 / 4 + 12 * call_ns(message_bytes);
  if (!row.one_process) ns += wakeups * kIdlePause;
  if (row.streams || row.one_process) ns += stream_ns;
  return ns;
}

std::int64_t Effort::trace_slot_ns(std::size_t message_bytes) const noexcept {
  return 3 * kProcesses + trace_ns / 4 + 10 * call_ns(message_bytes);
}

Effort Effort::scaling(bool quick) noexcept {
  Effort effort = full();
  effort.rounds = quick ? 3 : 5;
  effort.warmup_ns = (quick ? 20 : 50) * kMilli;
  effort.rtt_ns = (quick ? 80 : 300) * kMilli;
  effort.rtt_samples = std::size_t{1} << 22;
  return effort;
}

Usage Usage::now() noexcept {
  timespec cpu{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {.cpu_ns = cpu.tv_sec * 1'000'000'000 + cpu.tv_nsec,
          .switches = usage.ru_nvcsw + usage.ru_nivcsw};
}

Usage& Usage::operator+=(const Usage& other) noexcept {
  cpu_ns += other.cpu_ns;
  switches += other.switches;
  return *this;
}

Usage Usage::operator-(const Usage& other) const noexcept {
  return {.cpu_ns = cpu_ns - other.cpu_ns, .switches = switches - other.switches};
}

void Board::fail(Role role, std::string_view message) noexcept {
  const auto index = static_cast<std::size_t>(role);
  // relaxed: who comes second has nothing to say.
  if (failing[index].exchange(true, std::memory_order_relaxed)) return;
  const std::size_t bytes = std::min(message.size(), kErrorBytes - 1);
  std::memcpy(error[index], message.data(), bytes);
  error[index][bytes] = '\0';
  // release: pairs with the tool's acquire, which then reads the text.
  failed[index].store(true, std::memory_order_release);
}

}  // namespace farcall::compare
