// SPDX-License-Identifier: Apache-2.0
//
// A writer that goes on while a reader is at whatever instruction, by so much that the model
// checker could not see it through: past all the floors that there are, and again and again.
#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "farcall/ring/broadcast_ring.hpp"
#include "harness/child.hpp"

#if defined(__x86_64__)

namespace farcall {
namespace {

constexpr std::size_t kCapacity = 4096;
constexpr std::size_t kLines = kCapacity / kLine;
constexpr unsigned kLaps = 3;  // have been written before a reader comes
constexpr std::size_t kShort = 24;
constexpr std::size_t kLong = 600;  // for each of these the floor is raised

enum class Sizes { short_ones, long_ones, both };
std::size_t size_of(Sizes sizes, std::uint64_t number) {
  if (sizes == Sizes::both) return number % 3 == 0 ? kLong : kShort;
  return sizes == Sizes::long_ones ? kLong : kShort;
}

// When the writer goes on, in steps of the reader, and how often it raises the floor then.
struct Plan {
  Sizes sizes;
  unsigned floors;
  unsigned times = 1;
  unsigned period = 1;
  unsigned stride = 1;         // from one first time to that of the next try
  bool in_the_middle = false;  // of raising the floor it stops
};

// Whatever lies in the ring passes for the header of the message that began there before.
class Writer {
 public:
  using Messages = std::vector<std::array<std::uint64_t, kLong / sizeof(std::uint64_t)>>;

  Writer(const BroadcastMemory& memory, Messages& messages, Sizes sizes)
      : ring_(memory.view()), sizes_(sizes), writer_(ring_), began_(kLines), messages_(messages) {
    ring_.control->raised = 0;
    for (BroadcastControl::Floor& floor : ring_.control->floors) {
      floor.position = 0;
      floor.number = 0;
    }
    std::memset(ring_.data, 0, kCapacity);
  }

  [[nodiscard]] BroadcastView view() const { return ring_; }
  [[nodiscard]] const BroadcastWriter& writer() const { return writer_; }
  [[nodiscard]] std::span<const std::byte> message(std::uint64_t number) const {
    return std::as_bytes(std::span(messages_[number])).first(size_of(sizes_, number));
  }
  void write() {
    const BroadcastPlace place = writer_.tail();
    const std::size_t size = size_of(sizes_, place.number);
    auto& words = messages_.at(place.number);
    for (std::size_t i = 0; i < size / sizeof(std::uint64_t); ++i) {
      const std::uint64_t position = place.position + (i + 1) * sizeof(std::uint64_t);
      words[i] = position % kLine == 0 ? header_of(began_[line_of(position)]) : place.number;
    }
    if (!has_room()) writer_.raise_floor(size, place.position);
    writer_.write(std::as_bytes(std::span(words)).first(size));
    began_[line_of(place.position)] = place.number;
  }
  [[nodiscard]] bool has_room() const {
    return writer_.has_room(size_of(sizes_, writer_.tail().number));
  }
  // So many more times it raises the floor, and writes over all that lies below it.
  void go_on(unsigned floors) {
    const std::uint64_t raised = view().control->raised + floors;
    while (view().control->raised < raised || has_room()) write();
  }
  // As far as a writer comes before it counts the next floor.
  void begin_to_raise() {
    BroadcastControl& control = *view().control;
    control.floors[(control.raised + 1) % BroadcastControl::kFloors].position =
        writer_.tail().position;
  }

 private:
  static std::size_t line_of(std::uint64_t position) { return position / kLine % kLines; }
  static std::uint64_t header_of(std::uint64_t number) {
    return number << 33 | std::uint64_t{1} << 32 | message_ring::longest_piece(kCapacity);
  }

  const BroadcastView ring_;
  const Sizes sizes_;
  BroadcastWriter writer_;
  std::vector<std::uint64_t> began_;
  Messages& messages_;
};

constexpr int kTrapFlag = 0x100;

// Of the reader that is stepped through: read and written by this thread alone, and its handler.
const Plan* plan = nullptr;
Writer* interrupting = nullptr;
unsigned step = 0;
unsigned due = 0;
unsigned left = 0;

void on_step(int, siginfo_t*, void* context) {
  if (++step < due) return;
  due = step + plan->period;
  interrupting->go_on(plan->floors);
  if (plan->in_the_middle) interrupting->begin_to_raise();
  if (--left == 0)
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~greg_t{kTrapFlag};
}

struct Taken {
  BroadcastReader reader;
  std::uint64_t expected;

  // False: there was none.
  bool take(const Writer& writer, bool in_steps) {
    std::array<std::byte, message_ring::longest_piece(kCapacity)> bytes{};
    std::size_t size = 0;
    std::uint64_t missed = 0;
    if (in_steps) __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | kTrapFlag);
    const Outcome outcome = reader.take(bytes, size, missed);
    if (in_steps)
      __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~std::uint64_t{kTrapFlag});
    expected += missed;
    EXPECT_EQ(reader.next().number, expected + (outcome == Outcome::ok ? 1 : 0));
    if (outcome != Outcome::ok) {
      EXPECT_EQ(outcome, Outcome::would_block);
      return false;
    }
    const auto message = writer.message(expected);
    EXPECT_EQ(size, message.size());
    EXPECT_EQ(std::memcmp(bytes.data(), message.data(), message.size()), 0) << "it is torn";
    ++expected;
    return true;
  }
};

// Returns whether the reader was still there at that step.
bool interrupt_at(const BroadcastMemory& memory, Writer::Messages& messages, unsigned first,
                  const Plan& with) {
  Writer writer(memory, messages, with.sizes);
  while (writer.writer().tail().position < kLaps * kCapacity) writer.write();
  Taken reader{.reader = BroadcastReader(writer.view(), writer.writer().floor()),
               .expected = writer.writer().floor().number};
  EXPECT_TRUE(reader.take(writer, false));
  writer.go_on(1);  // it has something to find
  plan = &with;
  interrupting = &writer;
  step = 0;
  due = first;
  left = with.times;
  reader.take(writer, true);
  const bool interrupted = left < with.times;
  while (!testing::Test::HasFailure() && reader.take(writer, false)) {
  }
  EXPECT_EQ(reader.expected, writer.writer().tail().number);
  return interrupted;
}

TEST(BroadcastSteps, AWriterMayGoOnAtWhateverInstructionAReaderIs) {
  FARCALL_SKIP_UNDER_TSAN("has instructions of its own there");
  FARCALL_SKIP_UNDER_ASAN("has instructions of its own there");
  struct sigaction action {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGTRAP, &action, &before), 0);
  const BroadcastMemory memory = BroadcastMemory::create(kCapacity);
  Writer::Messages messages(2'000);
  constexpr unsigned kFloors = BroadcastControl::kFloors;
  const std::array plans{
      Plan{.sizes = Sizes::short_ones, .floors = 1},
      Plan{.sizes = Sizes::both, .floors = 2, .stride = 5},
      Plan{.sizes = Sizes::both, .floors = 1, .times = 20, .period = 30, .stride = 19},
      Plan{.sizes = Sizes::both, .floors = 1, .times = 20, .period = 45, .stride = 19},
      Plan{.sizes = Sizes::both, .floors = 1, .times = 20, .period = 70, .stride = 19},
      Plan{
          .sizes = Sizes::short_ones, .floors = kFloors + 1, .times = 4, .period = 60, .stride = 9},
      Plan{.sizes = Sizes::long_ones, .floors = kFloors - 1, .stride = 3, .in_the_middle = true},
      Plan{.sizes = Sizes::long_ones, .floors = kFloors, .stride = 5},
  };
  for (const Plan& one : plans) {
    unsigned first = 1;
    while (interrupt_at(memory, messages, first, one) && !HasFailure()) first += one.stride;
    EXPECT_GT(first, 30U) << "steps of the reader";
    if (HasFailure()) {
      ADD_FAILURE() << "plan " << &one - plans.data() << ", at step " << first;
      break;
    }
  }
  ::sigaction(SIGTRAP, &before, nullptr);
}

}  // namespace
}  // namespace farcall
#endif
