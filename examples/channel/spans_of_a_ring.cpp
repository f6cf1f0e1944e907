// SPDX-License-Identifier: Apache-2.0
//
// Without a copy: the child makes numbers where the ring stores them, this process adds them up
// where they are. The ring is mapped twice in a row, so a span never breaks off at its end.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <span>
#include <tuple>

#include "farcall/channel/subprocess.hpp"
#include "farcall/ring.hpp"
#include "farcall/socket.hpp"

using namespace farcall;

constexpr std::size_t kCapacity = 65'536;
constexpr std::uint64_t kNumbers = 1'000'000;

int main() {
  const SharedMemory memory = SharedMemory::create(ring_bytes(kCapacity));
  const RingMemory ring = RingMemory::format(memory.fd(), kCapacity, RingKind::bytes);
  // The two ends of a socket pair tell the two sides of the ring when the other has died.
  UniqueFd here;
  UniqueFd there;
  std::tie(here, there) = socket_pair();

  channel::Subprocess child([&] {
    here.reset();
    ByteWriter writer(ring.view(), Waiter(there.get()));
    std::uint64_t next = 0;
    while (next < kNumbers) {
      std::span<std::byte> space;
      if (writer.reserve(sizeof next, space, Deadline::never()) != Outcome::ok) return 1;
      const std::size_t count = std::min(space.size() / sizeof next, kNumbers - next);
      auto* const numbers = reinterpret_cast<std::uint64_t*>(space.data());
      std::iota(numbers, numbers + count, next);
      next += count;
      writer.commit(count * sizeof next);
    }
    writer.finish();
    return 0;
  });
  there.reset();

  ByteReader reader(ring.view(), Waiter(here.get()));
  std::uint64_t sum = 0;
  std::span<const std::byte> bytes;
  while (reader.front(sizeof sum, bytes, Deadline::never()) == Outcome::ok) {
    const std::size_t count = bytes.size() / sizeof sum;
    const auto* const numbers = reinterpret_cast<const std::uint64_t*>(bytes.data());
    sum = std::accumulate(numbers, numbers + count, sum);
    reader.consume(count * sizeof sum);
  }
  std::cout << "the sum of " << kNumbers << " numbers is " << sum << "\n";
  return child.wait().success() ? 0 : 1;
}
