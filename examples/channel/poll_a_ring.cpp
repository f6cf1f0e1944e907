// SPDX-License-Identifier: Apache-2.0
//
// A ring among the descriptors of an event loop: messages of a child and the ticks of a timer.
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <iostream>
#include <span>
#include <string_view>
#include <thread>
#include <tuple>

#include "farcall/channel/subprocess.hpp"
#include "farcall/ring.hpp"
#include "farcall/socket.hpp"

using namespace farcall;

constexpr std::size_t kCapacity = 4096;

// Prints what is there; tells why there is no more.
Outcome drain(MessageReader& reader) {
  std::array<char, 64> text;
  for (;;) {
    std::size_t size = 0;
    const Outcome outcome =
        reader.read(std::as_writable_bytes(std::span(text)), size, Deadline::now());
    if (outcome != Outcome::ok) return outcome;
    std::cout << std::string_view(text.data(), size) << "\n";
  }
}

int main() {
  const SharedMemory memory = SharedMemory::create(ring_bytes(kCapacity));
  const RingMemory ring = RingMemory::format(memory.fd(), kCapacity, RingKind::messages);
  UniqueFd here;
  UniqueFd there;
  std::tie(here, there) = socket_pair();

  channel::Subprocess child([&] {
    here.reset();
    MessageWriter writer(ring.view(), Waiter(there.get()));
    for (const std::string_view word : {"one", "two", "three"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (writer.write(std::as_bytes(std::span(word)), Deadline::never()) != Outcome::ok) return 1;
    }
    writer.finish();
    return 0;
  });
  there.reset();

  const UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  const itimerspec every_10_ms{{0, 10'000'000}, {0, 10'000'000}};
  timerfd_settime(timer.get(), 0, &every_10_ms, nullptr);

  MessageReader reader(ring.view(), Waiter(here.get()));
  std::uint64_t ticks = 0;
  Outcome outcome = drain(reader);
  while (outcome == Outcome::would_block) {
    // From here on the writer wakes us through the descriptor, unless something came just now.
    if (reader.prepare_poll() == Outcome::would_block) {
      std::array<pollfd, 2> waiting{
          {{reader.poll_descriptor(), POLLIN, 0}, {timer.get(), POLLIN, 0}}};
      poll(waiting.data(), waiting.size(), -1);
      reader.finish_poll();
      std::uint64_t passed = 0;
      if (waiting[1].revents != 0 && read(timer.get(), &passed, sizeof passed) > 0) ticks += passed;
    }
    outcome = drain(reader);
  }
  std::cout << (ticks > 0 ? "the timer ticked meanwhile" : "the timer was not heard") << "\n";
  return outcome == Outcome::finished && child.wait().success() ? 0 : 1;
}
