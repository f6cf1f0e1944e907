// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at random moments: the survivor gets what was written whole, then learns of the death.
// FARCALL_KILL_ROUNDS sets the number of rounds.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "harness/killer.hpp"
#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::Killer;
using test::Latencies;
using test::Pattern;
using test::Unattached;

int rounds() { return test::setting("FARCALL_KILL_ROUNDS", 500); }

constexpr WaitMode kModes[] = {WaitMode::spin, WaitMode::adaptive, WaitMode::block};

void expect_killed(pid_t child) {
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << std::hex << status;
}

// Forks take about a millisecond; some rounds shall meet a victim that is busy already.
constexpr unsigned kBusy = 3000;  // us

TEST(RingKill, AReaderLearnsOfItAndGetsOnlyWholeMessages) {
  Latencies latencies;
  for (int round = 0; round < rounds(); ++round) {
    Unattached ring(RingKind::messages, 8192);
    const WaitMode mode = kModes[round % 3];
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const RingMemory memory = ring.attach_writer();
      MessageWriter writer(memory.view(), Waiter(ring.writer_lifeline(), mode));
      std::vector<std::byte> message(5000);
      for (std::uint64_t i = 0;; ++i) {
        const auto bytes = std::span(message).first(8 + (i * 97) % (i % 16 == 0 ? 4900 : 200));
        Pattern(i).fill(bytes);
        if (writer.write(bytes, Deadline::never()) != Outcome::ok) ::_exit(1);
      }
    }
    const RingMemory memory = ring.attach_reader();
    MessageReader reader(memory.view(), Waiter(ring.reader_lifeline(), mode));
    Killer killer(child, kBusy, static_cast<unsigned>(round));
    std::vector<std::byte> into(5000);
    std::size_t size = 0;
    std::uint64_t count = 0;
    Outcome outcome = Outcome::ok;
    while ((outcome = reader.read(into, size, Deadline::after(std::chrono::seconds(10)))) ==
           Outcome::ok)
      ASSERT_TRUE(Pattern(count++).matches(std::span(into).first(size)));
    const std::int64_t noticed = monotonic_ns();
    ASSERT_EQ(outcome, Outcome::peer_gone);
    latencies.add(killer.late(noticed));
    expect_killed(child);
  }
  latencies.expect_prompt("from one side's death to the other's outcome");
}

TEST(RingKill, AWriterLearnsOfIt) {
  Latencies latencies;
  for (int round = 0; round < rounds(); ++round) {
    Unattached ring(RingKind::bytes, 8192);
    const WaitMode mode = kModes[round % 3];
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const RingMemory memory = ring.attach_reader();
      ByteReader reader(memory.view(), Waiter(ring.reader_lifeline(), mode));
      Pattern pattern(3);
      std::vector<std::byte> into(3000);
      std::size_t count = 0;
      while (reader.read_some(into, count, Deadline::never()) == Outcome::ok)
        if (!pattern.matches(std::span(into).first(count))) ::_exit(1);
      ::_exit(2);
    }
    const RingMemory memory = ring.attach_writer();
    ByteWriter writer(memory.view(), Waiter(ring.writer_lifeline(), mode));
    Killer killer(child, kBusy, static_cast<unsigned>(round));
    Pattern pattern(3);
    std::vector<std::byte> block(1000);
    std::size_t count = 0;
    Outcome outcome = Outcome::ok;
    do pattern.fill(block);
    while ((outcome = writer.write(block, count, Deadline::after(std::chrono::seconds(10)))) ==
           Outcome::ok);
    const std::int64_t noticed = monotonic_ns();
    ASSERT_EQ(outcome, Outcome::peer_gone);
    latencies.add(killer.late(noticed));
    expect_killed(child);
  }
  latencies.expect_prompt("from one side's death to the other's outcome");
}

TEST(RingKill, MemoryGoesWithItsLastHolder) {
  const auto memory_kb = [] {
    // Shmem counts all memory files of the machine.
    std::size_t kb = 0;
    FILE* info = ::fopen("/proc/meminfo", "r");
    char line[256];
    while (info != nullptr && ::fgets(line, sizeof line, info) != nullptr)
      if (std::sscanf(line, "Shmem: %zu", &kb) == 1) break;
    if (info != nullptr) ::fclose(info);
    return kb;
  };
  constexpr std::size_t kCapacity = 64UL << 20;
  // Others take and give back memory at the same time: so what counts is the difference of two
  // looks in a row, and one of several tries.
  bool given_back = false;
  for (int i = 0; i < 20 && !given_back; ++i) {
    std::size_t with = 0;
    {
      const Unattached ring(RingKind::bytes, kCapacity);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        const RingMemory memory =
            RingMemory::attach(ring.shared, RingKind::bytes, Access::read_write);
        ::raise(SIGKILL);
      }
      expect_killed(child);
      struct stat status {};
      ASSERT_EQ(::fstat(ring.shared.fd(), &status), 0);
      EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, kCapacity) << "it is held";
      with = memory_kb();
    }
    given_back = memory_kb() + kCapacity / 2048 < with;
  }
  EXPECT_TRUE(given_back);
}

}  // namespace
}  // namespace farcall
