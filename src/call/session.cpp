// SPDX-License-Identifier: Apache-2.0
#include "call/session.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "farcall/error.hpp"
#include "process/identity.hpp"
#include "wait/held_signals.hpp"

namespace farcall::call {
namespace {

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
  if (memory.size() != kSessionBytes) throw SystemError(EPROTO, "memory not of a session's size");
  Mapping mapping = map_session(memory.fd());
  if (reinterpret_cast<const SessionControl*>(mapping.data())->magic != SessionControl::kMagic)
    throw SystemError(EPROTO, "the memory holds no session");
  return mapping;
}

SessionBase::SessionBase(Mapping memory, UniqueFd socket, WaitMode mode)
    : memory_(std::move(memory)),
      socket_(std::move(socket)),
      waiter_(socket_.get(), mode,
              {[](void* self, int) noexcept { static_cast<SessionBase*>(self)->drain(); }, this}) {}

bool SessionBase::hung_up() const noexcept {
  pollfd death{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&death, 1, 0) > 0 && (death.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SessionBase::keep(Packet& arrival) {
  // The largest message that anyone sends in earnest: memory, and two packets of descriptors.
  constexpr std::size_t kMostArrived = 8;
  if (arrival.purpose != kPurposeData) {
    garbage_ |= !arrival.descriptors.empty() || !other_packet(arrival);
    return;
  }
  if (arrived_.size() > kMostArrived || !may_keep(arrival.descriptors.size())) {
    garbage_ = true;
    return;
  }
  if (arrived_.empty() || arrived_.back().complete) arrived_.emplace_back();
  Arrived& whole = arrived_.back();
  whole.complete = !arrival.more;
  whole.overflow |= arrival.kind == Packet::Kind::overflow;
  if (whole.descriptors.size() + arrival.descriptors.size() > kCallDescriptors) garbage_ = true;
  std::ranges::move(arrival.descriptors, std::back_inserter(whole.descriptors));
  arrival.descriptors.clear();
}

void SessionBase::drain() noexcept {
  // A peer that sends without end is stopped here by the bound and later by its lack of sense.
  constexpr std::size_t kMostPackets = 64;
  Packet arrival;
  try {
    for (std::size_t i = 0; i < kMostPackets && !garbage_; ++i) {
      arrival = take_packet(socket_.get());
      using What = Packet::Kind;
      if (arrival.kind == What::nothing || arrival.kind == What::closed) return;
      if (arrival.kind == What::garbage)
        garbage_ = true;
      else if (arrival.kind != What::doorbell)
        keep(arrival);
      // Nobody knows what these would do to a thread that closes them.
      if (!arrival.descriptors.empty()) close_later(owner(), std::move(arrival.descriptors));
    }
  } catch (const std::exception&) {
    garbage_ = true;  // out of memory: what was sent is lost
    close_later(owner(), std::move(arrival.descriptors));
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

void SessionBase::prepare(const Load& load, Turn& turn) {
  slot().extra = load.extra;
  const std::uint64_t size = load.data.size();
  if (size <= kInlineBytes) {
    fill_slot(load.extra, load.data);
    turn.size = static_cast<std::uint16_t>(size);
  } else {
    if (transfer_.capacity() < size) {
      transfer_ = TransferMemory::create(size);
      send_descriptors(socket_.get(), std::array{transfer_.fd()}, kPurposeData);
      transfer_.keep();
      announce_ = true;
    }
    if (announce_) turn.flags |= kTransferComes;
    if (!transfer_.write(load.data)) throw SystemError(ENOMEM, "no memory for a long message");
    turn.flags |= kTransfer;
    std::memcpy(slot().data, &size, sizeof size);
  }
  if (!load.descriptors.empty()) {
    send_descriptors(socket_.get(), load.descriptors, kPurposeData);
    turn.flags |= kDescriptors;
  }
  if ((turn.flags & kTransferComes) != 0) announce_ = false;
}

Outcome SessionBase::accept_transfer(bool trusted, std::size_t most) {
  std::vector<UniqueFd> fds;
  transfer_ = {};
  if (const Outcome outcome = next_descriptors(fds); outcome != Outcome::ok) return outcome;
  if (fds.size() != 1) {
    close_later(owner(), std::move(fds));
    return Outcome::broken;
  }
  try {
    transfer_ = TransferMemory::adopt(std::move(fds[0]), trusted, most);
  } catch (const SystemError& error) {
    // It is not the peer's fault that there is no room for it here.
    const int code = error.code().value();
    return code == ENOMEM || code == E2BIG ? Outcome::too_big : Outcome::broken;
  }
  return Outcome::ok;
}

namespace {

// Waits until the server has answered at `socket`. Signals interrupt only where there is a `since`.
Outcome await_answer(int socket, bool cancellable, Deadline deadline,
                     std::optional<SignalCount> since) {
  pollfd entry{.fd = socket, .events = POLLIN | POLLRDHUP, .revents = 0};
  for (;;) {
    const HeldSignals held;
    if (since && since != SignalCount::now()) return Outcome::interrupted;
    const timespec left = deadline.left();
    int before = 0;
    if (cancellable) ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    const int count = ::ppoll(&entry, 1, deadline.is_never() ? nullptr : &left, held.before());
    if (cancellable) ::pthread_setcancelstate(before, nullptr);
    if (count > 0) return Outcome::ok;
    if (count == 0) return deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
    if (since) return Outcome::interrupted;
  }
}

}  // namespace

SessionRequest::SessionRequest(int port, std::uint64_t retirements,
                               std::optional<SignalCount> since)
    : made_after_(retirements) {
  const SharedMemory memory = SharedMemory::create(kSessionBytes, "farcall-session");
  memory_ = map_session(memory.fd());
  reinterpret_cast<SessionControl*>(memory_.data())->magic = SessionControl::kMagic;
  auto [mine, theirs] = packet_socket_pair();
  answers_ = PrivateFd(std::move(mine));
  send_descriptors(port, std::array{memory.fd(), theirs.get()}, kPurposeSession, kPeerPatience,
                   since);
}

std::unique_ptr<ClientSession> SessionRequest::await(WaitMode mode, bool cancellable,
                                                     Deadline deadline,
                                                     std::optional<SignalCount> since,
                                                     Outcome& outcome) {
  outcome = await_answer(answers_.get(), cancellable, deadline, since);
  if (outcome != Outcome::ok) return nullptr;
  Packet arrival = take_packet(answers_.get());
  if (arrival.kind == Packet::Kind::overflow) throw SystemError(EMFILE, "open a session");
  if (arrival.kind != Packet::Kind::descriptors || arrival.descriptors.size() > 1) {
    outcome = arrival.kind == Packet::Kind::closed ? Outcome::peer_gone : Outcome::broken;
    return nullptr;
  }
  if (arrival.descriptors.empty()) {
    const auto& control = *reinterpret_cast<const SessionControl*>(memory_.data());
    const std::uint32_t error = control.terms.refusal.load(std::memory_order_relaxed);
    outcome = Outcome::broken;
    if (error < 1 || error > kMostErrno) return nullptr;
    throw SystemError(static_cast<int>(error), "the server takes no more clients");
  }
  auto session =
      std::make_unique<ClientSession>(std::move(memory_), std::move(arrival.descriptors[0]), mode);
  session->made_after = made_after_;
  session->say_other_ids();
  return session;
}

// Programs that act with other ids than their own: the kernel checks what is said here.
void ClientSession::say_other_ids() const {
  uid_t real = 0;
  uid_t effective = 0;
  uid_t saved = 0;
  gid_t real_group = 0;
  gid_t effective_group = 0;
  gid_t saved_group = 0;
  if (::getresuid(&real, &effective, &saved) != 0 ||
      ::getresgid(&real_group, &effective_group, &saved_group) != 0)
    return;
  const pid_t self = ::getpid();
  if (real != effective || real_group != effective_group)
    send_credentials(socket(), {.pid = self, .uid = real, .gid = real_group}, kPurposeReal);
  if (saved != effective || saved_group != effective_group)
    send_credentials(socket(), {.pid = self, .uid = saved, .gid = saved_group}, kPurposeSaved);
}

Outcome ClientSession::fail(Outcome outcome) const noexcept {
  return outcome == Outcome::finished ? Outcome::peer_gone : outcome;
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

[[gnu::hot]] void ClientSession::send_request(const CallArguments& arguments, Kind kind) {
  if (is_short(arguments)) {
    give_turn(fill_short_request(arguments, kind), control().client, control().server);
    return;
  }
  Turn turn{.number = number_, .kind = kind, .flags = flags_of(arguments)};
  prepare(
      {.extra = extra_of(arguments), .data = arguments.data, .descriptors = arguments.descriptors},
      turn);
  give_turn(turn, control().client, control().server);
}

[[gnu::hot]] Outcome ClientSession::call(const CallArguments& arguments, CallResults* results,
                                         Deadline deadline, SignalCount since) {
  if (outstanding_) {
    // The slot is ours again when the server has taken the last one-way request.
    if (const Outcome outcome = wait_until_taken(deadline, since); outcome != Outcome::ok)
      return outcome;
  }
  ++number_;
  const bool one_way = results == nullptr;
  outstanding_ = one_way;
  send_request(arguments, one_way ? Kind::one_way : Kind::request);
  if (!one_way) return finish(arguments, *results, deadline, since);
  if (!arguments.until_taken) return Outcome::ok;
  const Outcome outcome = wait_until_taken(deadline, since);
  if (outcome == Outcome::ok || outcome == Outcome::peer_gone) return outcome;
  // Taken back, so that who sends it once more does not send it twice.
  slot().turn.store(Turn{.number = number_}.pack(), std::memory_order_relaxed);
  full_fence();
  if (!dispatched()) return outcome;
  made_after = kSpent;  // the server may still be about to answer
  return Outcome::ok;
}

Outcome ClientSession::wait_until_taken(Deadline deadline, SignalCount since) {
  Turn turn{};
  const Outcome outcome = wait_for_reply(turn, deadline, since);
  outstanding_ = outcome != Outcome::ok;
  if (!outstanding_) transfer_.exchanged();
  return fail(outcome);
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
        arguments.retry_policy != nullptr && dispatched()) {
      const SignalCount told = SignalCount::now();
      if (arguments.retry_policy->stay(outcome, deadline)) {
        since = told;
        continue;
      }
    }
    if (outcome != Outcome::ok) return fail(outcome);
    outcome = take_reply(turn, results);
    if (outcome != Outcome::would_block) return outcome;
  }
}

[[gnu::hot]] Outcome ClientSession::wait_for_reply(Turn& turn, Deadline deadline,
                                                   SignalCount since) {
  // Switched on for the whole wait, and not only where it sleeps: who leaves by siglongjmp(3) takes
  // that state along.
  const struct Permission {
    explicit Permission(bool on) noexcept : given(on) { set(PTHREAD_CANCEL_ENABLE); }
    ~Permission() { set(PTHREAD_CANCEL_DISABLE); }
    void set(int state) const noexcept {
      if (given) ::pthread_setcancelstate(state, nullptr);
    }
    const bool given;
  } permission(cancellable_);
  return waiter_.wait(
      control().client, control().server, deadline, [&] { return replied(turn); }, since);
}

// Returns would_block where the server is to send another reply.
[[gnu::hot]] Outcome ClientSession::take_reply(Turn turn, CallResults& results) {
  if (take_short_reply(turn, results)) [[likely]] {
    transfer_.exchanged();
    return Outcome::ok;
  }
  const Outcome outcome = take_long_reply(turn, results);
  transfer_.exchanged();
  return outcome;
}

Outcome ClientSession::take_long_reply(Turn turn, CallResults& results) {
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  results.status = slot().extra;
  std::uint64_t size = turn.size;
  const bool apart = (results.status & results.apart) != 0;
  if ((turn.flags & kRefused) != 0) {
    transfer_ = {};  // the server may not have taken it
    if (results.status < 1 || results.status > kMostErrno) return Outcome::broken;
    throw SystemError(static_cast<int>(results.status), "the server cannot take the request");
  }
  if ((turn.flags & kTransferComes) != 0) {
    // Who calls a server waits for it anyway.
    const Outcome outcome = accept_transfer(true, SIZE_MAX);
    if (outcome != Outcome::ok) return outcome;
  }
  if ((turn.flags & kTransfer) != 0) {
    std::memcpy(&size, slot().data, sizeof size);
    if (size > transfer_.capacity()) return Outcome::broken;
  }
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
    const std::size_t pages = round_up_to_pages(size);
    void* address =
        ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return Outcome::too_big;
    results.large = Mapping(address, pages);
    into = {results.large.data(), pages};
  }
  results.data = into.first(size);
  if ((turn.flags & kTransfer) != 0) {
    if (!transfer_.read(results.data)) return Outcome::broken;
  } else if (size != 0) {
    std::memcpy(results.data.data(), slot().data, size);
  }
  if ((turn.flags & kDescriptors) == 0) return Outcome::ok;
  // In the turn itself: the next request may be in the slot before the server has looked.
  give_turn({.number = number_, .kind = Kind::done, .size = static_cast<std::uint16_t>(error)},
            control().client, control().server);
  return error == 0 ? Outcome::ok : Outcome::would_block;
}

bool ServerSession::trusts_client() const noexcept { return same_user(caller.uid, ::geteuid()); }

bool ServerSession::other_packet(const Packet& arrival) noexcept {
  if (!arrival.sender || arrival.sender->pid != caller.pid) return false;
  if (arrival.purpose == kPurposeReal) {
    identity_.real_uid = arrival.sender->uid;
    identity_.real_gid = arrival.sender->gid;
  } else if (arrival.purpose == kPurposeSaved) {
    identity_.saved_uid = arrival.sender->uid;
    identity_.saved_gid = arrival.sender->gid;
  } else {
    return false;
  }
  return true;
}

// Descriptors that nobody has asked for yet count as their sender's.
bool ServerSession::may_keep(std::size_t count) noexcept {
  if (count == 0) return true;
  try {
    kept_.emplace_back(Resource::descriptors, caller.uid, count,
                       endpoint->limits().descriptors_per_user);
    return static_cast<bool>(kept_.back());
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Outcome ServerSession::take(const Destination& to, Request& request) {
  Turn turn = this->turn();
  turn.flags &= static_cast<std::uint8_t>(~kAfterOthers);
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  begin(turn, request);
  int refusal = 0;
  const Outcome outcome = take_data(turn, to, request, refusal);
  kept_.clear();
  if (outcome != Outcome::ok) return outcome;
  if (refusal != 0) {
    close_later(caller.uid, std::move(to.descriptors));
    if (!request.wants_reply) return Outcome::broken;
    refuse(refusal);
    return Outcome::would_block;
  }
  if (!request.wants_reply) {
    answer(turn.number);
    transfer_.exchanged();
  }
  return Outcome::ok;
}

Outcome ServerSession::take_data(const Turn& turn, const Destination& to, Request& request,
                                 int& refusal) {
  std::uint64_t size = turn.size;
  if ((turn.flags & kTransfer) != 0) std::memcpy(&size, slot().data, sizeof size);
  if ((turn.flags & kTransferComes) != 0) {
    const Outcome outcome = accept_transfer(trusts_client(), to.limits.request_bytes);
    if (outcome == Outcome::too_big)
      refusal = E2BIG;
    else if (outcome != Outcome::ok)
      return outcome;
    transfer_.charge =
        Charge(Resource::bytes, caller.uid, transfer_.capacity(), to.limits.bytes_per_user);
    if (!transfer_.charge && refusal == 0) refusal = E2BIG;
  }
  if ((turn.flags & kDescriptors) != 0) {
    const Outcome outcome = next_descriptors(to.descriptors);
    if (outcome == Outcome::too_big)
      refusal = EMFILE;
    else if (outcome != Outcome::ok)
      return outcome;
  }
  if (refusal != 0) return Outcome::ok;
  if ((turn.flags & kTransfer) == 0) {
    request.data = {to.inline_data, size};
    if (size != 0) std::memcpy(to.inline_data, slot().data, size);
    return Outcome::ok;
  }
  if (size > transfer_.capacity()) return Outcome::broken;
  refusal = take_long(size, to, request);
  return Outcome::ok;
}

// Returns the errno that the request is to be refused with, before anything has been copied; or 0.
int ServerSession::take_long(std::size_t size, const Destination& to, Request& request) {
  if (size > to.limits.request_bytes) return E2BIG;
  if (const auto owner = endpoint->owner())
    if (const int error = owner->admit(size, to.descriptors.size()); error != 0) return error;
  constexpr std::size_t kLong = std::size_t{4} << 20;  // a millisecond's work
  if (size >= kLong && to.observer != nullptr) to.observer->busy(*endpoint);
  if (!to.large) to.large = std::make_unique<RequestBuffer>();
  std::byte* into =
      to.large->reserve(size, Charge(Resource::bytes, caller.uid, size, to.limits.bytes_per_user));
  if (into == nullptr) return E2BIG;
  request.data = {into, size};
  return transfer_.read(request.data) ? 0 : EFAULT;
}

void ServerSession::refuse(int error) noexcept {
  transfer_ = {};  // as the client does
  slot().extra = error;
  answer(number_.load(std::memory_order_relaxed), 0, kRefused);
}

Outcome ServerSession::reply(std::span<const std::byte> data, std::span<const int> descriptors,
                             std::int64_t status, std::chrono::nanoseconds patience) {
  const std::uint32_t number = number_.load(std::memory_order_relaxed);
  Turn turn{.number = number, .kind = Kind::reply};
  prepare({.extra = status, .data = data, .descriptors = descriptors}, turn);
  give_turn(turn, control().server, control().client);
  transfer_.exchanged();
  if ((turn.flags & kDescriptors) == 0) return Outcome::ok;
  const Deadline longest = Deadline::after(patience);
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
  if (answer.size == 0) return Outcome::ok;
  if (answer.size == EMFILE) throw SystemError(EMFILE, "the client has no room for descriptors");
  return Outcome::broken;
}

void ServerSession::set_terms(const Terms& terms) noexcept {
  for (std::size_t i = 0; i < terms.size(); ++i)
    control().terms.words[i].store(terms[i], std::memory_order_relaxed);
}

void ServerSession::tell_gone() noexcept {
  gone.store(true, std::memory_order_relaxed);
  while (telling_.exchange(true, std::memory_order_acquire)) relax();
  asymmetric_fence_heavy();
  if (ClientDeathObserver* now = observer_.load(std::memory_order_acquire)) {
    now->client_gone(*endpoint);
    observer_.store(nullptr, std::memory_order_release);
  }
  telling_.store(false, std::memory_order_release);
}

}  // namespace farcall::call
