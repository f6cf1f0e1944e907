// SPDX-License-Identifier: Apache-2.0
#include "call/session.hpp"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "farcall/error.hpp"
#include "socket/peer.hpp"
#include "socket/strangers.hpp"

namespace farcall::call {

PrivateMapping adopt_session(UniqueFd&& fd, std::uint64_t* inode) {
  SharedMemory memory = SharedMemory::adopt(std::move(fd));
  if (memory.size() != kSessionBytes) {
    fd = std::move(memory).release();
    throw SystemError(EPROTO, "memory not of a session's size");
  }
  PrivateMapping mapping(memory.fd(), memory.size(), MAP_POPULATE);
  if (reinterpret_cast<const SessionControl*>(mapping.data())->magic != SessionControl::kMagic)
    throw SystemError(EPROTO, "the memory holds no session");
  if (inode != nullptr) *inode = observe::inode_of(memory.fd());
  return mapping;
}

WatchedProcess::WatchedProcess(int socket) noexcept {
  const NoFork guard;
  PeerProcess peer = process_of_peer(socket);
  ended = peer.ended;
  descriptor = PrivateFd(std::move(peer.descriptor));
}

SessionBase::SessionBase(PrivateMapping memory, SessionSockets sockets, WaitMode mode)
    : memory_(std::move(memory)),
      sockets_(std::move(sockets)),
      waiter_(sockets_.mine.get(), mode,
              {.take =
                   [](void* self, int) noexcept {
                     static_cast<SessionBase*>(self)->drain();
                     return 0U;
                   },
               .context = this,
               .watch_process =
                   [](void* self, bool on) noexcept {
                     return static_cast<SessionBase*>(self)->watch_process(on);
                   }},
              sockets_.theirs.get()) {}

// Only meanwhile: sessions that nobody waits for cost no descriptor more. A thread that may be
// cancelled while it waits may not be here.
int SessionBase::watch_process(bool on) noexcept {
  const NoCancel guard;
  const NoFork no_child_keeps_it;
  process_ = on ? WatchedProcess(sockets_.theirs.get()) : WatchedProcess();
  return process_.ended ? Drain::kEnded : process_.descriptor.get();
}

void SessionBase::observe(const observe::Description& description) noexcept {
  entry_ = observe::Entry(description);
  sent_ = entry_.sent();
  received_ = entry_.received();
  waiter_.observe(received_);
}

bool SessionBase::hung_up() const noexcept {
  pollfd death{.fd = socket(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&death, 1, 0) > 0 && (death.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SessionBase::keep(Packet& packet) {
  // The largest message that anyone sends in earnest: memory, and two packets of descriptors.
  constexpr std::size_t kMostArrived = 8;
  if (packet.purpose != kPurposeData) {
    garbage_ |= !packet.descriptors.empty() || !other_packet(packet);
    return;
  }
  if (arrived_.size() > kMostArrived || !may_keep(packet.descriptors.size())) {
    garbage_ = true;
    return;
  }
  if (arrived_.empty() || arrived_.back().complete) arrived_.emplace_back();
  Arrived& whole = arrived_.back();
  // What stays, and what belongs to it, is dropped there.
  if (packet.stays && packet.kind == Packet::Kind::overflow) stuck_ = 1;
  whole.complete = !packet.more || stuck();
  whole.overflow |= packet.kind == Packet::Kind::overflow;
  if (whole.descriptors.size() + packet.descriptors.size() > kCallDescriptors) garbage_ = true;
  whole.descriptors.append(std::move(packet.descriptors));
}

std::size_t SessionBase::arrived_descriptors() const noexcept {
  std::size_t count = 0;
  for (const Arrived& whole : arrived_) count += whole.descriptors.size();
  return count;
}

Packet SessionBase::next_packet(process::InHand& in_hand) {
  if (!is_strangers()) return take_packet(socket());
  const Next next = look_at_next(socket(), tells_sender());
  if (!next.descriptors || may_take(next.claimed, in_hand))
    return take_strangers_packet(socket(), next, kPacketDescriptors);
  Packet refused;
  refused.kind = Packet::Kind::garbage;
  // A client tells the server that it has no room for them.
  const bool wanted = arrived_.empty() || !arrived_.back().complete;
  if (is_client() && wanted && next.claimed <= kPacketDescriptors) {
    refused.kind = Packet::Kind::overflow;
    refused.purpose = kPurposeData;
    refused.stays = true;
  }
  return refused;
}

void SessionBase::take_packets(bool with_descriptors) noexcept {
  // A peer that sends without end is stopped here by the bound and later by its lack of sense.
  constexpr std::size_t kMostPackets = 64;
  Packet packet;
  if (stuck() && !look_whether_dropped()) return;
  try {
    for (std::size_t i = 0; i < kMostPackets && !garbage_ && !stuck(); ++i) {
      if (!with_descriptors && descriptors_come_next(socket())) return;
      process::InHand in_hand;
      packet = next_packet(in_hand);
      packet.descriptors.sent_by(owner());
      using What = Packet::Kind;
      if (packet.kind == What::nothing || packet.kind == What::closed) return;
      if (packet.kind == What::garbage)
        garbage_ = true;
      else if (packet.kind != What::doorbell)
        keep(packet);
      // It would be told of for ever.
      garbage_ |= packet.stays && !stuck();
      if (packet.unsolicited != 0 || !packet.descriptors.empty())
        count_unsolicited(packet.unsolicited, packet.descriptors.size());
    }
  } catch (const std::exception&) {
    garbage_ = true;  // out of memory: what was sent is lost
  }
  // A client would be told of what it does not take for as long as it waits.
  if (garbage_ && is_client() && !has_overflow()) shut_down();
}

Outcome SessionBase::next_descriptors(ReceivedFds& into) {
  // Doorbells may lie before them, as many as the socket holds.
  constexpr int kMostDrains = 16;
  for (int i = 0; i < kMostDrains && (arrived_.empty() || !arrived_.front().complete); ++i)
    take_packets(true);
  const bool overflow = has_overflow();
  if ((garbage_ && !overflow) || arrived_.empty() || !arrived_.front().complete)
    return Outcome::broken;
  if (garbage_ && is_client()) shut_down();
  into = std::move(arrived_.front().descriptors);
  arrived_.pop_front();
  return overflow ? Outcome::too_big : Outcome::ok;
}

void SessionBase::prepare(const Load& load, Turn& turn) {
  sending_ = false;
  slot().extra = load.extra;
  const std::uint64_t size = load.data.size();
  if (size <= kInlineBytes) {
    fill_slot(load.extra, load.data);
    turn.size = static_cast<std::uint16_t>(size);
  } else {
    if (transfer_.capacity() < size) {
      // Not for who has asked and gone.
      if (hung_up()) throw SystemError(ECONNRESET, "send a long message");
      Charge held;
      if (!may_hold(TransferMemory::capacity_for(size), held))
        throw SystemError(E2BIG, "too much memory for one user");
      TransferMemory made = TransferMemory::create(size, trusts_other());
      made.charge = std::move(held);
      sending_ = has_sent_descriptors_ = true;
      send_descriptors(sockets_.theirs.get(), std::array{made.fd()}, kPurposeData, load.deadline);
      made.keep();
      let_go_of_transfer();
      transfer_ = std::move(made);
      announce_ = true;
    }
    errno = 0;
    if (!transfer_.write(load.data)) {
      if (errno == EFBIG)
        throw SystemError(EFBIG, "a long message is more than a file may have here (ulimit -f)");
      throw SystemError(ENOMEM, "no memory for a long message");
    }
    turn.flags |= kTransfer;
    std::memcpy(slot().data, &size, sizeof size);
  }
  // Perhaps of an earlier answer that failed after it had been sent.
  if (announce_) turn.flags |= kTransferComes;
  if (!load.descriptors.empty()) {
    sending_ = has_sent_descriptors_ = true;
    sent_in_part_ = load.descriptors.size() > kPacketDescriptors;
    send_descriptors(sockets_.theirs.get(), load.descriptors, kPurposeData, load.deadline);
    sent_in_part_ = false;
    turn.flags |= kDescriptors;
  }
  announce_ = false;
}

int SessionBase::accept_transfer(std::size_t most) {
  ReceivedFds fds;
  let_go_of_transfer();
  const Outcome outcome = next_descriptors(fds);
  if (outcome == Outcome::too_big) return EMFILE;
  if (outcome != Outcome::ok || fds.size() != 1) return EPROTO;
  try {
    transfer_ = TransferMemory::adopt(std::move(fds[0]), trusts_other(), most);
  } catch (const SystemError& error) {
    return error.code().value() == E2BIG ? E2BIG : EPROTO;
  }
  return 0;
}

}  // namespace farcall::call
