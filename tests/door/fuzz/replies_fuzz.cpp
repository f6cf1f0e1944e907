// SPDX-License-Identifier: Apache-2.0
//
// Replies as a client finds them in a session that its server has filled as it likes.
#include <semaphore.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "call/client_session.hpp"
#include "door/fuzz/hand.hpp"
#include "farcall/error.hpp"

namespace {

using namespace farcall;
using namespace farcall::door::fuzz;
using namespace std::chrono_literals;

// Answers what the client asks, as the input says, then hangs up.
void serve(call::SessionControl& control, UniqueFd socket, Input input) {
  for (std::uint32_t number = 1; number <= 3; ++number) {
    const std::int64_t end = monotonic_ns() + 2'000'000;
    for (;;) {
      const auto turn = call::Turn::unpack(control.slot.turn.load(std::memory_order_acquire));
      if (turn.number == number && turn.kind == call::Kind::request) break;
      if (monotonic_ns() > end) return;
      relax();
    }
    for (std::size_t count = input.number<std::uint8_t>() % 4; count > 0; --count)
      send_packet(socket.get(), input);
    write_words(control, input);
    const call::Turn turn{.number = input.number<std::uint8_t>() % 8 == 0 ? number + 1 : number,
                          .kind = input.number<std::uint8_t>() % 8 == 0
                                      ? static_cast<call::Kind>(input.number<std::uint8_t>())
                                      : call::Kind::reply,
                          .flags = input.number<std::uint8_t>(),
                          .size = static_cast<std::uint16_t>(input.number<std::uint16_t>() % 8192)};
    control.slot.turn.store(turn.pack(), std::memory_order_release);
    (void)!::send(socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (turn.kind != call::Kind::reply) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const SharedMemory memory = SharedMemory::create(call::kSessionBytes);
  const Mapping theirs = map(memory.fd());
  auto& control = *reinterpret_cast<call::SessionControl*>(theirs.data());
  auto [here, there] = packet_socket_pair();
  auto [requests, unread] = packet_socket_pair();
  call::ClientSession session(process::PrivateMapping(memory.fd(), call::kSessionBytes),
                              {.mine = process::PrivateFd(std::move(here)),
                               .theirs = process::PrivateFd(std::move(requests))},
                              {.user = ::geteuid(), .trusted = size % 2 == 0}, WaitMode::block);
  std::thread server(serve, std::ref(control), std::move(there), Input(data, size));
  const std::vector<std::byte> request(100);
  std::array<std::byte, 300> buffer{};
  for (int i = 0; i < 3; ++i) {
    CallResults results;
    results.buffer = std::span(buffer).first(200);
    Outcome outcome = Outcome::broken;
    try {
      outcome = session.call({.data = request, .descriptors = {}}, &results, Deadline::after(1ms),
                             SignalCount::now());
    } catch (const SystemError& error) {
      require(error.code().value() > 0 && error.code().value() < 134);
    }
    for (std::size_t at = 200; at < buffer.size(); ++at) require(buffer[at] == std::byte{0});
    if (outcome != Outcome::ok) break;  // its session is closed then
    if (results.large) {
      require(results.data.size() <= results.large.size());
    } else {
      require(results.data.size() <= 200);
    }
    (void)look_at(results.data.first(std::min<std::size_t>(results.data.size(), 1 << 20)));
  }
  server.join();
  return 0;
}
