// SPDX-License-Identifier: Apache-2.0
//
// Channels that come and go, or are killed, leave nothing behind.
#include <malloc.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "channel/conformance.hpp"
#include "channel/sandbox.hpp"
#include "farcall/channel/clean.hpp"
#include "harness/descriptors.hpp"

namespace farcall::channel::test {
namespace {

using Leak = Conformance;
INSTANTIATE_TEST_SUITE_P(Channel, Leak, testing::ValuesIn(all_mechanisms()), test_name);

constexpr int kNoSandbox = 77;
constexpr int kCycles = kSanitized ? 1'000 : 10'000;  // sanitizers make each take much longer

struct Holdings {
  std::size_t descriptors;
  long mappings;
  long heap_bytes;
};
Holdings holdings() {
  Holdings now{};
  now.descriptors = open_descriptors();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  now.heap_bytes = static_cast<long>(::mallinfo2().uordblks);
  return now;
}

// All that can become of a channel, in turn: used, opened only, one end taken, none.
void cycle(const AnyMechanism& mechanism, int turn) {
  AnyChannel channel(mechanism, Options{.buffer_bytes = 4096});
  if (turn % 8 == 5) return;
  if (turn % 8 == 6) {
    channel.take_reader();
    return;
  }
  if (turn % 8 == 7) {
    channel.take_writer();
    return;
  }
  const auto [reader, writer] = channel.take_both();
  if (turn % 2 == 0) return;
  const Meanwhile writing([&writer = writer] {
    writer->write(bytes_of("a"));
    writer->finish();
  });
  std::vector<std::byte> into(1);
  require(reader->read(into) == 1, "a byte");
}

// What is found in a sandbox after `run` has run in it. Skips the test without sandboxes.
template <class Run>
void expect_nothing_left_by(const AnyMechanism& mechanism, Run run) {
  Subprocess child([&] {
    if (!Sandbox::enter()) return kNoSandbox;
    run();
    std::string found;
    // Of a process that was killed the kernel may still be closing what it held.
    for (int i = 0; i < 10'000; ++i) {
      // The one mechanism that the kernel does not clean up after is cleaned by the next user.
      if (mechanism.properties().name == "sysv_mq") clean_leftovers(false);
      found = Sandbox::leftovers();
      if (found.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    require(found.empty(), "nothing left, but there is:\n" + found);
    return 0;
  });
  const ExitStatus status = child.wait();
  if (status.code == kNoSandbox) GTEST_SKIP() << "needs namespaces for IPC and mounts";
  EXPECT_EQ(status.describe(), "exited with 0");
}

TEST_P(Leak, TenThousandChannelsLeaveNothingInTheProcess) {
  ::setenv("TMPDIR", "/dev/shm", 1);  // a disk would take a millisecond for each file
  for (int i = 0; i < 64; ++i) cycle(mechanism(), i);
  const Holdings before = holdings();
  for (int i = 0; i < kCycles; ++i) cycle(mechanism(), i);
  const Holdings after = holdings();
  EXPECT_EQ(after.descriptors, before.descriptors);
  // Allocators keep a few, a sanitizer's some more. What leaks would do so in each turn of a kind.
  EXPECT_LE(after.mappings, before.mappings + kCycles / (kSanitized ? 20 : 100));
  EXPECT_LE(after.heap_bytes, before.heap_bytes + kCycles);
}

TEST_P(Leak, ChannelsLeaveNothingInTheSystem) {
  expect_nothing_left_by(mechanism(), [] {
    for (int i = 0; i < 160; ++i) cycle(mechanism(), i);
    for (int i = 0; i < 8; ++i) {
      auto [writing, reader] = spawn_writer(channel(), [](Writer& out) {
        write_pattern(out, 1000);
        return 0;
      });
      require(read_pattern(*reader) == 1000, "all bytes");
      require(writing.wait().success(), "the child's success");
    }
  });
}

// A reader in this process, a writer in a child, both busy until they are killed.
[[noreturn]] void work_for_ever(AnyChannel channel, const UniqueFd& started) {
  auto [child, reader] = spawn_writer(std::move(channel), [&started](Writer& out) -> int {
    require(::write(started.get(), "w", 1) == 1, "to tell");
    for (;;) write_pattern(out, 1 << 20);
  });
  require(::write(started.get(), "r", 1) == 1, "to tell");
  std::vector<std::byte> into(1 << 16);
  while (reader->read(into) != 0) {
  }
  std::abort();
}

TEST_P(Leak, BothSidesKilledLeaveNothingInTheSystem) {
  expect_nothing_left_by(mechanism(), [] {
    std::minstd_rand random(7);
    for (int round = 0; round < 10; ++round) {
      int ends[2];
      require(::pipe(ends) == 0, "a pipe");
      const UniqueFd watch(ends[0]);
      UniqueFd started(ends[1]);
      Subprocess parent([&]() -> int { work_for_ever(channel(), started); });
      started.reset();
      char who[2];
      require(::read(watch.get(), who, 1) == 1 && ::read(watch.get(), who + 1, 1) == 1, "a start");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      parent.kill(SIGKILL);
      require(parent.wait().signal == SIGKILL, "a killed parent");
      // Its child dies with it, and was the last to hold the pipe.
      require(::read(watch.get(), who, 1) == 0, "the end of the child");
    }
  });
}

}  // namespace
}  // namespace farcall::channel::test
