// SPDX-License-Identifier: Apache-2.0
//
// Packets as any client may send them on a socket for pulses.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "door/fuzz/input.hpp"
#include "farcall/error.hpp"
#include "message/shared.hpp"

namespace {

using namespace farcall;
using namespace farcall::message;
using farcall::door::fuzz::Input;
using farcall::door::fuzz::require;

// Has the server take the page; the socket for more.
UniqueFd hand_page_to(int connection, const SharedMemory& page) {
  auto [here, there] = packet_socket_pair();
  send_descriptors(connection, std::array{page.fd(), there.get()}, kPurposePulses);
  there.reset();
  pollfd answer{.fd = here.get(), .events = POLLIN, .revents = 0};
  require(::poll(&answer, 1, 30'000) == 1);
  Packet packet = take_packet(here.get());
  require(packet.descriptors.size() == 1);
  // When the page has been taken the server closes the other end.
  pollfd taken{.fd = here.get(), .events = POLLRDHUP, .revents = 0};
  require(::poll(&taken, 1, 30'000) == 1);
  return std::move(packet.descriptors[0]);
}

int priority_of(const PulsePacket& packet) {
  return static_cast<int>(std::min<std::uint32_t>(packet.priority, kHighestPriority));
}

// `unblocks`: who asks to unblock has less taken out of its socket at a time: what lies there still
// may be more urgent, but is in order with its like.
void expect_in_order(SharedChannel& channel, std::vector<PulsePacket> expected, bool unblocks) {
  std::ranges::stable_sort(expected, std::ranges::greater{}, priority_of);
  while (!expected.empty()) {
    farcall_info info{};
    require(channel.receive({}, Deadline::after(std::chrono::seconds(30)), &info,
                            SignalCount::now()) == 0);
    const auto next =
        unblocks ? std::ranges::find(expected, info.priority, priority_of) : expected.begin();
    require(next != expected.end() && info.priority == priority_of(*next));
    require(info.code == next->code && info.value == next->value);
    expected.erase(next);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto& channel =
      *new std::shared_ptr<SharedChannel>(std::make_shared<SharedChannel>(FARCALL_UNBLOCK, 0));
  static const int connection = channel->connect().release();
  Input input(data, size);
  // Some before there is a socket, the others afterwards.
  const SharedMemory memory = SharedMemory::create(sizeof(PulsePage));
  const Mapping mapping = memory.map();
  auto& page = *reinterpret_cast<PulsePage*>(mapping.data());
  UniqueFd mine;
  const unsigned before = input.number<std::uint8_t>() % (PulsePage::kMost + 1);
  std::vector<PulsePacket> expected;
  bool ended = false;
  bool unblocks = false;
  for (unsigned i = 0; i < 60 && !input.empty(); ++i) {
    PulsePacket packet{.magic = PulsePacket::kMagic,
                       .code = input.number<std::int16_t>(),
                       .value = input.number<std::int32_t>(),
                       .priority = input.number<std::uint8_t>(),
                       .thread = 0};
    const auto how = input.number<std::uint8_t>();
    if (how >= 250) packet.magic = input.number<std::uint32_t>();
    if (how >= 240) packet.priority *= input.number<std::uint32_t>();
    if (how < 32) packet.code = PulsePacket::kUnblock;
    std::size_t bytes = how % 32 == 31 ? input.number<std::uint8_t>() % 64U : sizeof packet;
    std::array<std::byte, 64> sent{};
    std::memcpy(sent.data(), &packet, sizeof packet);
    if (i < before) {
      bytes = sizeof packet;
      page.pulses[page.count++] = packet;
    } else {
      if (!mine) mine = hand_page_to(connection, memory);
      require(::send(mine.get(), sent.data(), bytes, MSG_NOSIGNAL) >= 0 || ended);
    }
    const bool whole = bytes == sizeof packet && packet.magic == PulsePacket::kMagic;
    if (whole && packet.code >= 0 && !ended) expected.push_back(packet);
    unblocks |= packet.code == PulsePacket::kUnblock;
    ended |= !whole || (packet.code < 0 && packet.code != PulsePacket::kUnblock);
  }
  if (!mine) mine = hand_page_to(connection, memory);
  mine.reset();
  expect_in_order(*channel, std::move(expected), unblocks);
  // Who receives notices that a socket has ended.
  try {
    require(channel->receive({}, Deadline::now(), nullptr, SignalCount::now()) < 0);
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): there is nothing to receive
  }
  return 0;
}
