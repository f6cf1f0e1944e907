// SPDX-License-Identifier: Apache-2.0
//
// Three machines, as network namespaces: a NATS server on each, which are one cluster; two export a
// door, and the third imports it and calls. Meanwhile servers, bridges and NATS servers are killed,
// plugs are pulled, lines lose and reorder what they carry, and the cluster is restarted server by
// server, each in turn and then at random. bridge-soak [SECONDS [SEED [CALLS]]]: at least so long,
// and until so many calls have been answered.
//
// Every request has a number, and servers enter it in a ledger that all processes share. In the end
// it must hold: an answered call was served exactly once, one that was refused or found the network
// down was not served, and no other was served twice; each answer is that of its call; no call has
// hung; and service goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "bridge/machines.hpp"

namespace {

using namespace farcall::test;
using Clock = std::chrono::steady_clock;

constexpr unsigned kClients = 16;
constexpr unsigned kImporter = 3;  // machine
constexpr unsigned kEvents = 7;

struct Tally {
  std::atomic<std::uint32_t> next{0};  // number
  std::atomic<std::uint64_t> answered{0}, refused{0}, down{0}, reset{0}, other{0};
  std::atomic<std::uint64_t> wrong{0}, twice{0}, lost{0}, though{0};
  std::atomic<std::uint64_t> longest_ms{0};
  std::atomic<std::uint64_t> since_ms[kClients]{};  // that each client has been in its call
  std::atomic<bool> stop{false};
};
Tally* tally;

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
          .count());
}

void call_once(unsigned client, DoorClient& door) {
  const std::uint32_t id = tally->next++;
  const std::string number = std::to_string(id);
  const std::uint64_t begin = now_ms();
  tally->since_ms[client] = begin;
  const std::string answer = door.call("id " + number);
  tally->since_ms[client] = 0;
  const std::uint64_t took = now_ms() - begin;
  for (std::uint64_t most = tally->longest_ms;
       took > most && !tally->longest_ms.compare_exchange_weak(most, took);)
    continue;
  const unsigned served = ledger().served[id];
  if (answer == "done " + number) {
    ++tally->answered;
    if (served != 1) ++tally->lost;
  } else if (answer.front() != '!') {
    ++tally->wrong;
  } else if (answer == "!ECONNREFUSED" || answer == "!ENETDOWN") {
    ++(answer == "!ENETDOWN" ? tally->down : tally->refused);
    if (served != 0) ++tally->though;
    nap(2);
  } else if (answer == "!ECONNRESET") {
    ++tally->reset;
  } else {
    if (++tally->other <= 5) std::fprintf(stderr, "bridge-soak: %s\n", answer.c_str());
  }
}

pid_t start_clients(const std::string& path) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  move_to(Machines::name(kImporter));
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      DoorClient door(path);
      while (!tally->stop && tally->next < Ledger::kMost - kClients) call_once(i, door);
    });
  for (std::thread& client : clients) client.join();
  ::_exit(0);
}

class World {
 public:
  World() : machines_(3) {
    for (unsigned i = 1; i <= 3; ++i) start_nats(i);
    for (unsigned i = 1; i <= 2; ++i) {
      start_service(i);
      start_exporter(i);
    }
    importer_ =
        start_bridge(scratch_, "soak-importer", options({"--import", "d.v1=door:" + path()}),
                     Machines::name(kImporter));
  }
  [[nodiscard]] std::string path() const { return scratch_.file("imported"); }

  void happen(unsigned event, unsigned machine, int ms) {
    switch (event) {
      case 0:
        services_[machine] = nullptr;
        nap(ms);
        start_service(machine);
        break;
      case 1:
        exporters_[machine] = nullptr;
        nap(ms);
        start_exporter(machine);
        break;
      case 2:
        nats_[machine]->stop();
        nap(ms);
        nats_[machine]->start();
        break;
      case 3:
        machines_.connect(machine, false);
        nap(ms);
        machines_.connect(machine, true);
        break;
      case 4:
        exporters_[machine]->kill(SIGSTOP);
        nap(ms);
        exporters_[machine]->kill(SIGCONT);
        break;
      case 5:
        spoil(machines_.line(machine), 50, 20, 20'000, 20'000);
        nap(ms);
        // Until it has been bad.
        comes_true([&, missed = machines_.line(machine).missed.load()] {
          return machines_.line(machine).missed != missed;
        });
        spoil(machines_.line(machine), 0, 0, 0, 0);
        break;
      default:
        for (unsigned i = 1; i <= 3; ++i) {
          nats_[i]->stop();
          nap(ms / 3);
          nats_[i]->start();
        }
    }
    ++events_[event];
  }
  void report() const {
    std::printf(
        "killed: %u servers, %u bridges, %u NATS servers; plugs pulled: %u; frozen: %u; bad lines: "
        "%u; cluster restarted: %u\n",
        events_[0], events_[1], events_[2], events_[3], events_[4], events_[5], events_[6]);
    for (unsigned i = 1; i <= 3; ++i)
      std::printf("line %u: %lu frames, %lu lost, %lu doubled\n", i,
                  static_cast<unsigned long>(machines_.line(i).frames),
                  static_cast<unsigned long>(machines_.line(i).missed),
                  static_cast<unsigned long>(machines_.line(i).repeated));
  }
  // Whether the lines were as bad as they should have been.
  [[nodiscard]] bool had_bad_lines() const {
    std::uint64_t all = 0;
    for (unsigned i = 1; i <= 3; ++i) all += machines_.line(i).missed;
    return all > 0;
  }

 private:
  static void spoil(Line& line, unsigned lost, unsigned doubled, unsigned delay_us,
                    unsigned jitter_us) {
    line.lost = lost;
    line.doubled = doubled;
    line.delay_us = delay_us;
    line.jitter_us = jitter_us;
  }
  std::vector<std::string> options(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"--death-bound", "1", "--connect-bound", "1"};
    for (unsigned i = 1; i <= 3; ++i) all.insert(all.end(), {"--nats", nats_[i]->url()});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void start_nats(unsigned i) {
    std::string routes;
    for (unsigned other = 1; other <= 3; ++other)
      if (other != i) routes += "\"nats-route://" + Machines::address(other) + ":6222\", ";
    nats_[i] = std::make_unique<Nats>(
        scratch_,
        "server_name: n" + std::to_string(i) + "\ncluster { name: soak, listen: \"" +
            Machines::address(i) + ":6222\", routes: [" + routes +
            "] }\n"
            "ping_interval: \"1s\"\nping_max: 2\n",
        Machines::name(i), Machines::address(i), 4222, "nats" + std::to_string(i));
  }
  void start_service(unsigned i) {
    services_[i] = std::make_unique<Service>(scratch_.file("door" + std::to_string(i)), "",
                                             Machines::name(i), i);
  }
  void start_exporter(unsigned i) {
    const std::string number = std::to_string(i);
    exporters_[i] =
        start_bridge(scratch_, "soak-exporter" + number,
                     options({"--export", "door:" + scratch_.file("door" + number) + "=d.v1"}),
                     Machines::name(i));
  }

  const Machines machines_;
  ScratchDirectory scratch_;
  std::array<std::unique_ptr<Nats>, 4> nats_;
  std::array<std::unique_ptr<Service>, 3> services_;
  std::array<std::unique_ptr<Program>, 3> exporters_;
  std::unique_ptr<Program> importer_;
  std::array<unsigned, kEvents> events_{};
};

bool answers(std::uint64_t more, std::chrono::seconds time) {
  const std::uint64_t wanted = tally->answered + more;
  return comes_true([wanted] { return tally->answered >= wanted; }, time);
}

int verdict() {
  const std::uint32_t calls = tally->next;
  for (std::uint32_t id = 0; id < calls; ++id)
    if (ledger().served[id] > 1) ++tally->twice;
  const auto number = [](const std::atomic<std::uint64_t>& value) {
    return static_cast<unsigned long>(value.load());
  };
  std::printf("%u calls: %lu answered, %lu refused, %lu without network, %lu reset, %lu other\n",
              calls, number(tally->answered), number(tally->refused), number(tally->down),
              number(tally->reset), number(tally->other));
  std::printf("served by the first: %u, by the second: %u\n", ledger().by_server[1].load(),
              ledger().by_server[2].load());
  std::printf(
      "served twice: %lu; answered and not served: %lu; wrong answers: %lu; served though "
      "refused: %lu; longest call: %lu ms\n",
      number(tally->twice), number(tally->lost), number(tally->wrong), number(tally->though),
      number(tally->longest_ms));
  const bool spread = ledger().by_server[1] > 0 && ledger().by_server[2] > 0;
  if (!spread) std::printf("one server got no call\n");
  return tally->twice + tally->lost + tally->wrong + tally->though + tally->other == 0 && spread
             ? 0
             : 1;
}

int run(double seconds, unsigned seed, std::uint64_t calls) {
  World world;
  const pid_t clients = start_clients(world.path());
  int failed = 0;
  if (!answers(100, 30s)) failed = std::printf("no service to begin with\n");
  std::minstd_rand generator(seed);
  const auto random = [&] { return static_cast<unsigned>(generator()); };
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  const auto numbers_are_used_up = [] { return tally->next >= Ledger::kMost - kClients; };
  const auto is_over = [&](unsigned n) {
    return numbers_are_used_up() ||
           (n >= kEvents + 2 && Clock::now() >= until && tally->answered >= calls);
  };
  for (unsigned n = 0; failed == 0 && !is_over(n); ++n) {
    // First each in turn; the importer's own NATS server, plug and line are of use, too.
    const bool in_turn = n < kEvents;
    const unsigned event = in_turn ? n : random() % kEvents;
    const bool of_any = event == 2 || event == 3 || event == 5;
    const unsigned machine = in_turn ? 1 + n % 2 : 1 + random() % (of_any ? 3 : 2);
    world.happen(event, machine, static_cast<int>(50 + random() % (in_turn ? 400 : 1600)));
    if (!answers(20, 40s) && !numbers_are_used_up())
      failed = std::printf("no service after event %u of %u\n", event, machine);
    for (const auto& since : tally->since_ms)
      if (since != 0 && now_ms() - since > 30000) failed = std::printf("a call hangs\n");
  }
  tally->stop = true;
  int status = -1;
  if (!comes_true([&] { return ::waitpid(clients, &status, WNOHANG) == clients; }, 40s)) {
    failed = std::printf("a client hangs\n");
    ::kill(clients, SIGKILL);
    ::waitpid(clients, nullptr, 0);
  }
  world.report();
  if (!world.had_bad_lines()) failed = std::printf("no line has lost anything\n");
  return verdict() != 0 || failed != 0 ? 1 : 0;
}

int skip(const std::string& reason) {
  std::printf("bridge-soak: Skipped\n%s\n\n[  SKIPPED ] bridge-soak\n", reason.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const auto seed = static_cast<unsigned>(argc > 2 ? std::atoi(argv[2]) : 1);
  const auto calls = static_cast<std::uint64_t>(argc > 3 ? std::atoll(argv[3]) : 0);
  if (const std::string reason = no_nats(); !reason.empty()) return skip(reason);
  if (::geteuid() != 0) return skip("needs root, for machines of its own");
  ledger();
  tally = new (::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0)) Tally;
  try {
    return run(seconds, seed, calls);
  } catch (const std::exception& error) {
    return std::string(error.what()) == "unshare" ? skip("this system permits no namespaces")
                                                  : (std::puts(error.what()), 1);
  }
}
