// SPDX-License-Identifier: Apache-2.0
//
// Messages as a channel finds them in a session that a client has filled as it likes, and answers.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "door/fuzz/hand.hpp"
#include "farcall/error.hpp"
#include "message/shared.hpp"

namespace {

using namespace farcall;
using namespace farcall::message;
using namespace farcall::door::fuzz;

// Whatever can be done with a message; none of it may fail but for what the client has done.
void serve(std::int64_t id, const farcall_info& info, Input& input) {
  std::array<std::byte, 200> bytes{};
  try {
    Use use(id);
    for (std::size_t count = input.number<std::uint8_t>() % 5; count > 0; --count) {
      const iovec piece{.iov_base = bytes.data(),
                        .iov_len = input.number<std::uint8_t>() % bytes.size()};
      const std::size_t offset = input.number<std::uint32_t>();
      const std::size_t done = input.number<std::uint8_t>() % 2 == 0
                                   ? use->read(offset, Buffers(&piece, 1))
                                   : use->write(offset, Buffers(&piece, 1));
      require(done <= piece.iov_len);
    }
    const iovec reply{.iov_base = bytes.data(), .iov_len = std::min(bytes.size(), info.room)};
    use->reply(1, 0, Buffers(&reply, 1), false);
    use.end();
  } catch (const SystemError& error) {
    require(error.code().value() == ESRCH);
    try {
      Use(id).end();
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has ended
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto& channel =
      *new std::shared_ptr<SharedChannel>(std::make_shared<SharedChannel>(FARCALL_UNBLOCK, 0));
  static const int connection = channel->connect().release();
  Input input(data, size);
  const SharedMemory memory = SharedMemory::create(call::kSessionBytes);
  const Mapping theirs = map(memory.fd());
  auto& control = *reinterpret_cast<call::SessionControl*>(theirs.data());
  control.magic = call::SessionControl::kMagic;
  auto [answers, there] = packet_socket_pair();
  send_descriptors(connection, std::array{memory.fd(), there.get()}, call::kPurposeSession);
  there.reset();
  pollfd welcome{.fd = answers.get(), .events = POLLIN, .revents = 0};
  require(::poll(&welcome, 1, 30'000) == 1);
  Packet packet = take_packet(answers.get());
  require(packet.descriptors.size() == 1);
  UniqueFd here = std::move(packet.descriptors[0]);
  for (std::uint32_t round = 1; round <= 3 && !input.empty() && here; ++round) {
    for (std::size_t count = input.number<std::uint8_t>() % 4; count > 0; --count)
      send_packet(here.get(), input);
    write_words(control, input);
    control.slot.extra = static_cast<std::int64_t>(input.number<std::uint64_t>());
    call::Turn turn{.number = round,
                    .kind = static_cast<call::Kind>(1 + input.number<std::uint8_t>() % 2),
                    .flags = input.number<std::uint8_t>(),
                    .size = static_cast<std::uint16_t>(input.number<std::uint16_t>() % 4096)};
    if (turn.flags % 4 != 0) turn.flags = 0;
    control.slot.turn = turn.pack();
    (void)!::send(here.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    std::array<std::byte, 1000> buffer{};
    const iovec into{.iov_base = buffer.data(), .iov_len = input.number<std::uint16_t>() % 1000U};
    farcall_info info{};
    std::int64_t id = 0;
    try {
      id = channel->receive(Buffers(&into, 1), Deadline::after(std::chrono::milliseconds(1)), &info,
                            SignalCount::now());
    } catch (const SystemError& error) {
      require(error.code().value() == ETIMEDOUT);
      continue;
    }
    for (std::size_t i = into.iov_len; i < buffer.size(); ++i) require(buffer[i] == std::byte{0});
    require(info.received <= into.iov_len && info.received <= info.length);
    require(info.length <= FARCALL_MESSAGE_MAX && info.room <= FARCALL_MESSAGE_MAX);
    require(info.pid == ::getpid() && info.uid == ::geteuid() && info.gid == ::getegid());
    require(info.tid == 0 || is_thread_of(info.tid, ::getpid()));
    require(info.priority <= kHighestPriority && info.descriptor_count <= FARCALL_DESCRIPTORS);
    for (unsigned i = 0; i < info.descriptor_count; ++i) ::close(info.descriptors[i]);
    if (id > FARCALL_ONE_WAY) serve(id, info, input);
  }
  return 0;
}
