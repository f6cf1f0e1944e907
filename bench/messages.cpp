// SPDX-License-Identifier: Apache-2.0
//
// What farcall compare does not ask of messages: one client that works while many others are there
// that idle, that wait for an answer, or that are killed while they wait. In turns, with one
// server.
#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "farcall/wait.hpp"

namespace {

using namespace farcall;
using namespace std::chrono_literals;

constexpr int kRounds = 5;
constexpr int kThreads = 100;  // clients in one process
constexpr auto kTime = 400ms;  // of one measurement

void must(bool good, const char* what) {
  if (!good) throw_errno(what);
}

class Process {
 public:
  explicit Process(const std::function<void()>& body) : process_(::fork()) {
    must(process_ >= 0, "fork");
    if (process_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~Process() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

 private:
  pid_t process_;
};

struct Counts {
  std::atomic<int> serving;
  std::atomic<int> connected;
  std::atomic<int> stuck;
  std::atomic<int> killed;
};

template <class Condition>
void await(Condition condition) {
  for (int i = 0; i < 60'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  if (!condition()) throw SystemError(ETIMEDOUT, "the crowd");
}

// Answers everybody but those who want to be stuck.
void serve(const std::string& name, Counts& counts) {
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  must(channel > 0, "farcall_name_attach");
  counts.serving = 1;
  char text[64];
  std::int64_t id = 0;
  farcall_info info{};
  for (;;) {
    id = farcall_reply_receive(id, 0, text, info.received, channel, text, sizeof text, &info);
    if (id <= FARCALL_ONE_WAY || text[0] == 's') {
      if (id > FARCALL_ONE_WAY) ++counts.stuck;
      id = 0;
    }
  }
}

// The clients of one process.
void gather(const std::string& name, Counts& counts, int clients, bool stuck) {
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i)
    threads.emplace_back([&] {
      const int connection = farcall_name_open(name.c_str());
      char text[64]{};
      must(connection > 0 && farcall_send(connection, "x", 1, text, sizeof text) == 0, "connect");
      ++counts.connected;
      if (stuck) farcall_send(connection, "s", 1, text, sizeof text);
      for (;;) ::pause();
    });
  for (std::thread& thread : threads) thread.join();
}

// Clients that are killed while they wait, one after the other.
void die(const std::string& name, Counts& counts) {
  for (;;) {
    const int before = counts.stuck;
    {
      const Process client(
          [&] { farcall_send(farcall_name_open(name.c_str()), "s", 1, nullptr, 0); });
      await([&] { return counts.stuck != before; });
    }
    ++counts.killed;
    std::this_thread::sleep_for(1ms);
  }
}

struct Figures {
  double rate;  // round trips a second
  double p50;   // us
  double p99;
  double longest;
};

Figures measure(int connection) {
  std::vector<std::int64_t> took;
  took.reserve(2'000'000);
  char text[64]{};
  const std::int64_t start = monotonic_ns();
  std::int64_t now = start;
  const std::int64_t end = start + std::chrono::nanoseconds(kTime).count();
  while (now < end) {
    must(farcall_send(connection, "x", 1, text, sizeof text) == 0, "farcall_send");
    const std::int64_t then = std::exchange(now, monotonic_ns());
    took.push_back(now - then);
  }
  std::ranges::sort(took);
  const auto at = [&](double share) {
    return static_cast<double>(
               took[static_cast<std::size_t>(share * static_cast<double>(took.size() - 1))]) /
           1e3;
  };
  return {.rate = static_cast<double>(took.size()) / std::chrono::duration<double>(kTime).count(),
          .p50 = at(0.5),
          .p99 = at(0.99),
          .longest = at(1)};
}

void run(int clients) {
  void* memory =
      ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  auto& counts = *new (memory) Counts{};
  const std::string name = "bench-messages-" + std::to_string(::getpid());
  const Process server([&] { serve(name, counts); });
  await([&] { return counts.serving == 1; });
  const int connection = farcall_name_open(name.c_str());
  must(connection > 0, "farcall_name_open");
  (void)measure(connection);

  const auto crowd = [&](std::deque<Process>& all, bool stuck) {
    const int before = counts.connected;
    const int stuck_before = counts.stuck;
    for (int left = clients; left > 0; left -= kThreads)
      all.emplace_back([&, left] { gather(name, counts, std::min(left, kThreads), stuck); });
    await([&] { return counts.connected - before == clients; });
    if (stuck) await([&] { return counts.stuck - stuck_before == clients; });
    std::this_thread::sleep_for(100ms);
  };
  fmt::print("{:<22}{:>12}{:>10}{:>10}{:>12}\n", "the others", "calls/s", "p50 us", "p99 us",
             "longest us");
  for (int round = 0; round < kRounds; ++round) {
    const auto show = [&](const std::string& what) {
      const Figures seen = measure(connection);
      fmt::print("{:<22}{:>12.0f}{:>10.2f}{:>10.2f}{:>12.0f}\n", what, seen.rate, seen.p50,
                 seen.p99, seen.longest);
    };
    show("none");
    {
      std::deque<Process> all;
      crowd(all, false);
      show(fmt::format("{} idle", clients));
    }
    {
      std::deque<Process> all;
      crowd(all, true);
      show(fmt::format("{} stuck", clients));
      const Process dying([&] { die(name, counts); });
      const int before = counts.killed;
      show(fmt::format("{} stuck, some dying", clients));
      fmt::print("{:<22}{:>12} killed meanwhile\n", "", counts.killed - before);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int clients = 1000;
  if (argc > 1) {
    const std::string_view text = argv[1];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), clients);
    if (argc > 2 || error != std::errc() || end != text.data() + text.size() || clients < 1) {
      fmt::print(stderr, "Usage: bench-messages [CLIENTS]    (default: 1000)\n");
      return 2;
    }
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  try {
    run(clients);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-messages: {}\n", error.what());
    return 1;
  }
  return 0;
}
