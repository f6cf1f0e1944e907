// SPDX-License-Identifier: Apache-2.0
//
// Requests as a server finds them in a session that a client has filled as it likes.
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "call/server_session.hpp"
#include "door/fuzz/hand.hpp"
#include "farcall/error.hpp"

namespace {

using namespace farcall;
using namespace farcall::door::fuzz;

call::Turn turn_of(Input& input) {
  return {.number = input.number<std::uint8_t>(),
          .kind = static_cast<call::Kind>(input.number<std::uint8_t>() % 8),
          .flags = input.number<std::uint8_t>(),
          .size = input.number<std::uint16_t>()};
}

// False where its session is closed then.
bool reply_to(call::ServerSession& session, std::size_t bytes) {
  const std::vector<std::byte> reply(bytes);
  if (bytes <= kInlineBytes) {
    session.reply_shortly(reply, 0);
    return true;
  }
  try {
    (void)session.reply(reply, {}, 0);
  } catch (const SystemError&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const SharedMemory memory = SharedMemory::create(call::kSessionBytes);
  const Mapping theirs = map(memory.fd());
  auto& control = *reinterpret_cast<call::SessionControl*>(theirs.data());
  auto [here, there] = packet_socket_pair();
  auto [answers, asked] = packet_socket_pair();  // what the server writes to, and who would read it
  static Port& port = *new Port;
  static const auto& endpoint =
      *new auto(call::inside(*port.open_endpoint({}, {})).shared_from_this());
  CallerIdentity identity{};
  identity.effective = {.pid = ::getpid(), .uid = 0, .gid = 0};
  call::ServerSession session(process::PrivateMapping(memory.fd(), call::kSessionBytes),
                              {.mine = process::PrivateFd(std::move(here)),
                               .theirs = process::PrivateFd(std::move(answers))},
                              identity, 1, endpoint, WaitMode::block, {},
                              std::make_shared<call::Account>(identity.effective.uid));
  constexpr std::size_t kMost = 1 << 20;
  const PortLimits limits{.request_bytes = kMost};
  // A long request is left half-way as often as the input says.
  const std::function<bool()> others_first = [&input] {
    return !input.empty() && input.number<std::uint8_t>() % 2 == 0;
  };
  for (int round = 0; round < 4 && !input.empty(); ++round) {
    for (std::size_t count = input.number<std::uint8_t>() % 4; count > 0; --count)
      if (there) send_packet(there.get(), input);
    write_words(control, input);
    control.slot.turn = turn_of(input).pack();
    session.drain();
    if (!session.ready()) continue;
    std::unique_ptr<call::RequestBuffer> large;
    ReceivedFds descriptors;
    alignas(8) std::array<std::byte, kInlineBytes> inline_data{};
    call::Request request;
    Outcome outcome = Outcome::ok;
    if (!session.take_short(inline_data.data(), request))
      outcome = session.take({.inline_data = inline_data.data(),
                              .large = large,
                              .limits = limits,
                              .descriptors = descriptors,
                              .observer = nullptr,
                              .others_first = others_first},
                             request);
    if (outcome == Outcome::would_block) continue;
    if (outcome != Outcome::ok) return 0;  // its session is closed then
    require(request.data.size() <= kMost);
    (void)look_at(request.data);
    if (!request.wants_reply) continue;
    // Without a client there is nobody to wait for.
    const std::size_t bytes = input.number<std::uint16_t>() % 2 == 0 ? 10 : 70'000;
    there.reset();
    asked.reset();
    if (!reply_to(session, bytes)) return 0;
  }
  return 0;
}
