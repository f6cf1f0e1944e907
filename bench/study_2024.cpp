// SPDX-License-Identifier: Apache-2.0
//
// The 2024 study of Linux mechanisms, reproduced: what it costs to make a mechanism and a child,
// to have the child write some 40,000 bytes in messages of one size, and to read them.
//
//   study/<mechanism>/<size>      the nine mechanisms of the study
//   addition/<mechanism>/<size>   those that the study did not have
//   floor/<mechanism>             the same iteration with nothing written
//   floor/fork                    a child alone, without a mechanism
//
// The floor is a large part of every figure here; subtract it to see what the messages cost.
#include <benchmark/benchmark.h>
#include <sys/personality.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "farcall/channel/mechanism.hpp"
#include "farcall/channel/subprocess.hpp"

namespace {

using farcall::channel::AnyChannel;
using farcall::channel::AnyMechanism;
using farcall::channel::ExitStatus;
using farcall::channel::Subprocess;
using farcall::channel::Writer;

constexpr std::size_t kBytesPerIteration = 40'000;
constexpr std::size_t kSmallest = 16;
constexpr std::size_t kLargest = 8192;
constexpr std::uint32_t kSeed = 2024;

// The study's own settings; what the command line says comes after them and wins.
constexpr const char* kWarmUp = "--benchmark_min_warmup_time=5";
constexpr const char* kRepetitions = "--benchmark_repetitions=5";

constexpr std::array<std::string_view, 9> kStudied = {
    "pipe",     "fifo",    "unix_stream",       "unix_dgram",
    "posix_mq", "sysv_mq", "anonymous_mapping", "file_mapping",
    "posix_shm"};

std::vector<std::byte> random_message(std::size_t size) {
  std::mt19937 generator(kSeed);
  std::vector<std::byte> message(size);
  for (std::byte& byte : message) byte = static_cast<std::byte>(generator());
  return message;
}

void fail(benchmark::State& state, const ExitStatus& status) {
  state.SkipWithError(("the child " + status.describe()).c_str());
}

void transfer(benchmark::State& state, const AnyMechanism& mechanism, std::size_t size,
              std::size_t messages) {
  const std::vector<std::byte> message = random_message(size);
  std::vector<std::byte> buffer(size);
  // As whole messages where the mechanism has such, as the study's datagrams and queues were.
  const bool whole = mechanism.properties().boundaries;
  for ([[maybe_unused]] auto _ : state) {
    auto [child, reader] = spawn_writer(AnyChannel(mechanism, {}), [&](Writer& out) {
      for (std::size_t i = 0; i < messages; ++i) whole ? out.send(message) : out.write(message);
      return 0;
    });
    const auto read_one = [&, &in = *reader] {
      return whole ? in.receive(buffer).value_or(0) : in.read_fully(buffer);
    };
    std::size_t received = 0;
    while (received < messages && read_one() == size) ++received;
    const ExitStatus status = child.wait();
    if (!status.success()) return fail(state, status);
    if (received < messages) return state.SkipWithError("messages were lost");
  }
  if (messages == 0) return;
  if (buffer != message) return state.SkipWithError("a message was changed");
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size * messages));
}

void fork_alone(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    Subprocess child([] { return 0; });
    const ExitStatus status = child.wait();
    if (!status.success()) return fail(state, status);
  }
}

template <class Body>
void add(const std::string& name, Body body) {
  const auto run = [body](benchmark::State& state) {
    try {
      body(state);
    } catch (const std::exception& error) {
      state.SkipWithError(error.what());
    }
  };
#ifndef __clang_analyzer__  // to which what the library keeps is a leak
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond);
#endif
}

void add_sizes(const std::string& group, std::string_view name, const AnyMechanism& mechanism) {
  for (std::size_t size = kSmallest; size <= kLargest; size *= 2) {
    const std::size_t messages = (kBytesPerIteration + size - 1) / size;
    add(group + "/" + std::string(name) + "/" + std::to_string(size),
        [mechanism, size, messages](benchmark::State& state) {
          transfer(state, mechanism, size, messages);
        });
  }
}

void add_floor(std::string_view name, const AnyMechanism& mechanism) {
  add("floor/" + std::string(name),
      [mechanism](benchmark::State& state) { transfer(state, mechanism, kSmallest, 0); });
}

// A mechanism of the study that is missing is an error in the results, not a gap.
void add_all() {
  add("floor/fork", fork_alone);
  for (const std::string_view name : kStudied) {
    if (const AnyMechanism* mechanism = farcall::channel::find_mechanism(name)) {
      add_floor(name, *mechanism);
      add_sizes("study", name, *mechanism);
    } else {
      add("study/" + std::string(name),
          [](benchmark::State& state) { state.SkipWithError("there is no such mechanism"); });
    }
  }
  for (const AnyMechanism& mechanism : farcall::channel::all_mechanisms()) {
    const std::string_view name = mechanism.properties().name;
    if (std::find(kStudied.begin(), kStudied.end(), name) != kStudied.end()) continue;
    add_floor(name, mechanism);
    add_sizes("addition", name, mechanism);
  }
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.empty() ? "not shown" : line;
}

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "not shown";
}

bool addresses_random() {
  constexpr unsigned long kOnlyAsk = 0xffffffff;
  const int here = personality(kOnlyAsk);
  return (here & ADDR_NO_RANDOMIZE) == 0 &&
         first_line("/proc/sys/kernel/randomize_va_space") != "0";
}

void describe_machine() {
  utsname kernel{};
  uname(&kernel);
  benchmark::AddCustomContext("kernel", kernel.release);
  benchmark::AddCustomContext("processor", processor_model());
  benchmark::AddCustomContext("governor",
                              first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
  benchmark::AddCustomContext("turbo_off",
                              first_line("/sys/devices/system/cpu/intel_pstate/no_turbo"));
  benchmark::AddCustomContext("address_randomisation", addresses_random() ? "on" : "off");
#ifdef NDEBUG
  benchmark::AddCustomContext("build", "release");
#else
  benchmark::AddCustomContext("build", "debug: not for figures");
#endif
}

// One line per benchmark: the mean. The repetitions are in the JSON.
class MeanReporter : public benchmark::ConsoleReporter {
 public:
  using ConsoleReporter::ConsoleReporter;

  // In place of the library's own words. Those warn of a debug library where a distribution built
  // it with assertions, as Debian does; yet it is optimised, and the timed loop comes from the
  // header, compiled here. What matters is how this program was built, and that is said.
  bool ReportContext(const Context& context) override {
    name_field_width_ = context.name_field_width;
    printed_header_ = false;
    prev_counters_.clear();
    for (const auto& [key, value] : *benchmark::internal::GetGlobalContext())
      std::cerr << key << ": " << value << "\n";
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> shown;
    for (const Run& run : runs) {
      failures_ += run.error_occurred ? 1 : 0;
      if (run.error_occurred || run.aggregate_name == "mean" || run.repetitions == 1)
        shown.push_back(run);
    }
    if (!shown.empty()) ConsoleReporter::ReportRuns(shown);
  }

  [[nodiscard]] int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string warm_up(kWarmUp);
  std::string repetitions(kRepetitions);
  arguments.insert(arguments.begin() + 1, {warm_up.data(), repetitions.data()});
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;

  describe_machine();
  add_all();
  MeanReporter reporter(isatty(STDOUT_FILENO) != 0 ? MeanReporter::OO_Color
                                                   : MeanReporter::OO_None);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return reporter.failures() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
