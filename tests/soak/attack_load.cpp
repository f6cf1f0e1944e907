// SPDX-License-Identifier: Apache-2.0
//
// What attackers cost those who behave: attack-load [OPTION]... [ATTACK]...; see --help. 32 clients
// call one server without pause, in turns alone, beside the attackers, and beside processes that
// only compute: as many as the attackers had that wanted a processor. Attackers are one user,
// clients another, the server root.
#include <fmt/core.h>
#include <sys/stat.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "door/attacks.hpp"
#include "message/attacks.hpp"

namespace farcall::door::test {
namespace {

constexpr std::size_t kClients = 32;
constexpr uid_t kClientUser = 60'000;

constexpr const char* kUsage =
    "Usage: attack-load [--attackers N] [--seconds S] [--rounds R] [--list] [ATTACK]...\n"
    "Calls per second and p99 of 32 clients of one door or channel: alone, beside N attackers, "
    "and\n"
    "beside processes that only compute, as many as the attackers had that wanted a processor.\n"
    "Needs root. Exits with 1 if calls failed or none were made.\n";

struct Options {
  unsigned attackers = 1;
  unsigned seconds = 1;
  unsigned rounds = 3;
  std::vector<std::string> attacks;  // by name; empty: all
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

// A server, and what processes of their own do with it.
struct Scene {
  std::string name;
  std::shared_ptr<void> server;
  std::function<std::function<bool()>()> client;  // becomes another user; gives what calls once
  std::function<void(std::chrono::nanoseconds)> attack;
};

class Clients {
 public:
  explicit Clients(const Scene& scene) {
    for (std::size_t i = 0; i < kClients; ++i)
      processes_.emplace_back([this, &scene] { call_without_pause(scene.client()); });
  }
  ~Clients() {
    board_->stop = true;
    for (Child& process : processes_) EXPECT_EQ(process.join(), 0);
  }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  [[nodiscard]] std::uint64_t failed() const { return board_->failed; }

  // What they do within that time from now, in which `look` is called now and then.
  template <class Look>
  [[nodiscard]] Load measure(std::chrono::seconds time, Look look) const {
    constexpr int kLooks = 4;
    const auto before = snapshot();
    const std::int64_t start = now_ns();
    for (int i = 0; i < kLooks; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(time) / kLooks);
      look();
    }
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
  void call_without_pause(const std::function<bool()>& call) {
    while (!board_->stop) {
      const std::int64_t before = now_ns();
      if (!call()) ++board_->failed;
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

// How many threads of that user want a processor.
unsigned runnable_of(uid_t user) {
  unsigned count = 0;
  std::error_code gone;
  using Entries = std::filesystem::directory_iterator;
  // What ends meanwhile ends the list.
  for (Entries process("/proc", gone); process != Entries(); process.increment(gone)) {
    struct stat owner {};
    if (::stat(process->path().c_str(), &owner) != 0 || owner.st_uid != user) continue;
    for (Entries task(process->path() / "task", gone); task != Entries(); task.increment(gone)) {
      std::string line;
      std::getline(std::ifstream(task->path() / "stat"), line);
      const std::size_t name = line.rfind(") ");
      if (name != std::string::npos && line[name + 2] == 'R') ++count;
    }
  }
  return count;
}

void only_compute() {
  ASSERT_TRUE(become(kNobody));
  for (;;) asm volatile("");
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Scene scene_of(const std::string& name, const Attack& attack) {
  Giver& giver = *new Giver;
  auto server = std::make_shared<ScopedServer>([&giver] {
    giver.door = ::door_create(echo_or_long, nullptr, 0);
    return make_door(giver);
  });
  const auto client = [server] {
    const int door = receive_door(server->door());
    EXPECT_TRUE(become(kClientUser));
    return [door] {
      std::array<char, 64> message{};
      door_arg_t arguments{.data_ptr = message.data(),
                           .data_size = message.size(),
                           .desc_ptr = nullptr,
                           .desc_num = 0,
                           .rbuf = message.data(),
                           .rsize = message.size()};
      return ::door_call(door, &arguments) == 0;
    };
  };
  const auto run = [server, &attack](std::chrono::nanoseconds time) {
    const UniqueFd door(receive_door(server->door()));
    run_as_nobody(attack, door.get(), time);
  };
  return {.name = name, .server = server, .client = client, .attack = run};
}

Scene scene_of(const std::string& label, const message::test::Attack& attack) {
  const std::string name = "attack-load-" + std::to_string(::getpid()) + "-" + attack.name;
  const Shared<Event> ready;
  auto server = std::make_shared<Child>([&] {
    const int channel = farcall_name_attach(name.c_str(), FARCALL_UNBLOCK, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    const message::test::Echo echo(channel, attack.threads);
    ready->happens();
    for (;;) ::pause();
  });
  EXPECT_TRUE(ready->wait());
  const auto client = [name] {
    EXPECT_TRUE(become(kClientUser));
    return [connection = message::test::connect_to("0/" + name)] {
      std::array<char, 64> text{};
      return farcall_send(connection, text.data(), text.size(), text.data(), text.size()) == 0;
    };
  };
  const auto run = [name, &attack](std::chrono::nanoseconds time) {
    message::test::run_as_nobody(attack, "0/" + name, time);
  };
  return {.name = label, .server = server, .client = client, .attack = run};
}

// What can be asked for.
struct Choice {
  std::string name;
  std::function<Scene()> scene;
};
std::vector<Choice> choices() {
  std::vector<Choice> all;
  const auto add = [&](const std::string& kind, const auto& attacks) {
    for (const auto& attack : attacks) {
      const std::string name = kind + ":" + attack.name;
      all.push_back({name, [name, &attack] { return scene_of(name, attack); }});
    }
  };
  add("door", attacks());
  add("channel", message::test::attacks());
  return all;
}

// Within which an attack has been measured, and all its processes have ended.
std::chrono::seconds longest_time(const Options& options) {
  return std::chrono::seconds(options.rounds * (3 * options.seconds + 2) + 60);
}

// Returns whether all went well for the clients.
bool measure(const Choice& choice, const Options& options) {
  give_up_after(longest_time(options));
  const Scene scene = choice.scene();
  const Clients clients(scene);
  const std::chrono::seconds time(options.seconds);
  std::vector<double> computing;
  std::vector<double> attacked;
  std::vector<double> p99;
  Load alone;
  std::this_thread::sleep_for(200ms);
  unsigned runnable = 0;
  const auto nothing = [] {};
  for (unsigned round = 0; round < options.rounds; ++round) {
    alone = clients.measure(time, nothing);
    std::vector<double> seen;
    {
      const Beside others(options.attackers, [&] { scene.attack(time + 10s); });
      const Load load = clients.measure(time, [&] { seen.push_back(runnable_of(kNobody)); });
      attacked.push_back(load.calls_per_s / alone.calls_per_s);
      p99.push_back(load.p99_us / 1e3);
    }
    runnable = static_cast<unsigned>(median(seen));
    const Beside others(runnable, only_compute);
    computing.push_back(clients.measure(time, nothing).calls_per_s / alone.calls_per_s);
  }
  const auto [least, most] = std::ranges::minmax(attacked);
  const auto [best, worst] = std::ranges::minmax(p99);
  fmt::print(
      "{:<34} {:>9.0f} {:>9.2f} ({:>2}) {:>9.2f} ({:.2f} to {:.2f}) {:>8.1f} ({:.1f} to {:.1f})\n",
      scene.name, alone.calls_per_s, median(computing), runnable, median(attacked), least, most,
      median(p99), best, worst);
  std::fflush(stdout);
  return clients.failed() == 0 && least > 0;
}

std::optional<Options> read(std::span<char*> arguments, const std::vector<Choice>& known) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    unsigned* number = nullptr;
    if (word == "--attackers") number = &options.attackers;
    if (word == "--seconds") number = &options.seconds;
    if (word == "--rounds") number = &options.rounds;
    if (number == nullptr) {
      if (std::ranges::find(known, word, &Choice::name) == known.end()) return {};
      options.attacks.emplace_back(word);
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
  const std::vector<Choice> known = choices();
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (first == "--list") {
    for (const Choice& choice : known) fmt::print("{}\n", choice.name);
    return 0;
  }
  const std::optional<Options> options = read(std::span(argv + 1, argv + argc), known);
  if (!options) {
    fmt::print(stderr, "{}", kUsage);
    return 2;
  }
  if (!is_root()) {
    fmt::print(stderr, "attack-load: needs root, to become other users\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  fmt::print("{:<34} {:>9} {:>14} {:>9} {:>24}\n", "beside the clients", "calls/s", "computing",
             "attacked", "p99 then, ms");
  bool well = true;
  for (const Choice& choice : known)
    if (options->attacks.empty() ||
        std::ranges::find(options->attacks, choice.name) != options->attacks.end())
      well = measure(choice, *options) && well;
  return well && !::testing::Test::HasFailure() ? 0 : 1;
}
