// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "compare/report.hpp"
#include "compare/units.hpp"
#include "farcall/channel/mechanism.hpp"

namespace farcall::compare {
namespace {

// "ring (spin)"; most mechanisms have one way of waiting, which then is not worth a word.
std::string name_of(const Result& result) {
  const RowInfo& info = result.row->info();
  return info.waits ? fmt::format("{} ({})", info.mechanism, info.wait) : info.mechanism;
}

// As people say it, at the beginning of a sentence.
std::string common_name(const Result& result) {
  const std::string& mechanism = result.row->info().mechanism;
  if (mechanism == "pipe") return "A pipe";
  if (mechanism == "unix_stream") return "A unix stream socket";
  if (mechanism == "tcp") return "TCP over loopback";
  return mechanism;
}

std::string times(double ratio) { return fmt::format("{} times", format_digits(ratio)); }

std::string where(Placement placement) {
  switch (placement) {
    case Placement::two_cpus: return "between two processors";
    case Placement::one_cpu: return "on one processor";
    case Placement::free: break;
  }
  return "where the scheduler places them";
}

class Sentences {
 public:
  explicit Sentences(const Comparison& comparison) : comparison_(comparison) {
    constexpr std::size_t kFitsCaches = 64UL << 10;
    // The size at which a mechanism shows and not the memory: 64 bytes or what is nearest.
    for (const std::size_t size : comparison.settings.sizes) {
      if (small_ == 0 || size <= 64) small_ = size;
      // Throughput in bytes: what fits caches, if there is such a size.
      if (large_ == 0 || size <= kFitsCaches) large_ = size;
    }
  }

  std::vector<std::string> all() {
    std::vector<std::string> sentences;
    for (std::string sentence : {fastest(), usual(), throughput()})
      if (!sentence.empty()) sentences.push_back(std::move(sentence));
    return sentences;
  }

 private:
  [[nodiscard]] std::vector<const Result*> measured(Placement placement, std::size_t size) const {
    std::vector<const Result*> found;
    for (const Result& result : comparison_.results)
      if (result.error.empty() && !result.is_control() && result.placement == placement &&
          result.message_bytes == size)
        found.push_back(&result);
    return found;
  }

  // Many channels are our ring in another kind of memory; where one of them is the fastest, and the
  // ring as good as equal, the ring itself is named.
  [[nodiscard]] const Result* fastest_of(Placement placement, std::size_t size) const {
    constexpr double kEqual = 1.1;
    const auto rows = measured(placement, size);
    const Result* const best = fastest_among(rows);
    if (best == nullptr) return nullptr;
    const RowInfo& info = best->row->info();
    if (info.engine != "shared" || channel::find_mechanism(info.mechanism) == nullptr) return best;
    std::vector<const Result*> rings;
    for (const Result* row : rows)
      if (row->row->info().mechanism == "ring") rings.push_back(row);
    const Result* const ring = fastest_among(rings);
    return ring != nullptr && ring->rtt.p50() <= best->rtt.p50() * kEqual ? ring : best;
  }
  [[nodiscard]] static const Result* fastest_among(const std::vector<const Result*>& rows) {
    const auto least =
        std::ranges::min_element(rows, {}, [](const Result* result) { return result->rtt.p50(); });
    return least == rows.end() ? nullptr : *least;
  }
  // What the sentence adds where it names the ring, and other memory did better.
  [[nodiscard]] std::string aside(const Result& named) const {
    const Result& least = *fastest_among(measured(named.placement, named.message_bytes));
    if (&least == &named) return {};
    return fmt::format(" ({}, the same in other memory, took {})", name_of(least),
                       format_ns(least.rtt.p50()));
  }

  // The first placement that has been measured.
  [[nodiscard]] std::optional<Placement> placement() const {
    for (const Placement placement : comparison_.settings.placements)
      if (!measured(placement, small_).empty()) return placement;
    return std::nullopt;
  }

  std::string fastest() const {
    const auto placement = this->placement();
    if (!placement) return {};
    const Result& best = *fastest_of(*placement, small_);
    std::string text = fmt::format(
        "On this machine the fastest way to send {} and get an answer {} is {}: {}",
        format_size(small_), where(*placement), name_of(best), format_ns(best.rtt.p50()));
    text += aside(best);
    if (const Result* control = comparison_.control(*placement))
      text +=
          fmt::format(", {} {} ({})", times(best.rtt.p50() / control->rtt.p50()),
                      *placement == Placement::one_cpu ? "what a bare futex takes there"
                                                       : "what a bare cache line each way takes",
                      format_ns(control->rtt.p50()));
    return text + ".";
  }

  // What the best known mechanism costs, and the reason that its own figures give.
  std::string usual() const {
    const auto placement = this->placement();
    if (!placement) return {};
    const Result* known = nullptr;
    for (const char* name : {"pipe", "unix_stream", "tcp", "zeromq"})
      if (known == nullptr) known = comparison_.find(name, "block", *placement, small_);
    if (known == nullptr) return {};
    const Result& best = *fastest_of(*placement, small_);
    std::string text =
        fmt::format("{} costs {} there", common_name(*known), format_ns(known->rtt.p50()));
    if (known != &best)
      text += fmt::format(", {} as much", times(known->rtt.p50() / best.rtt.p50()));
    text += ", because each message takes ";
    if (known->system_calls_per_message)
      text += fmt::format("{:.1f} system calls and ", *known->system_calls_per_message);
    text += fmt::format("{:.1f} context switches", known->switches_per_message());
    const Result* alone = comparison_.find(known->row->info().mechanism, known->row->info().wait,
                                           Placement::one_cpu, small_);
    if (*placement != Placement::one_cpu && alone != nullptr &&
        alone->rtt.p50() < known->rtt.p50() * 0.7)
      text += fmt::format(
          ", and above all because a sleeping processor must be woken: on one processor, which "
          "nobody has to wake, it costs {}",
          format_ns(alone->rtt.p50()));
    return text + ".";
  }

  std::string throughput() const {
    const auto placement = this->placement();
    if (!placement) return {};
    auto rows = measured(*placement, large_);
    std::erase_if(rows, [](const Result* result) { return !result->row->info().streams; });
    const auto rate = [](const Result* result) { return median(result->messages_per_s); };
    if (rows.empty() || large_ == 0) return {};  // empty messages move nothing
    const Result& best = **std::ranges::max_element(rows, {}, rate);
    const auto bytes = static_cast<double>(large_);
    std::string text =
        fmt::format("Streaming {} messages {}, {} moves most: {}", format_size(large_),
                    where(*placement), name_of(best), format_rate(rate(&best) * bytes));
    const Result* known = comparison_.find("unix_stream", "block", *placement, large_);
    if (known == nullptr) known = comparison_.find("pipe", "block", *placement, large_);
    if (known != nullptr && known != &best)
      text += fmt::format(", {} a {} ({})", times(rate(&best) / rate(known)),
                          known->row->info().mechanism == "pipe" ? "pipe" : "unix stream socket",
                          format_rate(rate(known) * bytes));
    if (const Result* copy = comparison_.find("memcpy", "spin", *placement, large_))
      text +=
          fmt::format(", where one bare copy in memory makes {}", format_rate(rate(copy) * bytes));
    return text + ".";
  }

  const Comparison& comparison_;
  std::size_t small_ = 0;
  std::size_t large_ = 0;
};

// The most readers that broadcast and pipes were both measured with.
std::vector<std::string> explain_broadcast(const Comparison& comparison) {
  const std::size_t size = comparison.settings.sizes.front();
  const auto find = [&](std::string_view mechanism, std::string_view wait, unsigned readers) {
    const auto found = std::ranges::find_if(comparison.results, [&](const Result& result) {
      return result.error.empty() && result.row->info().mechanism == mechanism &&
             result.row->info().wait == wait && result.readers == readers &&
             result.message_bytes == size;
    });
    return found == comparison.results.end() ? nullptr : &*found;
  };
  std::vector<unsigned> counts = comparison.settings.readers;
  std::ranges::sort(counts, std::greater<>());
  for (const unsigned readers : counts) {
    const Result* const ours = find("broadcast", "adaptive", readers);
    const Result* const pipes = find("pipe", "block", readers);
    if (ours == nullptr || pipes == nullptr) continue;
    const double rate = median(ours->messages_per_s);
    return {fmt::format(
        "To tell {} reader{} {} and to hear from each takes {} by broadcast and {} by a pipe for "
        "each. Streaming, the slowest reader gets {} messages/s by broadcast, {} those by pipes "
        "({}/s).",
        readers, readers == 1 ? "" : "s", format_size(size), format_ns(ours->rtt.p50()),
        format_ns(pipes->rtt.p50()), format_count(rate),
        times(rate / median(pipes->messages_per_s)), format_count(median(pipes->messages_per_s)))};
  }
  return {};
}

}  // namespace

std::vector<std::string> explain(const Comparison& comparison) {
  if (comparison.settings.is_scaling() || comparison.settings.dead_peer) return {};
  if (comparison.settings.is_broadcast()) return explain_broadcast(comparison);
  return Sentences(comparison).all();
}

}  // namespace farcall::compare
