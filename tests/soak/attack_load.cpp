// SPDX-License-Identifier: Apache-2.0
//
// What attackers cost those who behave: attack-load [OPTION]... [ATTACK]...; see --help. 32 clients
// call one door without pause, in turns alone, beside as many processes that only compute as there
// are attackers, and beside the attackers. Attackers are one user, clients another, the server root.
#include <fmt/core.h>

#include <bit>
#include <charconv>
#include <optional>

#include "door/attacks.hpp"

namespace farcall::door::test {
namespace {

constexpr std::size_t kClients = 32;
constexpr uid_t kClientUser = 60'000;

constexpr const char* kUsage =
    "Usage: attack-load [--attackers N] [--seconds S] [--rounds R] [--list] [ATTACK]...\n"
    "Calls per second and p99 of 32 clients of one door: alone, beside N processes that only\n"
    "compute, beside N attackers. Needs root. Exits with 1 if calls failed or none were made.\n";

struct Options {
  unsigned attackers = 1;
  unsigned seconds = 1;
  unsigned rounds = 3;
  std::vector<std::string_view> attacks;
};

// Times of calls, in buckets that are an eighth of a power of two of nanoseconds wide.
struct Histogram {
  std::array<std::atomic<std::uint64_t>, 64 * 8> buckets;

  static std::size_t bucket_of(std::uint64_t ns) {
    if (ns < 8) return ns;
    const auto exponent = static_cast<std::size_t>(std::bit_width(ns)) - 1;
    return exponent * 8 + (ns >> (exponent - 3)) % 8;
  }
  static double upper_end_us(std::size_t bucket) {
    return std::ldexp(1 + static_cast<double>(bucket % 8 + 1) / 8, static_cast<int>(bucket / 8)) /
           1e3;
  }
  void count(std::int64_t ns) {
    buckets[bucket_of(static_cast<std::uint64_t>(ns))].fetch_add(1, std::memory_order_relaxed);
  }
};

struct Board {
  Histogram times;
  std::atomic<bool> stop;
  std::atomic<std::uint64_t> failed;
};

struct Load {
  double calls_per_s = 0;
  double p99_us = 0;
};

class Clients {
 public:
  explicit Clients(int giver) {
    for (std::size_t i = 0; i < kClients; ++i)
      processes_.emplace_back([this, giver] { call_without_pause(giver); });
  }
  ~Clients() {
    board_->stop = true;
    for (Child& process : processes_) EXPECT_EQ(process.join(), 0);
  }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  [[nodiscard]] std::uint64_t failed() const { return board_->failed; }

  // What they do within that time from now.
  [[nodiscard]] Load measure(std::chrono::seconds time) const {
    const auto before = snapshot();
    const std::int64_t start = now_ns();
    std::this_thread::sleep_for(time);
    const double seconds = static_cast<double>(now_ns() - start) / 1e9;
    auto done = snapshot();
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < done.size(); ++i) all += done[i] -= before[i];
    std::uint64_t below = 0;
    std::size_t bucket = 0;
    while (bucket + 1 < done.size() && (below += done[bucket]) * 100 < all * 99) ++bucket;
    return {.calls_per_s = static_cast<double>(all) / seconds,
            .p99_us = Histogram::upper_end_us(bucket)};
  }

 private:
  void call_without_pause(int giver) {
    const UniqueFd door(receive_door(giver));
    ASSERT_TRUE(become(kClientUser));
    std::array<char, 64> message{};
    while (!board_->stop) {
      door_arg_t arguments{.data_ptr = message.data(),
                           .data_size = message.size(),
                           .desc_ptr = nullptr,
                           .desc_num = 0,
                           .rbuf = message.data(),
                           .rsize = message.size()};
      const std::int64_t before = now_ns();
      if (::door_call(door.get(), &arguments) != 0) ++board_->failed;
      board_->times.count(now_ns() - before);
    }
  }
  [[nodiscard]] std::array<std::uint64_t, 64 * 8> snapshot() const {
    std::array<std::uint64_t, 64 * 8> counts{};
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = board_->times.buckets[i];
    return counts;
  }

  Shared<Board> board_;
  std::deque<Child> processes_;
};

// Others beside the clients, for as long as this object lives.
class Beside {
 public:
  template <class Body>
  Beside(unsigned count, Body body) {
    for (unsigned i = 0; i < count; ++i) processes_.emplace_back(body);
    std::this_thread::sleep_for(100ms);  // until they are at it
  }
  ~Beside() {
    for (Child& process : processes_) process.kill();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  std::deque<Child> processes_;
};

void only_compute() {
  ASSERT_TRUE(become(kNobody));
  for (;;) asm volatile("");
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Returns whether all went well for the clients.
bool measure(const Attack& attack, const Options& options) {
  Giver& giver = *new Giver;
  const ScopedServer server([&giver] {
    giver.door = ::door_create(echo_or_long, nullptr, 0);
    return make_door(giver);
  });
  const Clients clients(server.door());
  const std::chrono::seconds time(options.seconds);
  std::vector<double> computing;
  std::vector<double> attacked;
  std::vector<double> p99;
  Load alone;
  std::this_thread::sleep_for(200ms);
  for (unsigned round = 0; round < options.rounds; ++round) {
    alone = clients.measure(time);
    {
      const Beside others(options.attackers, only_compute);
      computing.push_back(clients.measure(time).calls_per_s / alone.calls_per_s);
    }
    const Beside others(options.attackers, [&] {
      const UniqueFd door(receive_door(server.door()));
      run_as_nobody(attack, door.get(), time + 10s);
    });
    const Load load = clients.measure(time);
    attacked.push_back(load.calls_per_s / alone.calls_per_s);
    p99.push_back(load.p99_us / 1e3);
  }
  const auto [least, most] = std::ranges::minmax(attacked);
  const auto [best, worst] = std::ranges::minmax(p99);
  fmt::print("{:<26} {:>9.0f} {:>9.2f} {:>9.2f} ({:.2f} to {:.2f}) {:>8.1f} ({:.1f} to {:.1f})\n",
             attack.name, alone.calls_per_s, median(computing), median(attacked), least, most,
             median(p99), best, worst);
  std::fflush(stdout);
  return clients.failed() == 0 && least > 0;
}

std::optional<Options> read(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    unsigned* number = nullptr;
    if (word == "--attackers") number = &options.attackers;
    if (word == "--seconds") number = &options.seconds;
    if (word == "--rounds") number = &options.rounds;
    if (number == nullptr) {
      if (std::ranges::find(attacks(), word, &Attack::name) == attacks().end()) return {};
      options.attacks.push_back(word);
      continue;
    }
    if (++i == arguments.size()) return {};
    const std::string_view text = arguments[i];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc() || end != text.data() + text.size() || *number < 1) return {};
  }
  return options;
}

}  // namespace
}  // namespace farcall::door::test

int main(int argc, char** argv) {
  using namespace farcall::door::test;
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (first == "--list") {
    for (const Attack& attack : attacks()) fmt::print("{}\n", attack.name);
    return 0;
  }
  const std::optional<Options> options = read(std::span(argv + 1, argv + argc));
  if (!options) {
    fmt::print(stderr, "{}", kUsage);
    return 2;
  }
  if (!is_root()) {
    fmt::print(stderr, "attack-load: needs root, to become other users\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  fmt::print("{:<26} {:>9} {:>9} {:>9} {:>24}\n", "beside the clients", "calls/s", "computing",
             "attacked", "p99 then, ms");
  bool well = true;
  for (const Attack& attack : attacks())
    if (options->attacks.empty() ||
        std::ranges::find(options->attacks, attack.name) != options->attacks.end())
      well = measure(attack, *options) && well;
  return well && !::testing::Test::HasFailure() ? 0 : 1;
}
