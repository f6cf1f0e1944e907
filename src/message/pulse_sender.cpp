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
  room_.reserve(kMostOfFew);
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

// What has nothing in it is closed at once. All else goes with this, by other threads: to hand it
// over takes memory.
void PulseSender::leave_answers() noexcept {
  if (!maker_.trusted) {
    ::shutdown(answers_.get(), SHUT_RDWR);
    if (look_at_next(answers_.get(), false).descriptors) return;
  }
  answers_.reset();
}

void PulseSender::retire() noexcept {
  if (answers_) ::shutdown(answers_.get(), SHUT_RDWR);
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

PulseSender::Added PulseSender::add(int branch, const PulsePacket& packet) noexcept {
  // acquire: the socket was sent before.
  std::uint32_t count = page().count.load(std::memory_order_acquire);
  if (count < PulsePage::kMost) page().pulses[count] = packet;
  // Who refuses closes the other end, as a channel that is closed does the connection's, and takes
  // nothing from then on.
  if (count != PulsePage::kTaken && any_hung_up(branch, answers_.get())) {
    count = page().count.load(std::memory_order_acquire);
    return count == PulsePage::kTaken ? Added::taken : Added::ended;
  }
  if (count == PulsePage::kTaken) return Added::taken;
  if (count >= PulsePage::kMost) return Added::full;
  // release: the server sees the pulse. Else it has taken those before.
  return page().count.compare_exchange_strong(count, count + 1, std::memory_order_acq_rel)
             ? Added::yes
             : Added::taken;
}

std::optional<int> PulseSender::take_socket() {
  const process::NoFork guard;
  Packet answer = take_strangers_packet(answers_.get(), std::move(room_));
  answer.descriptors.sent_by(maker_.user);
  if (answer.kind == Packet::Kind::overflow) {
    if (answer.descriptors.empty()) room_ = std::move(answer.descriptors);
    return EMFILE;
  }
  if (answer.kind == Packet::Kind::descriptors && answer.descriptors.size() == 1 &&
      is_packet_socket(answer.descriptors[0].get()))
    socket_ = process::PrivateFd(std::move(answer.descriptors[0]));
  room_ = std::move(answer.descriptors);  // all that is left there goes with this
  if (!socket_) return {};
  leave_answers();
  page_.reset();
  // release: who sees it sees the socket.
  has_socket_.store(true, std::memory_order_release);
  return 0;
}

std::optional<int> PulseSender::send(int branch, const PulsePacket& packet) {
  if (!socket_) {
    if (has_server_ended()) return ESRCH;
    switch (add(branch, packet)) {
      case Added::yes: return 0;
      case Added::full: return EAGAIN;
      case Added::ended: return {};
      case Added::taken: break;
    }
    if (const std::optional<int> error = take_socket(); error != 0) return error;
  }
  return send_at_once(packet);
}

std::optional<int> PulseSender::send_at_once(const PulsePacket& packet) const noexcept {
  if (!has_socket_.load(std::memory_order_acquire)) return {};
  if (has_server_ended()) return ESRCH;
  for (;;) {
    if (::send(socket_.get(), &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 0;
    if (errno == EAGAIN) return EAGAIN;
    if (errno != EINTR) return {};
  }
}

}  // namespace farcall::message
