// SPDX-License-Identifier: Apache-2.0
#include "call/session.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "farcall/error.hpp"

namespace farcall::call {
namespace {

constexpr RingKind kRing = RingKind::bytes;
constexpr int kMostErrno = EHWPOISON;  // what a peer calls an errno must be one

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

bool SessionBase::hung_up() const noexcept {
  pollfd death{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&death, 1, 0) > 0 && (death.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SessionBase::keep(Arrival arrival) {
  // The largest message that anyone sends in earnest: the rings, and two packets of descriptors.
  constexpr std::size_t kMostArrived = 8;
  if (arrival.purpose != kPurposeData || arrived_.size() > kMostArrived) {
    garbage_ = true;
    return;
  }
  if (arrived_.empty() || arrived_.back().complete) arrived_.emplace_back();
  Arrived& whole = arrived_.back();
  whole.complete = !arrival.more;
  whole.overflow |= arrival.kind == Arrival::Kind::overflow;
  if (whole.descriptors.size() + arrival.descriptors.size() > kCallDescriptors) garbage_ = true;
  std::ranges::move(arrival.descriptors, std::back_inserter(whole.descriptors));
}

void SessionBase::drain() noexcept {
  // A peer that sends without end is stopped here by the bound and later by its lack of sense.
  constexpr std::size_t kMostPackets = 64;
  try {
    for (std::size_t i = 0; i < kMostPackets && !garbage_; ++i) {
      Arrival arrival = take_arrival(socket_.get());
      using What = Arrival::Kind;
      if (arrival.kind == What::nothing || arrival.kind == What::closed) return;
      if (arrival.kind == What::garbage)
        garbage_ = true;
      else if (arrival.kind != What::doorbell)
        keep(std::move(arrival));
    }
  } catch (const std::exception&) {
    garbage_ = true;  // out of memory: what was sent is lost
  }
}

Outcome SessionBase::next_descriptors(std::vector<UniqueFd>& into) {
  // Doorbells may lie before them, as many as the socket holds.
  constexpr int kMostDrains = 16;
  for (int i = 0; i < kMostDrains && (arrived_.empty() || !arrived_.front().complete); ++i) drain();
  if (garbage_ || arrived_.empty() || !arrived_.front().complete) return Outcome::broken;
  const bool overflow = arrived_.front().overflow;
  if (!overflow) into = std::move(arrived_.front().descriptors);
  arrived_.pop_front();
  return overflow ? Outcome::too_big : Outcome::ok;
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

std::size_t SessionBase::least_pulled(bool server) const noexcept {
  const bool together = control().client.processor.load(std::memory_order_relaxed) ==
                        control().server.processor.load(std::memory_order_relaxed);
  const std::size_t bytes = together ? kPullBytesTogether : kPullBytesApart;
  return server ? 2 * bytes : bytes;
}

void SessionBase::prepare(const Load& load, Turn& turn, bool server, bool may_pull) {
  slot().extra = load.extra;
  if (load.data.size() <= kInlineBytes) {
    fill_slot(load.extra, load.data);
    turn.size = static_cast<std::uint16_t>(load.data.size());
  } else if (may_pull && load.data.size() >= least_pulled(server)) {
    const PullOffer where = offer(load.data);
    std::memcpy(slot().data, &where, sizeof where);
    turn.flags |= kPull;
  } else {
    turn.flags |= kBulk;
    if (!bulk_) {
      const SharedMemory requests = SharedMemory::create(ring_bytes(kBulkCapacity), "farcall-call");
      const SharedMemory replies = SharedMemory::create(ring_bytes(kBulkCapacity), "farcall-call");
      RingMemory to_server = RingMemory::format(requests.fd(), kBulkCapacity, kRing);
      RingMemory to_client = RingMemory::format(replies.fd(), kBulkCapacity, kRing);
      send_descriptors(socket_.get(), std::array{requests.fd(), replies.fd()}, kPurposeData);
      turn.flags |= kBulkComes;
      make_bulk(std::move(server ? to_client : to_server),
                std::move(server ? to_server : to_client));
    }
    const std::uint64_t size = load.data.size();
    std::memcpy(slot().data, &size, sizeof size);
  }
  if (!load.descriptors.empty()) {
    send_descriptors(socket_.get(), load.descriptors, kPurposeData);
    turn.flags |= kDescriptors;
  }
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
  } catch (const SystemError& error) {
    // It is not the peer's fault that there is no room for them here.
    return error.code().value() == ENOMEM ? Outcome::too_big : Outcome::broken;
  }
  return Outcome::ok;
}

template <class Taken>
Outcome SessionBase::stream_out(std::span<const std::byte> data, Deadline deadline,
                                SignalCount since, Taken taken) {
  while (!data.empty()) {
    const bool begun = taken();
    std::size_t written = 0;
    const Outcome outcome =
        begun ? bulk_->out.write_some(data, written, Deadline::after(kStall))
              : bulk_->out.write_some(data, written, deadline, since);
    if (outcome == Outcome::interrupted && begun) continue;  // half a message is not taken back
    if (outcome != Outcome::ok)
      return outcome == Outcome::timed_out && begun ? Outcome::broken : outcome;
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
                                                   std::optional<SignalCount> since) {
  const SharedMemory memory = SharedMemory::create(kSessionBytes, "farcall-session");
  Mapping mapping = map_session(memory.fd());
  reinterpret_cast<SessionControl*>(mapping.data())->magic = SessionControl::kMagic;
  auto [mine, theirs] = packet_socket_pair();
  pid_t server = 0;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(port, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) server = peer.pid;
  auto session = std::make_unique<ClientSession>(std::move(mapping), std::move(mine), mode, server);
  send_descriptors(port, std::array{memory.fd(), theirs.get()}, kPurposeSession, kPeerPatience,
                   since);
  return session;
}

Outcome ClientSession::fail(Outcome outcome) const noexcept {
  return outcome == Outcome::finished ? Outcome::peer_gone : outcome;
}

Outcome ClientSession::await_welcome(Deadline deadline, std::optional<SignalCount> since) {
  std::uint32_t welcome = 0;
  const auto decided = [&] {
    // acquire: pairs with the release in welcome(), so that the terms are visible.
    welcome = control().terms.welcome.load(std::memory_order_acquire);
    return welcome != 0;
  };
  Outcome outcome = Outcome::interrupted;
  do {
    outcome = waiter_.wait(control().client, control().server, deadline, decided,
                           since.value_or(SignalCount::now()));
  } while (outcome == Outcome::interrupted && !since);
  if (outcome != Outcome::ok) return fail(outcome);
  if (welcome == TermsLine::kWelcome) return Outcome::ok;
  const std::uint32_t error = welcome >> TermsLine::kRefusalShift;
  if (error < 1 || error > kMostErrno) return Outcome::broken;
  throw SystemError(static_cast<int>(error), "the server takes no more clients");
}

Terms ClientSession::terms() const noexcept {
  Terms terms;
  for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = live_terms()[i];
  return terms;
}

inline Turn ClientSession::fill_short_request(const CallArguments& arguments, Kind kind) noexcept {
  fill_slot(extra_of(arguments), arguments.data);
  return {.number = number_,
          .kind = kind,
          .flags = flags_of(arguments),
          .size = static_cast<std::uint16_t>(arguments.data.size())};
}

[[gnu::hot]] Outcome ClientSession::send_request(const CallArguments& arguments, Kind kind,
                                                 Deadline deadline, SignalCount since) {
  if (is_short(arguments)) {
    give_turn(fill_short_request(arguments, kind), control().client, control().server);
    return Outcome::ok;
  }
  Turn turn{.number = number_, .kind = kind, .flags = flags_of(arguments)};
  prepare(
      {.extra = extra_of(arguments), .data = arguments.data, .descriptors = arguments.descriptors},
      turn, false, server_can_pull_ && kind == Kind::request);
  give_turn(turn, control().client, control().server);
  if ((turn.flags & kBulk) == 0) return Outcome::ok;
  return fail(stream_out(arguments.data, deadline, since, [this] { return dispatched(); }));
}

[[gnu::hot]] Outcome ClientSession::call(const CallArguments& arguments, CallResults* results,
                                         Deadline deadline, SignalCount since) {
  Turn turn{};
  if (outstanding_) {
    // The slot is ours again when the server has taken the last one-way request.
    if (const Outcome outcome = wait_for_reply(turn, deadline, since); outcome != Outcome::ok)
      return fail(outcome);
    outstanding_ = false;
  }
  ++number_;
  const bool one_way = results == nullptr;
  outstanding_ = one_way;
  Outcome outcome =
      send_request(arguments, one_way ? Kind::one_way : Kind::request, deadline, since);
  if (outcome != Outcome::ok) return outcome;
  if (one_way) {
    if (!arguments.until_taken) return outcome;
    outcome = wait_for_reply(turn, deadline, since);
    outstanding_ = outcome != Outcome::ok;
    return fail(outcome);
  }
  return finish(arguments, *results, deadline, since);
}

inline bool ClientSession::take_short_reply(Turn turn, CallResults& results) noexcept {
  // From here on only `turn`, a private copy, is believed, and only within its bounds.
  if (turn.flags != 0 || turn.size > std::min(results.buffer.size(), kInlineBytes)) return false;
  long_ = turn.size > kFirstLineBytes;
  results.status = slot().extra;
  if ((results.status & results.apart) != 0) [[unlikely]]
    return false;
  results.data = results.buffer.first(turn.size);
  if (turn.size != 0) std::memcpy(results.data.data(), slot().data, turn.size);
  return true;
}

[[gnu::hot]] bool ClientSession::call_at_once(const CallArguments& arguments,
                                              CallResults& results) noexcept {
  ++number_;
  const Turn mine = fill_short_request(arguments, Kind::request);
  give_turn(mine, control().client, control().server);
  std::uint64_t word = 0;
  const auto answered = [&, given = mine.pack()] { return (word = look()) != given; };
  if (!waiter_.look(control().server, answered)) return false;
  const Turn turn = Turn::unpack(word);
  return turn.number == number_ && turn.kind == Kind::reply && take_short_reply(turn, results);
}

[[gnu::hot]] Outcome ClientSession::finish(const CallArguments& arguments, CallResults& results,
                                           Deadline deadline, SignalCount since) {
  Turn turn{};
  for (;;) {
    Outcome outcome = wait_for_reply(turn, deadline, since);
    if ((outcome == Outcome::interrupted || outcome == Outcome::timed_out) &&
        arguments.persistence != nullptr && dispatched()) {
      const SignalCount told = SignalCount::now();
      if (arguments.persistence->stay(outcome, deadline)) {
        since = told;
        continue;
      }
    }
    if (outcome != Outcome::ok) return fail(outcome);
    if (turn.kind == Kind::reply) {
      outcome = take_reply(turn, results);
      if (outcome != Outcome::would_block) return outcome;
    } else if (turn.kind == Kind::assist) {
      outcome = assist(arguments.data);
      if (outcome != Outcome::ok) return outcome;
    } else {
      // `again`, which makes sense once at most.
      if (!std::exchange(server_can_pull_, false)) return Outcome::broken;
      outcome = send_request(arguments, Kind::request, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
  }
}

[[gnu::hot]] Outcome ClientSession::wait_for_reply(Turn& turn, Deadline deadline,
                                                   SignalCount since) {
  return waiter_.wait(
      control().client, control().server, deadline, [&] { return replied(turn); }, since);
}

// The server wants the last part of a request written to its own memory.
Outcome ClientSession::assist(std::span<const std::byte> data) {
  PullOffer where{};
  std::memcpy(&where, slot().data, sizeof where);
  if (!server_can_pull_ || data.size() < kAssistBytes || where.size > data.size())
    return Outcome::broken;
  slot().extra = hung_up() ? EPERM : push(server_, where, data.last(where.size));
  give_turn({.number = number_, .kind = Kind::assisted}, control().client, control().server);
  return Outcome::ok;
}

// Returns would_block where the server is to send another reply.
[[gnu::hot]] Outcome ClientSession::take_reply(Turn turn, CallResults& results) {
  if (take_short_reply(turn, results)) [[likely]]
    return Outcome::ok;
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  results.status = slot().extra;
  std::uint64_t size = turn.size;
  const bool apart = (results.status & results.apart) != 0;
  if ((turn.flags & kRefused) != 0) {
    if (results.status < 1 || results.status > kMostErrno) return Outcome::broken;
    throw SystemError(static_cast<int>(results.status), "the server cannot take the request");
  }
  PullOffer where{};
  if ((turn.flags & kPull) != 0) std::memcpy(&where, slot().data, sizeof where);
  if ((turn.flags & kBulkComes) != 0) {
    const Outcome outcome = accept_bulk(false);
    if (outcome != Outcome::ok) return outcome;
  }
  if ((turn.flags & kBulk) != 0) std::memcpy(&size, slot().data, sizeof size);
  if ((turn.flags & kPull) != 0) size = where.size;
  int error = 0;
  if ((turn.flags & kDescriptors) != 0) {
    results.descriptors.clear();
    const Outcome outcome = next_descriptors(results.descriptors);
    if (outcome == Outcome::too_big)
      error = EMFILE;
    else if (outcome != Outcome::ok)
      return outcome;
  }
  std::span<std::byte> into = apart ? std::span<std::byte>() : results.buffer;
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
  } else if ((turn.flags & kPull) != 0) {
    if (const int failure = pull(server_, where, results.data); failure != 0 && error == 0)
      error = EAGAIN;
    // A server that no longer waits for us may have written something else there meanwhile.
    if (hung_up()) return Outcome::peer_gone;
  } else if (size != 0) {
    std::memcpy(results.data.data(), slot().data, size);
  }
  if ((turn.flags & (kPull | kDescriptors)) == 0) return Outcome::ok;
  // In the turn itself: the next request may be in the slot before the server has looked.
  give_turn({.number = number_, .kind = Kind::done, .size = static_cast<std::uint16_t>(error)},
            control().client, control().server);
  return error == 0 ? Outcome::ok : Outcome::would_block;
}

Outcome ServerSession::take(const Destination& to, Request& request) {
  Turn turn = this->turn();
  turn.flags &= static_cast<std::uint8_t>(~kAfterOthers);
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  const std::uint32_t before = number_.load(std::memory_order_relaxed);
  begin(turn, request);
  int refusal = 0;
  if (const Outcome outcome = take_data(turn, to, request, refusal); outcome != Outcome::ok)
    return outcome;
  if (refusal != 0) {
    to.descriptors.clear();
    if (!request.wants_reply) return Outcome::broken;
    if (refusal != EAGAIN) {
      refuse(refusal);
    } else {
      number_.store(before, std::memory_order_relaxed);  // it comes again, under the same number
      give_turn({.number = turn.number, .kind = Kind::again}, control().server, control().client);
    }
    return Outcome::would_block;
  }
  if (!request.wants_reply) answer(turn.number);
  return Outcome::ok;
}

Outcome ServerSession::take_data(const Turn& turn, const Destination& to, Request& request,
                                 int& refusal) {
  std::uint64_t size = turn.size;
  PullOffer where{};
  if ((turn.flags & kPull) != 0) {
    std::memcpy(&where, slot().data, sizeof where);
    size = where.size;
  } else if ((turn.flags & kBulk) != 0) {
    std::memcpy(&size, slot().data, sizeof size);
  }
  if ((turn.flags & kBulkComes) != 0) {
    const Outcome outcome = accept_bulk(true);
    if (outcome != Outcome::ok) return outcome;
  }
  if ((turn.flags & kDescriptors) != 0) {
    const Outcome outcome = next_descriptors(to.descriptors);
    if (outcome == Outcome::too_big)
      refusal = EMFILE;
    else if (outcome != Outcome::ok)
      return outcome;
  }
  if ((turn.flags & (kPull | kBulk)) == 0) {
    request.data = {to.inline_data, size};
    if (size != 0) std::memcpy(to.inline_data, slot().data, size);
    return Outcome::ok;
  }
  if (size > to.most) {
    if ((turn.flags & kBulk) != 0) return Outcome::too_big;  // nobody will read what is under way
    refusal = E2BIG;
    return Outcome::ok;
  }
  std::byte* into = to.large.reserve(size);
  if (into == nullptr) {
    if ((turn.flags & kBulk) != 0) return Outcome::too_big;
    refusal = E2BIG;
    return Outcome::ok;
  }
  request.data = {into, size};
  if ((turn.flags & kBulk) != 0) return stream_in(request.data);
  int error = EPERM;
  const bool awake_elsewhere =
      control().client.parked.load(std::memory_order_relaxed) == Side::kAwake &&
      control().client.processor.load(std::memory_order_relaxed) !=
          control().server.processor.load(std::memory_order_relaxed);
  if (can_pull_ && size >= kAssistBytes && awake_elsewhere && request.wants_reply) {
    const Outcome outcome = pull_together(turn, where, to, request, error);
    if (outcome != Outcome::ok) return outcome;
  } else if (can_pull_) {
    error = pull(caller.pid, where, request.data);
  }
  if (error == EPERM) can_pull_ = false;
  if (error != 0 && refusal == 0) refusal = error == EPERM ? EAGAIN : error;
  // A client that has given up may have written something else there meanwhile.
  return hung_up() ? Outcome::peer_gone : Outcome::ok;
}

Outcome ServerSession::pull_together(const Turn& turn, const PullOffer& where,
                                     const Destination& to, Request& request, int& error) {
  const std::size_t first = round_up_to_pages(request.data.size() / 2);
  const std::span<std::byte> rest = request.data.subspan(first);
  const PullOffer wanted = offer(rest);
  std::memcpy(slot().data, &wanted, sizeof wanted);
  give_turn({.number = turn.number, .kind = Kind::assist}, control().server, control().client);
  error = pull(caller.pid, where, request.data.first(first));
  const Deadline longest = Deadline::after(kStall);
  Outcome outcome = Outcome::interrupted;
  while (outcome == Outcome::interrupted) {
    outcome = waiter_.wait(control().server, control().client, longest, [&] {
      const Turn now = this->turn();
      return now.kind == Kind::assisted && now.number == turn.number;
    });
  }
  if (outcome != Outcome::ok) {
    // It may yet write there, as long as it lives.
    to.large.abandon();
    return outcome == Outcome::timed_out ? Outcome::broken : outcome;
  }
  if (error == 0 && slot().extra != 0) {
    PullOffer left = where;
    left.address += first;
    error = pull(caller.pid, left, rest);
  }
  return Outcome::ok;
}

void ServerSession::refuse(int error) noexcept {
  slot().extra = error;
  answer(number_.load(std::memory_order_relaxed), 0, kRefused);
}

Outcome ServerSession::reply(std::span<const std::byte> data, std::span<const int> descriptors,
                             std::int64_t status) {
  const std::uint32_t number = number_.load(std::memory_order_relaxed);
  for (;;) {
    Turn turn{.number = number, .kind = Kind::reply};
    prepare({.extra = status, .data = data, .descriptors = descriptors}, turn, true,
            client_can_pull_);
    give_turn(turn, control().server, control().client);
    if ((turn.flags & kBulk) != 0) {
      const Outcome outcome = stream_out(data, Deadline::after(kStall), SignalCount::now(),
                                         [] { return true; });
      if (outcome != Outcome::ok) return outcome;
    }
    if ((turn.flags & (kPull | kDescriptors)) == 0) return Outcome::ok;
    const Deadline longest = Deadline::after(kStall);
    Turn answer;
    Outcome outcome = Outcome::interrupted;
    while (outcome == Outcome::interrupted) {
      outcome = waiter_.wait(control().server, control().client, longest, [&] {
        answer = this->turn();
        return answer.kind == Kind::done || answer.number != number;
      });
    }
    // A client that already asks for something else has taken it.
    if (outcome == Outcome::ok && answer.number != number) return Outcome::ok;
    if (outcome != Outcome::ok) return outcome == Outcome::timed_out ? Outcome::broken : outcome;
    const int error = answer.size;
    if (error == 0) return Outcome::ok;
    if (error == EMFILE) throw SystemError(EMFILE, "the client has no room for descriptors");
    if (error != EAGAIN || (turn.flags & kPull) == 0) return Outcome::broken;
    client_can_pull_ = false;
  }
}

void ServerSession::set_terms(const Terms& terms) noexcept {
  for (std::size_t i = 0; i < terms.size(); ++i)
    control().terms.words[i].store(terms[i], std::memory_order_relaxed);
}

void ServerSession::welcome(int error) noexcept {
  // release: the terms are visible before.
  control().terms.welcome.store(error == 0
                                    ? TermsLine::kWelcome
                                    : static_cast<std::uint32_t>(error) << TermsLine::kRefusalShift,
                                std::memory_order_release);
  // A waiter of its own: a thread that already serves may be using the session's.
  Waiter(socket(), WaitMode::block).wake(control().server, control().client);
}

void ServerSession::tell_gone() noexcept {
  gone.store(true, std::memory_order_relaxed);
  while (telling_.exchange(true, std::memory_order_acquire)) relax();
  asymmetric_fence_heavy();
  if (Attendant* now = attendant_.load(std::memory_order_acquire)) {
    now->client_gone(*entrance);
    attendant_.store(nullptr, std::memory_order_release);
  }
  telling_.store(false, std::memory_order_release);
}

}  // namespace farcall::call
