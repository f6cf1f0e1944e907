// SPDX-License-Identifier: Apache-2.0
//
// Who waits for the other side costs nothing.
#include <sys/resource.h>
#include <sys/time.h>

#include <chrono>
#include <thread>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

using Idle = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Idle, testing::ValuesIn(all_mechanisms()), test_name);

struct Cost {
  long microseconds;
  long sleeps;
};
Cost cost_so_far() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const timeval& user = usage.ru_utime;
  const timeval& system = usage.ru_stime;
  return {.microseconds = (user.tv_sec + system.tv_sec) * 1'000'000 + user.tv_usec + system.tv_usec,
          .sleeps = usage.ru_nvcsw};
}

// Of one call that waits for 700 ms: a spin at its beginning, then a few sleeps.
void require_little(const Cost& before) {
  const Cost after = cost_so_far();
  const long microseconds = after.microseconds - before.microseconds;
  require(microseconds < (kSanitized ? 20'000 : 5'000), std::to_string(microseconds) + " us");
  require(after.sleeps - before.sleeps <= 20, std::to_string(after.sleeps) + " sleeps");
}

// How the child ends that measures itself. A processor that is taken away in the middle of a spin
// is charged to who spins, and who waits for longer sleeps more often: who costs something does so
// in each of some tries.
template <class Try>
void expect_little(Try once) {
  std::string ended;
  for (int i = 0; i < 5 && ended != "exited with 0"; ++i) ended = once();
  EXPECT_EQ(ended, "exited with 0");
}

std::string cost_of_reading(AnyChannel channel) {
  auto [child, writer] = spawn_reader(std::move(channel), [](Reader& in) {
    std::vector<std::byte> into(1);
    require(in.read(into) == 1, "a byte");
    const Cost before = cost_so_far();
    require(in.read(into) == 1, "another byte");
    require_little(before);
    return 0;
  });
  writer->write(bytes_of("a"));
  std::this_thread::sleep_for(700ms);
  writer->write(bytes_of("b"));
  return child.wait().describe();
}

std::string cost_of_writing(AnyChannel channel) {
  constexpr std::size_t kStep = 1024;
  auto [child, reader] = spawn_writer(std::move(channel), [](Writer& out) {
    const std::vector<std::byte> bytes(kStep);
    // The call that waits is the one that takes so long.
    for (int i = 0; i < 1 << 16; ++i) {
      const Cost before = cost_so_far();
      const std::int64_t start = monotonic_ns();
      out.write(bytes);
      if (monotonic_ns() - start < 400'000'000) continue;
      require_little(before);
      return 0;
    }
    return 1;
  });
  std::this_thread::sleep_for(700ms);
  std::vector<std::byte> into(1 << 16);
  // Who finds that it has cost too much ends without finishing.
  error_of([&, &reader = reader] {
    while (reader->read(into) != 0) {
    }
  });
  return child.wait().describe();
}

TEST_P(Idle, ReaderUsesNoProcessorTime) {
  expect_little([] { return cost_of_reading(channel()); });
}

TEST_P(Idle, WriterUsesNoProcessorTime) {
  expect_little([] { return cost_of_writing(channel()); });
}

}  // namespace
}  // namespace farcall::channel::test
