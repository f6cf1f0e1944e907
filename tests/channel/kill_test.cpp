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

#include "channel/conformance.hpp"

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

// A process that arms this is killed by the kernel at a moment that its parent knows.
class Death {
 public:
  Death() : at_(Mapping::anonymous_shared(page_size())) {}

  void arm(std::chrono::nanoseconds delay) const {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer{};
    require(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer");
    const std::int64_t at = monotonic_ns() + delay.count();
    moment() = at;
    itimerspec when{};
    when.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
    require(::timer_settime(timer, TIMER_ABSTIME, &when, nullptr) == 0, "an armed timer");
  }
  [[nodiscard]] std::chrono::nanoseconds since() const {
    return std::chrono::nanoseconds(monotonic_ns() - moment());
  }

 private:
  [[nodiscard]] std::int64_t& moment() const {
    return *reinterpret_cast<std::int64_t*>(at_.data());
  }
  Mapping at_;
};

// Counts survivors that took longer than 100 ms. One in a hundred may: the machine is not ours.
class Lateness {
 public:
  explicit Lateness(int rounds) : tolerated_(1 + rounds / 100) {}
  ~Lateness() {
    EXPECT_LE(late_, tolerated_) << "survivors took up to " << worst_.count() << " ns";
  }
  Lateness(const Lateness&) = delete;
  Lateness& operator=(const Lateness&) = delete;
  void add(std::chrono::nanoseconds noticed) {
    if (noticed > 100ms) ++late_;
    worst_ = std::max(worst_, noticed);
  }

 private:
  int tolerated_;
  int late_ = 0;
  std::chrono::nanoseconds worst_{0};
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
  Lateness lateness(rounds());
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const bool messages = properties().boundaries && round % 2 == 1;
    const Death death;
    const auto delay = std::chrono::microseconds(random() % 3000);
    const std::size_t longest = messages ? channel().take_writer()->max_message() : 0;
    auto [child, reader] = spawn_writer(channel(), [&](Writer& out) -> int {
      death.arm(delay);
      messages ? send_for_ever(out) : write_for_ever(out);
    });
    const int error = error_of([&, &reader = reader] {
      messages ? receive_script(*reader, longest) : static_cast<void>(read_pattern(*reader));
    });
    lateness.add(death.since());
    EXPECT_EQ(error, properties().notices_death ? ECONNRESET : 0) << "round " << round;
    EXPECT_EQ(child.wait().describe(), "killed by SIGKILL");
  }
}

TEST_P(Kill, OfAReaderIsNoticedByTheWriter) {
  std::minstd_rand random(2);
  Lateness lateness(rounds());
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const bool messages = properties().boundaries && round % 2 == 1;
    const Death death;
    const auto delay = std::chrono::microseconds(random() % 3000);
    auto [child, writer] = spawn_reader(channel(), [&](Reader& in) {
      death.arm(delay);
      read_to_the_end(in);
      return 1;
    });
    const int error = error_of(
        [&, &writer = writer] { messages ? send_for_ever(*writer) : write_for_ever(*writer); });
    lateness.add(death.since());
    EXPECT_EQ(error, EPIPE) << "round " << round;
    EXPECT_EQ(child.wait().describe(), "killed by SIGKILL");
  }
}

}  // namespace
}  // namespace farcall::channel::test
