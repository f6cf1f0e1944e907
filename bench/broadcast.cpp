// SPDX-License-Identifier: Apache-2.0
//
// One writer and N readers, each a process: by broadcast, by a ring for each reader, by a pipe for
// each. A round: the writer tells all, and each answers through a ring of its own. A stream: the
// writer tells without pause until all have read all. In turns; median and quartiles.
//
// Usage: bench-broadcast [ROUNDS]
#include "farcall/broadcast.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "farcall/channel/mechanism.hpp"
#include "farcall/error.hpp"

namespace {

using namespace farcall;
using channel::AnyChannel;

constexpr std::size_t kBytes = 64;
constexpr int kRoundsEach = 2000;
constexpr int kStream = 20'000;
using Message = std::array<std::byte, kBytes>;

// What reads in a reader's process, and what writes to all.
using Read = std::function<void(Message&)>;
using Write = std::function<void(const Message&)>;
struct Fan {
  std::vector<std::function<Read()>> readers;
  std::function<Write()> writer;  // called once the readers are there
};

Fan by_broadcast(SlowReader slow, int count) {
  Fan fan;
  auto publisher = std::make_shared<Publisher>(Publisher::Options{.slow = slow});
  for (int i = 0; i < count; ++i) {
    auto end = std::make_shared<UniqueFd>(publisher->invite());
    fan.readers.emplace_back([end]() -> Read {
      auto mine = std::make_shared<Subscriber>(Subscriber::adopt(std::move(*end), {}));
      return [mine](Message& into) {
        std::size_t size = 0;
        std::uint64_t missed = 0;
        if (mine->read(into, size, missed, Deadline::never()) != Outcome::ok) ::_exit(1);
      };
    });
  }
  fan.writer = [publisher]() -> Write {
    return [publisher](const Message& message) {
      if (publisher->write(message, Deadline::never()) != Outcome::ok)
        throw MisuseError("a broadcast that failed");
    };
  };
  return fan;
}

Fan by_channels(std::string_view mechanism, int count) {
  Fan fan;
  auto channels = std::make_shared<std::vector<AnyChannel>>();
  for (int i = 0; i < count; ++i)
    channels->emplace_back(*channel::find_mechanism(mechanism), channel::Options{});
  for (int i = 0; i < count; ++i)
    fan.readers.emplace_back([channels, i]() -> Read {
      const std::shared_ptr mine = channels->at(static_cast<std::size_t>(i)).take_reader();
      channels->clear();
      return [mine](Message& into) {
        if (mine->read_fully(into) != into.size()) ::_exit(1);
      };
    });
  fan.writer = [channels]() -> Write {
    auto writers = std::make_shared<std::vector<std::unique_ptr<channel::Writer>>>();
    for (AnyChannel& one : *channels) writers->push_back(one.take_writer());
    return [writers](const Message& message) {
      for (const auto& writer : *writers) writer->write(message);
    };
  };
  return fan;
}

struct Result {
  double round_us;
  double per_second;
};

Result measure(const Fan& fan) {
  std::vector<AnyChannel> answers;
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < fan.readers.size(); ++i)
    answers.emplace_back(*channel::find_mechanism("ring"), channel::Options{});
  for (std::size_t i = 0; i < fan.readers.size(); ++i) {
    const pid_t child = ::fork();
    if (child < 0) throw_errno("fork");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto answer = answers[i].take_writer();
      const Read read = fan.readers[i]();
      Message message{};
      answer->write(message);  // it is there
      for (int k = 0; k < kRoundsEach; ++k) {
        read(message);
        answer->write(message);
      }
      for (int k = 0; k < kStream; ++k) read(message);
      answer->write(message);
      ::_exit(0);
    }
    children.push_back(child);
  }
  std::vector<std::unique_ptr<channel::Reader>> answered;
  answered.reserve(answers.size());
  for (AnyChannel& one : answers) answered.push_back(one.take_reader());
  const Write write = fan.writer();
  Message message{};
  const auto await_all = [&] {
    for (const auto& one : answered)
      if (one->read_fully(message) != message.size()) throw MisuseError("a reader has died");
  };
  await_all();
  std::vector<std::int64_t> times;
  for (int k = 0; k < kRoundsEach; ++k) {
    const std::int64_t start = monotonic_ns();
    write(message);
    await_all();
    times.push_back(monotonic_ns() - start);
  }
  const std::int64_t start = monotonic_ns();
  for (int k = 0; k < kStream; ++k) write(message);
  await_all();
  const std::int64_t took = monotonic_ns() - start;
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  std::ranges::sort(times);
  return {.round_us = static_cast<double>(times[times.size() / 2]) / 1e3,
          .per_second = kStream * 1e9 / static_cast<double>(took)};
}

void print(std::string_view name, int readers, std::vector<double> rounds,
           std::vector<double> rates) {
  std::ranges::sort(rounds);
  std::ranges::sort(rates);
  const std::size_t n = rounds.size();
  fmt::print(
      "{:<22} {:>2} readers: round {:8.2f} us ({:.2f} to {:.2f}), stream {:6.3f} M/s "
      "({:.3f} to {:.3f})\n",
      name, readers, rounds[n / 2], rounds[n / 4], rounds[3 * n / 4], rates[n / 2] / 1e6,
      rates[n / 4] / 1e6, rates[3 * n / 4] / 1e6);
}

}  // namespace

int main(int argc, char** argv) try {
  int turns = 5;
  if (argc > 1) {
    const std::string_view text = argv[1];
    if (std::from_chars(text.data(), text.data() + text.size(), turns).ec != std::errc{} ||
        turns < 1) {
      fmt::print(stderr, "usage: {} [ROUNDS]\n", argv[0]);
      return 2;
    }
  }
  struct Way {
    std::string_view name;
    std::function<Fan(int)> make;
  };
  const std::vector<Way> ways{
      {"broadcast", [](int count) { return by_broadcast(SlowReader::block, count); }},
      {"a ring for each", [](int count) { return by_channels("ring", count); }},
      {"a pipe for each", [](int count) { return by_channels("pipe", count); }},
  };
  for (const int readers : {1, 4, 16}) {
    std::vector<std::vector<double>> rounds(ways.size());
    std::vector<std::vector<double>> rates(ways.size());
    for (int turn = 0; turn < turns; ++turn)
      for (std::size_t way = 0; way < ways.size(); ++way) {
        const Result result = measure(ways[way].make(readers));
        rounds[way].push_back(result.round_us);
        rates[way].push_back(result.per_second);
      }
    for (std::size_t way = 0; way < ways.size(); ++way)
      print(ways[way].name, readers, rounds[way], rates[way]);
  }
} catch (const std::exception& error) {
  fmt::print(stderr, "bench-broadcast: {}\n", error.what());
  return 1;
}
