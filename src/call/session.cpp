// SPDX-License-Identifier: Apache-2.0
#include "call/session.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "farcall/error.hpp"

namespace farcall::call {
namespace {

constexpr RingKind kRing = RingKind::bytes;

Mapping map_session(int fd) {
  void* address =
      ::mmap(nullptr, kSessionBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) throw_errno("map a session");
  return {address, kSessionBytes};
}

}  // namespace

Mapping adopt_session(UniqueFd fd) {
  const SharedMemory memory = SharedMemory::adopt(std::move(fd));
  if (memory.size() < kSessionBytes) throw SystemError(EPROTO, "memory too small for a session");
  Mapping mapping = map_session(memory.fd());
  if (reinterpret_cast<const SessionControl*>(mapping.data())->magic != SessionControl::kMagic)
    throw SystemError(EPROTO, "the memory holds no session");
  return mapping;
}

SessionBase::SessionBase(Mapping memory, UniqueFd socket, WaitMode mode)
    : memory_(std::move(memory)),
      socket_(std::move(socket)),
      waiter_(socket_.get(), mode, drain_hook()),
      mode_(mode) {}

Drain SessionBase::drain_hook() noexcept {
  return {[](void* self, int) noexcept { static_cast<SessionBase*>(self)->drain(); }, this};
}

void SessionBase::drain() noexcept {
  // A peer that sends without end is stopped here by the bound and later by its lack of sense.
  constexpr std::size_t kMostPackets = 64;
  try {
    for (std::size_t i = 0; i < kMostPackets && !garbage_; ++i) {
      Arrival arrival = take_arrival(socket_.get());
      if (arrival.kind == Arrival::Kind::nothing || arrival.kind == Arrival::Kind::closed) return;
      if (arrival.kind == Arrival::Kind::garbage || arrived_.size() > 4) garbage_ = true;
      if (arrival.kind == Arrival::Kind::descriptors)
        arrived_.push_back(std::move(arrival.descriptors));
    }
  } catch (...) {
    garbage_ = true;  // out of descriptors, out of memory: what was sent is lost
  }
}

Outcome SessionBase::next_descriptors(std::vector<UniqueFd>& into) {
  if (arrived_.empty()) drain();
  if (arrived_.empty() || garbage_) return Outcome::broken;
  into = std::move(arrived_.front());
  arrived_.pop_front();
  return Outcome::ok;
}

void SessionBase::make_bulk(RingMemory out, RingMemory in) {
  // The rings share the session's socket: its thread waits for one thing at a time.
  const Waiter waiter(socket_.get(), mode_, drain_hook());
  const RingView out_view = out.view();
  const RingView in_view = in.view();
  bulk_ = std::make_unique<Bulk>(Bulk{.out_memory = std::move(out),
                                      .in_memory = std::move(in),
                                      .out = ByteWriter(out_view, waiter),
                                      .in = ByteReader(in_view, waiter)});
}

Outcome SessionBase::prepare_long(const Load& load, Turn& turn, bool server) {
  if (load.data.size() > kInlineBytes) {
    turn.flags |= kBulk;
    if (!bulk_) {
      const SharedMemory requests = SharedMemory::create(ring_bytes(kBulkCapacity), "farcall-call");
      const SharedMemory replies = SharedMemory::create(ring_bytes(kBulkCapacity), "farcall-call");
      RingMemory to_server = RingMemory::format(requests.fd(), kBulkCapacity, kRing);
      RingMemory to_client = RingMemory::format(replies.fd(), kBulkCapacity, kRing);
      const std::array fds{requests.fd(), replies.fd()};
      send_descriptors(socket_.get(), fds);
      turn.flags |= kBulkComes;
      make_bulk(std::move(server ? to_client : to_server),
                std::move(server ? to_server : to_client));
    }
    const std::uint64_t size = load.data.size();
    std::memcpy(slot().data, &size, sizeof size);
  }
  if (!load.descriptors.empty()) {
    send_descriptors(socket_.get(), load.descriptors);
    turn.flags |= kDescriptors;
  }
  return Outcome::ok;
}

Outcome SessionBase::accept_bulk(bool server) {
  if (bulk_) return Outcome::broken;
  std::vector<UniqueFd> fds;
  if (next_descriptors(fds) != Outcome::ok || fds.size() != 2) return Outcome::broken;
  try {
    const SharedMemory requests = SharedMemory::adopt(std::move(fds[0]));
    const SharedMemory replies = SharedMemory::adopt(std::move(fds[1]));
    // What the peer writes is mapped read-only here.
    RingMemory to_server =
        RingMemory::attach(requests, kRing, server ? Access::read_only : Access::read_write);
    RingMemory to_client =
        RingMemory::attach(replies, kRing, server ? Access::read_write : Access::read_only);
    make_bulk(std::move(server ? to_client : to_server), std::move(server ? to_server : to_client));
  } catch (const SystemError&) {
    return Outcome::broken;
  }
  return Outcome::ok;
}

Outcome SessionBase::stream_out(std::span<const std::byte> data) {
  while (!data.empty()) {
    std::size_t written = 0;
    const Outcome outcome = bulk_->out.write_some(data, written, Deadline::after(kStall));
    if (outcome == Outcome::interrupted) continue;  // half a message cannot be taken back
    if (outcome != Outcome::ok) return outcome == Outcome::timed_out ? Outcome::broken : outcome;
    data = data.subspan(written);
  }
  return Outcome::ok;
}

Outcome SessionBase::stream_in(std::span<std::byte> into) {
  if (!bulk_) return Outcome::broken;
  while (!into.empty()) {
    std::size_t count = 0;
    const Outcome outcome = bulk_->in.read_some(into, count, Deadline::after(kStall));
    if (outcome == Outcome::interrupted) continue;
    if (outcome != Outcome::ok) return outcome == Outcome::timed_out ? Outcome::broken : outcome;
    into = into.subspan(count);
  }
  return Outcome::ok;
}

std::unique_ptr<ClientSession> ClientSession::open(int port, WaitMode mode,
                                                   std::uint64_t generation) {
  const SharedMemory memory = SharedMemory::create(kSessionBytes, "farcall-session");
  Mapping mapping = map_session(memory.fd());
  reinterpret_cast<SessionControl*>(mapping.data())->magic = SessionControl::kMagic;
  auto [mine, theirs] = packet_socket_pair();
  send_descriptors(port, std::array{memory.fd(), theirs.get()});
  return std::make_unique<ClientSession>(std::move(mapping), std::move(mine), mode, generation);
}

Outcome ClientSession::fail(Outcome outcome) const noexcept {
  return outcome == Outcome::finished ? Outcome::peer_gone : outcome;
}

Outcome ClientSession::call(const CallArguments& arguments, CallResults* results,
                            Deadline deadline) {
  Turn turn{};
  if (outstanding_) {
    // The slot is ours again when the server has taken the last one-way request.
    if (const Outcome outcome = wait_for_reply(turn, deadline); outcome != Outcome::ok)
      return fail(outcome);
    outstanding_ = false;
  }
  turn = {.number = ++number_, .kind = results != nullptr ? Kind::request : Kind::one_way};
  const bool is_long = arguments.data.size() > kInlineBytes;
  if (is_long || !arguments.descriptors.empty()) [[unlikely]]
    prepare_long({.data = arguments.data, .descriptors = arguments.descriptors}, turn, false);
  if (!is_long) {
    fill_slot(arguments.data);
    turn.size = static_cast<std::uint16_t>(arguments.data.size());
  }
  give_turn(turn, control().client, control().server);
  if (is_long) [[unlikely]] {
    if (const Outcome outcome = stream_out(arguments.data); outcome != Outcome::ok)
      return fail(outcome);
  }
  if (results == nullptr) {
    outstanding_ = true;
    return Outcome::ok;
  }
  if (const Outcome outcome = wait_for_reply(turn, deadline); outcome != Outcome::ok)
    return fail(outcome);
  return take_reply(turn, *results);
}

Outcome ClientSession::wait_for_reply(Turn& turn, Deadline deadline) {
  const auto there = [&] {
    turn = this->turn();
    return turn.kind == Kind::reply && turn.number == number_;
  };
  return waiter_.wait(control().client, control().server, deadline, there);
}

Outcome ClientSession::take_reply(Turn turn, CallResults& results) {
  // From here on only `turn`, a private copy, is believed, and only within its bounds.
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  if (turn.size > kFirstLineBytes) __builtin_prefetch(slot().data + kFirstLineBytes);
  results.status = slot().extra;
  std::uint64_t size = turn.size;
  if ((turn.flags & kBulkComes) != 0 && accept_bulk(false) != Outcome::ok) return Outcome::broken;
  if ((turn.flags & kBulk) != 0) std::memcpy(&size, slot().data, sizeof size);
  std::span<std::byte> into = results.buffer;
  if (size > into.size()) {
    // Nobody can send more than memory holds; what cannot be mapped is refused by the kernel.
    const std::size_t pages = round_up_to_pages(size);
    void* address = size > SIZE_MAX / 2 ? MAP_FAILED
                                        : ::mmap(nullptr, pages, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return Outcome::too_big;
    results.large = Mapping(address, pages);
    into = {results.large.data(), pages};
  }
  results.data = into.first(size);
  if ((turn.flags & kBulk) != 0) {
    if (const Outcome outcome = stream_in(results.data); outcome != Outcome::ok)
      return fail(outcome);
  } else if (size != 0) {
    std::memcpy(results.data.data(), slot().data, size);
  }
  if ((turn.flags & kDescriptors) != 0) return next_descriptors(results.descriptors);
  return Outcome::ok;
}

Outcome ServerSession::take(std::byte* inline_data, std::size_t most,
                            std::unique_ptr<std::byte[]>& large, std::size_t& size,
                            std::vector<UniqueFd>& descriptors, bool& wants_reply) {
  const Turn turn = this->turn();
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  if (turn.size > kFirstLineBytes) __builtin_prefetch(slot().data + kFirstLineBytes);
  number_ = turn.number;
  wants_reply = turn.kind == Kind::request;
  // relaxed: a hint for a client whose call failed; it orders nothing.
  control().taken.store(number_, std::memory_order_relaxed);
  size = turn.size;
  if (turn.flags != 0) [[unlikely]] {
    if ((turn.flags & kBulkComes) != 0 && accept_bulk(true) != Outcome::ok) return Outcome::broken;
    if ((turn.flags & kBulk) != 0) {
      std::uint64_t total = 0;
      std::memcpy(&total, slot().data, sizeof total);
      if (total > most) return Outcome::too_big;
      size = total;
      large = std::make_unique_for_overwrite<std::byte[]>(size);
      if (const Outcome outcome = stream_in({large.get(), size}); outcome != Outcome::ok)
        return outcome;
    }
    if ((turn.flags & kDescriptors) != 0 && next_descriptors(descriptors) != Outcome::ok)
      return Outcome::broken;
  }
  if ((turn.flags & kBulk) == 0 && size != 0) std::memcpy(inline_data, slot().data, size);
  if (!wants_reply)
    give_turn({.number = number_, .kind = Kind::reply}, control().server, control().client);
  return Outcome::ok;
}

Outcome ServerSession::reply(std::span<const std::byte> data, std::span<const int> descriptors,
                             std::int64_t status) {
  Turn turn{.number = number_, .kind = Kind::reply};
  slot().extra = status;
  const bool is_long = data.size() > kInlineBytes;
  if (is_long || !descriptors.empty()) [[unlikely]]
    prepare_long({.data = data, .descriptors = descriptors}, turn, true);
  if (!is_long) {
    fill_slot(data);
    turn.size = static_cast<std::uint16_t>(data.size());
  }
  give_turn(turn, control().server, control().client);
  return is_long ? stream_out(data) : Outcome::ok;
}

bool ServerSession::hung_up() const noexcept {
  pollfd death{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&death, 1, 0) > 0 && (death.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace farcall::call
