// SPDX-License-Identifier: Apache-2.0
#include "message/pulse_sender.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "farcall/error.hpp"
#include "socket/answers.hpp"
#include "socket/strangers.hpp"
#include "socket/wait_for.hpp"

namespace farcall::message {
namespace {

bool any_hung_up(int branch, int socket) noexcept {
  std::array<pollfd, 2> both{pollfd{.fd = branch, .events = POLLRDHUP, .revents = 0},
                             pollfd{.fd = socket, .events = POLLRDHUP, .revents = 0}};
  return ::poll(both.data(), both.size(), 0) > 0;
}

}  // namespace

PulseSender::PulseSender(int branch, const call::Maker& maker, const PulsePacket& first)
    : maker_(maker), server_(branch) {
  if (!maker_.trusted && process::behind(maker_.user))
    throw SystemError(EAGAIN, "too much that the server has sent waits to be closed");
  // A channel that has been closed still has its end for a while.
  if (any_hung_up(branch, -1) || has_server_ended())
    throw SystemError(ESRCH, "the server has gone");
  const SharedMemory memory = SharedMemory::create(sizeof(PulsePage), "farcall-pulses");
  page_ = process::PrivateMapping(memory.fd(), memory.size());
  page().pulses[0] = first;
  page().count.store(1, std::memory_order_relaxed);  // sent with the memory
  auto [mine, theirs] = private_socket_pair();
  try {
    send_descriptors(branch, std::array{memory.fd(), theirs.get()}, kPurposePulses,
                     Deadline::now());
  } catch (const SystemError& error) {
    const int code = error.code().value();
    if (code == ETIMEDOUT) throw SystemError(EAGAIN, "too many pulses");
    if (code != EPIPE && code != ECONNRESET && code != ENOTCONN) throw;
    throw SystemError(ESRCH, "the server has gone");
  }
  answers_ = std::move(mine);
}

PulseSender::~PulseSender() {
  hang_up(answers_);
  hang_up(socket_);
}

bool PulseSender::has_server_ended() const noexcept {
  return server_.ended || (server_.descriptor && events_now(server_.descriptor.get(), POLLIN) != 0);
}

void PulseSender::hang_up(process::PrivateFd& socket) const noexcept {
  if (maker_.trusted)
    socket.reset();
  else
    process::hang_up_later(maker_.user, std::move(socket));
}

bool PulseSender::add(int branch, const PulsePacket& packet, bool& ended) {
  // acquire: the socket was sent before.
  std::uint32_t count = page().count.load(std::memory_order_acquire);
  if (count < PulsePage::kMost) page().pulses[count] = packet;
  // Who refuses closes the other end, as a channel that is closed does the connection's, and takes
  // nothing from then on.
  if (count != PulsePage::kTaken && any_hung_up(branch, answers_.get())) {
    count = page().count.load(std::memory_order_acquire);
    ended = count != PulsePage::kTaken;
    return !ended;
  }
  if (count == PulsePage::kTaken) return true;
  if (count >= PulsePage::kMost) throw SystemError(EAGAIN, "too many pulses");
  // release: the server sees the pulse. Else it has taken those before.
  return !page().count.compare_exchange_strong(count, count + 1, std::memory_order_acq_rel);
}

std::optional<int> PulseSender::send(int branch, const PulsePacket& packet) {
  if (!socket_ && has_server_ended()) return ESRCH;
  bool ended = false;
  if (page_ && !add(branch, packet, ended)) return ended ? std::nullopt : std::optional(0);
  if (!socket_) {
    const process::NoFork guard;
    Packet answer = take_strangers_packet(answers_.get());
    answer.descriptors.sent_by(maker_.user);
    if (answer.kind == Packet::Kind::overflow) throw SystemError(EMFILE, "a socket for pulses");
    if (answer.kind != Packet::Kind::descriptors || answer.descriptors.size() != 1 ||
        !is_packet_socket(answer.descriptors[0].get()))
      return {};
    socket_ = process::PrivateFd(std::move(answer.descriptors[0]));
    hang_up(answers_);
    page_.reset();
  }
  return send_at_once(packet);
}

std::optional<int> PulseSender::send_at_once(const PulsePacket& packet) const noexcept {
  if (!socket_) return {};
  if (has_server_ended()) return ESRCH;
  for (;;) {
    if (::send(socket_.get(), &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 0;
    if (errno == EAGAIN) return EAGAIN;
    if (errno != EINTR) return {};
  }
}

}  // namespace farcall::message
