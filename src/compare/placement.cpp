// SPDX-License-Identifier: Apache-2.0
#include "compare/placement.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <array>
#include <fstream>
#include <utility>

#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

constexpr std::array<std::pair<Placement, std::string_view>, 3> kNames{{
    {Placement::two_cpus, "two-cpus"},
    {Placement::one_cpu, "one-cpu"},
    {Placement::free, "free"},
}};

// Equal for processors of one core; empty where the kernel does not tell.
std::string core_of(int processor) {
  std::ifstream file(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", processor));
  std::string siblings;
  std::getline(file, siblings);
  return siblings;
}

}  // namespace

std::string_view to_string(Placement placement) noexcept {
  for (const auto& [value, name] : kNames)
    if (value == placement) return name;
  return "unknown";
}

std::optional<Placement> parse_placement(std::string_view name) noexcept {
  for (const auto& [value, known] : kNames)
    if (known == name) return value;
  return std::nullopt;
}

Processors::Processors() {
  // Large enough for any machine; the kernel refuses a set smaller than its own.
  constexpr int kMost = 16384;
  cpu_set_t* set = CPU_ALLOC(kMost);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMost);
  if (set == nullptr || ::sched_getaffinity(0, bytes, set) != 0) {
    CPU_FREE(set);
    throw_errno("sched_getaffinity");
  }
  for (int i = 0; i < kMost; ++i)
    if (CPU_ISSET_S(static_cast<std::size_t>(i), bytes, set)) allowed_.push_back(i);
  CPU_FREE(set);

  first_ = second_ = allowed_.front();
  if (allowed_.size() < 2) return;
  // Two cores, if there are: hyper-threads of one core share its caches, which is another thing.
  second_ = allowed_[1];
  siblings_ = true;
  const std::string core = core_of(first_);
  for (const int candidate : allowed_) {
    if (candidate == first_ || (!core.empty() && core_of(candidate) == core)) continue;
    second_ = candidate;
    siblings_ = false;
    break;
  }
}

std::string Processors::refuses(Placement placement) const {
  if (placement == Placement::two_cpus && allowed_.size() < 2)
    return fmt::format("only processor {} may be used here", first_);
  return {};
}

std::optional<int> Processors::processor(Placement placement, Role role) const {
  switch (placement) {
    case Placement::two_cpus: return role == Role::client ? first_ : second_;
    case Placement::one_cpu: return first_;
    case Placement::free: break;
  }
  return std::nullopt;
}

namespace {
// As large as the kernel's, whatever that is; empty as long as nothing was pinned.
std::vector<std::byte>& before_pinning() {
  static std::vector<std::byte> set;
  return set;
}

void remember_processors() {
  constexpr std::size_t kMost = 1 << 16;  // bytes
  std::vector<std::byte>& set = before_pinning();
  if (!set.empty()) return;
  for (std::size_t bytes = sizeof(cpu_set_t); bytes <= kMost; bytes *= 2) {
    set.resize(bytes);
    if (::sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(set.data())) == 0) return;
  }
  set.clear();
}
}  // namespace

void unpin() noexcept {
  std::vector<std::byte>& set = before_pinning();
  if (!set.empty())
    (void)::sched_setaffinity(0, set.size(), reinterpret_cast<const cpu_set_t*>(set.data()));
}

void pin_to(int processor) {
  remember_processors();
  const auto index = static_cast<std::size_t>(processor);
  cpu_set_t* set = CPU_ALLOC(index + 1);
  const std::size_t bytes = CPU_ALLOC_SIZE(index + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(index, bytes, set);
  const int result = ::sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
  if (result != 0) throw_errno(fmt::format("sched_setaffinity to processor {}", processor));
}

}  // namespace farcall::compare
