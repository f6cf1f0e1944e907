// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL of either side at random moments: what the survivor has got is right, and it soon knows.
// FARCALL_KILL_ROUNDS sets the number of rounds.
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include "channel/conformance.hpp"
#include "harness/killer.hpp"

namespace farcall::channel::test {
namespace {

using namespace std::chrono_literals;

class Kill : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ::alarm(1000);  // CTest's own limit is lower, unless somebody wants very many rounds
  }
  static int rounds() {
    if (const char* wanted = std::getenv("FARCALL_KILL_ROUNDS")) return std::atoi(wanted);
    return properties().name == "ring" ? 300 : 20;
  }
};
INSTANTIATE_TEST_SUITE_P(Channel, Kill, testing::ValuesIn(all_mechanisms()), test_name);

// Has the calling process killed by the kernel.
void die_after(std::chrono::nanoseconds delay) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  require(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer");
  itimerspec when{};
  when.it_value.tv_nsec = delay.count() + 1;
  require(::timer_settime(timer, 0, &when, nullptr) == 0, "an armed timer");
}

// Somebody else who waits for the death of a child, as a measure of how soon it can be known on a
// machine that is busy with other things.
class Witness {
 public:
  explicit Witness(Subprocess& child)
      : thread_([this, &child] {
          child.wait();
          knew_at_ = monotonic_ns();
        }) {}

  // How much later than this one the caller knows, who calls at once; in nanoseconds.
  std::int64_t compare() {
    const std::int64_t now = monotonic_ns();
    thread_.join();
    return now - knew_at_;
  }

 private:
  std::int64_t knew_at_ = 0;
  std::jthread thread_;
};

// Messages whose sizes and contents both sides know.
class Script {
 public:
  explicit Script(std::size_t longest) : sizes_(11, std::min(longest, kLargestStep)) {}
  std::span<const std::byte> next() {
    message_.resize(sizes_.next());
    pattern_.fill(message_);
    return message_;
  }

 private:
  RandomSizes sizes_;
  Pattern pattern_;
  std::vector<std::byte> message_;
};

[[noreturn]] void send_for_ever(Writer& out) {
  for (Script script(out.max_message());;) out.send(script.next());
}
[[noreturn]] void write_for_ever(Writer& out) {
  for (Script script(kLargestStep);;) out.write(script.next());
}

// Reads messages to the end; each must be whole and the right one.
void receive_script(Reader& in, std::size_t longest) {
  std::vector<std::byte> into(kLargestStep);
  for (Script script(longest);;) {
    const auto size = in.receive(into);
    if (!size) return;
    const auto expected = script.next();
    require(std::ranges::equal(expected, std::span(into.data(), *size)), "the right message");
  }
}

void read_to_the_end(Reader& in) {
  std::vector<std::byte> into(1 << 16);
  while (in.read(into) != 0) {
  }
}

TEST_P(Kill, OfAWriterIsNoticedByTheReader) {
  std::minstd_rand random(1);
  Latencies latencies;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const bool messages = properties().boundaries && round % 2 == 1;
    const auto delay = std::chrono::microseconds(random() % 3000);
    const std::size_t longest = messages ? channel().take_writer()->max_message() : 0;
    auto [child, reader] = spawn_writer(channel(), [&](Writer& out) -> int {
      die_after(delay);
      messages ? send_for_ever(out) : write_for_ever(out);
    });
    Witness witness(child);
    const int error = error_of([&, &reader = reader] {
      messages ? receive_script(*reader, longest) : static_cast<void>(read_pattern(*reader));
    });
    latencies.add(witness.compare());
    EXPECT_EQ(error, properties().notices_death ? ECONNRESET : 0) << "round " << round;
    EXPECT_EQ(child.wait().describe(), "killed by SIGKILL");
  }
  latencies.expect_prompt("from the kernel's news of the death to the survivor's error");
}

TEST_P(Kill, OfAReaderIsNoticedByTheWriter) {
  std::minstd_rand random(2);
  Latencies latencies;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const bool messages = properties().boundaries && round % 2 == 1;
    const auto delay = std::chrono::microseconds(random() % 3000);
    auto [child, writer] = spawn_reader(channel(), [&](Reader& in) {
      die_after(delay);
      read_to_the_end(in);
      return 1;
    });
    Witness witness(child);
    const int error = error_of(
        [&, &writer = writer] { messages ? send_for_ever(*writer) : write_for_ever(*writer); });
    latencies.add(witness.compare());
    EXPECT_EQ(error, EPIPE) << "round " << round;
    EXPECT_EQ(child.wait().describe(), "killed by SIGKILL");
  }
  latencies.expect_prompt("from the kernel's news of the death to the survivor's error");
}

}  // namespace
}  // namespace farcall::channel::test
