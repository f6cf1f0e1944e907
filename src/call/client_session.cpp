// SPDX-License-Identifier: Apache-2.0
#include "call/client_session.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <tuple>
#include <utility>

#include "call/limits.hpp"
#include "farcall/error.hpp"
#include "process/identity.hpp"
#include "socket/answers.hpp"
#include "socket/strangers.hpp"
#include "wait/held_signals.hpp"

namespace farcall::call {
namespace {

constexpr int kMostErrno = EHWPOISON;  // what a peer calls an errno must be one

// Whether what has interrupted a wait is, or may be, the program's: the C library sends its threads
// signals of its own, where one of them changes the ids of the process, say.
bool is_programs_signal(SignalCount since) noexcept {
  return since != SignalCount::now() || catches_uncounted_signals();
}

// Waits until the server has answered at `socket`, or `process` is readable, where it is not -1.
// Signals interrupt only where there is a `since`.
Outcome await_answer(int socket, int process, bool cancellable, Deadline deadline,
                     std::optional<SignalCount> since) {
  std::array<pollfd, 2> entries{{{.fd = socket, .events = POLLIN | POLLRDHUP, .revents = 0},
                                 {.fd = process, .events = POLLIN, .revents = 0}}};
  const nfds_t entry_count = process < 0 ? 1 : 2;
  for (;;) {
    int count = 0;
    {
      const HeldSignals held;
      if (since && since != SignalCount::now()) return Outcome::interrupted;
      const timespec left = deadline.left();
      int before = 0;
      if (cancellable) ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
      count = ::ppoll(entries.data(), entry_count, deadline.is_never() ? nullptr : &left,
                      held.before());
      if (cancellable) ::pthread_setcancelstate(before, nullptr);
    }
    if (count > 0) return entries[0].revents != 0 ? Outcome::ok : Outcome::peer_gone;
    if (count == 0) return deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
    if (since && is_programs_signal(*since)) return Outcome::interrupted;
  }
}

// The same, and after a while the death of the process that has made the port is noticed as well:
// its children may hold what would tell of it. `expected`: as of SessionRequest.
Outcome await_answer_or_death(int socket, int port, std::uint64_t expected, bool cancellable,
                              Deadline deadline, std::optional<SignalCount> since) {
  constexpr std::chrono::milliseconds kWhile{20};
  const Deadline first = std::min(deadline, Deadline::after(kWhile));
  const Outcome outcome = await_answer(socket, -1, cancellable, first, since);
  if (outcome != Outcome::timed_out || first == deadline) return outcome;
  WatchedProcess maker(port);
  // By now the number may be another one's.
  if (expected != 0 && socket_cookie(port) != expected) maker = {};
  if (maker.ended) return Outcome::peer_gone;
  return await_answer(socket, maker.descriptor.get(), cancellable, deadline, since);
}

// No longer than a server that means well can take to empty its socket.
Deadline patience(Deadline deadline) noexcept {
  return std::min(deadline, Deadline::after(kPeerPatience));
}

// Not a child's, either.
PrivateFd make_memory() {
  const NoFork guard;
  return PrivateFd(SharedMemory::create(kSessionBytes, "farcall-session").release());
}

}  // namespace

Maker maker_of(int port) {
  const Credentials maker = peer_credentials(port);
  const uid_t user = maker.uid;
  return {.user = user, .trusted = process::is_own(user), .process = maker.pid};
}

UniqueFd duplicate_descriptor(int fd) {
  // Not the program's: what stands in front of the C library for it does not count this one.
  UniqueFd copy(static_cast<int>(::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3)));
  if (copy) return copy;
  // EINVAL: that number is not permitted (RLIMIT_NOFILE).
  throw SystemError(errno == EINVAL ? EMFILE : errno, "duplicate a descriptor");
}

PortFd<PrivateFd> private_port(int port) {
  const NoFork guard;
  return PortFd(PrivateFd(duplicate_descriptor(port)));
}

SessionRequest::SessionRequest(int port, std::uint64_t expected, std::uint64_t retirements,
                               Deadline deadline, std::optional<SignalCount> since)
    : made_after_(retirements), expected_(expected), maker_(maker_of(port)) {
  if (!maker_.trusted && behind(maker_.user))
    throw SystemError(EAGAIN, "too much that the server has sent waits to be closed");
  const PrivateFd memory = make_memory();
  memory_ = PrivateMapping(memory.get(), kSessionBytes, MAP_POPULATE);
  inode_ = observe::inode_of(memory.get());
  reinterpret_cast<SessionControl*>(memory_.data())->magic = SessionControl::kMagic;
  PrivateFd theirs;
  std::tie(answers_, theirs) = private_socket_pair();
  // Another thread may close a port that is given meanwhile, and its number be given away.
  PortFd<PrivateFd> own;
  if (expected != 0) own = private_port(port);
  if (own && socket_cookie(own.get()) != expected) throw SystemError(EBADF, "open a session");
  send_descriptors(own ? own.get() : port, std::array{memory.get(), theirs.get()}, kPurposeSession,
                   patience(deadline), since);
}

std::unique_ptr<ClientSession> SessionRequest::await(int port, WaitMode mode, bool cancellable,
                                                     Deadline deadline,
                                                     std::optional<SignalCount> since,
                                                     Outcome& outcome) {
  outcome = await_answer_or_death(answers_.get(), port, expected_, cancellable, deadline, since);
  if (outcome != Outcome::ok) return nullptr;
  const NoFork guard;
  Packet packet = take_strangers_packet(answers_.get());
  packet.descriptors.sent_by(maker_.user);
  if (packet.kind == Packet::Kind::overflow) throw SystemError(EMFILE, "open a session");
  const bool closed = packet.kind == Packet::Kind::closed;
  if ((packet.kind != Packet::Kind::descriptors && !closed) || packet.descriptors.size() > 1) {
    outcome = Outcome::broken;
    return nullptr;
  }
  if (packet.descriptors.empty()) {
    // Also said without a packet, where the server does not know whose socket that is.
    const auto& control = *reinterpret_cast<const SessionControl*>(memory_.data());
    const std::uint32_t error = control.terms.refusal.load(std::memory_order_relaxed);
    outcome = closed ? Outcome::peer_gone : Outcome::broken;
    if (error < 1 || error > kMostErrno) return nullptr;
    throw SystemError(static_cast<int>(error), "the server does not take this client");
  }
  // Another kind of socket could make those wait who use it, or ask what it is.
  if (!is_packet_socket(packet.descriptors[0].get())) {
    outcome = Outcome::broken;
    return nullptr;
  }
  auto session = std::make_unique<ClientSession>(
      std::move(memory_),
      SessionSockets{.mine = std::move(answers_),
                     .theirs = PrivateFd(std::move(packet.descriptors[0]))},
      maker_, mode);
  // Where the process has become somebody else since, it serves the one call that has asked for it.
  session->made_after = epoch_ == credentials_epoch() ? made_after_ : ClientSession::kSpent;
  session->say_other_ids();
  return session;
}

void ClientSession::drop(ReceivedFds& descriptors) const noexcept {
  if (maker_.trusted) const std::vector<UniqueFd> here = std::move(descriptors);
  descriptors.clear();  // NOLINT(bugprone-use-after-move): to be empty is what it is for
}

ClientSession::~ClientSession() {
  if (among_) among_->remove(*this);
  if (maker_.trusted) return;
  hang_up_later(maker_.user, std::move(sockets_.theirs));
  close_mine();
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
  const int server = sockets_.theirs.get();
  const pid_t self = ::getpid();
  if (real != effective || real_group != effective_group)
    send_credentials(server, {.pid = self, .uid = real, .gid = real_group}, kPurposeReal);
  if (saved != effective || saved_group != effective_group)
    send_credentials(server, {.pid = self, .uid = saved, .gid = saved_group}, kPurposeSaved);
}

Outcome ClientSession::fail(Outcome outcome) const noexcept {
  return outcome == Outcome::finished ? Outcome::peer_gone : outcome;
}

Terms ClientSession::terms() const noexcept {
  Terms terms;
  for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = live_terms()[i];
  return terms;
}

[[gnu::hot]] void ClientSession::send_request(const CallArguments& arguments, Kind kind,
                                              Deadline deadline) {
  if (is_short(arguments)) {
    give_turn(fill_short_request(arguments, kind), control().client, control().server);
    observe::note_call(sent_, arguments.data.data(), arguments.data.size());
    return;
  }
  Turn turn{.number = number_, .kind = kind, .flags = flags_of(arguments)};
  try {
    prepare({.extra = extra_of(arguments),
             .data = arguments.data,
             .descriptors = arguments.descriptors,
             .deadline = patience(deadline)},
            turn);
  } catch (const SystemError& error) {
    if (sending_) throw;
    outstanding_ = false;
    throw NothingSent(error.code().value(), error.what());
  }
  give_turn(turn, control().client, control().server);
  observe::note_call(sent_, arguments.data.data(), arguments.data.size());
}

[[gnu::hot]] Outcome ClientSession::call(const CallArguments& arguments, CallResults* results,
                                         Deadline deadline, SignalCount since) {
  if (outstanding_) {
    // The slot is ours again when the server has taken the last one-way request. That it has
    // refused it nobody has waited for: this is not the call that is to be told.
    try {
      if (const Outcome outcome = wait_until_taken(deadline, since); outcome != Outcome::ok)
        return outcome;
    } catch (const RefusedRequest&) {
      return Outcome::broken;
    }
  }
  ++number_;
  const bool one_way = results == nullptr;
  outstanding_ = one_way;
  send_request(arguments, one_way ? Kind::one_way : Kind::request, deadline);
  if (!one_way) return finish(arguments, *results, deadline, since);
  observe::expect_no_answer(received_);
  if (!arguments.until_taken) return Outcome::ok;
  const Outcome outcome = wait_until_taken(deadline, since);
  if (outcome == Outcome::ok || outcome == Outcome::peer_gone) return outcome;
  if (withdraw()) {
    observe::note_taken_back(sent_, arguments.data.size());
    return outcome;
  }
  // Somebody who closed the client has withdrawn it before, of which this thread is told only now.
  if (Turn::unpack(look()).kind == Kind::none) return fail(Outcome::peer_gone);
  made_after = kSpent;  // the server may still be about to answer
  return Outcome::ok;
}

Outcome ClientSession::wait_until_taken(Deadline deadline, SignalCount since) {
  Turn turn{};
  const Outcome outcome = wait_for_reply(turn, deadline, since);
  outstanding_ = outcome != Outcome::ok;
  if (!outstanding_ && (turn.flags & kRefused) != 0) return take_refusal(turn);
  if (!outstanding_) transfer_.exchanged();
  return fail(outcome);
}

[[gnu::hot]] Outcome ClientSession::finish(const CallArguments& arguments, CallResults& results,
                                           Deadline deadline, SignalCount since) {
  copy_until_ = deadline.is_now() ? Deadline::never() : deadline;
  for (;;) {
    const Outcome outcome = await_reply(results, deadline, since);
    if (outcome != Outcome::interrupted && outcome != Outcome::timed_out &&
        outcome != Outcome::would_block)
      return outcome;
    const SignalCount told = SignalCount::now();
    if (cut_short_ || !stays(arguments, outcome, deadline)) return outcome;
    copy_until_ = Deadline::never();
    since = told;
  }
}

[[gnu::hot]] Outcome ClientSession::await_reply(CallResults& results, Deadline deadline,
                                                SignalCount since) {
  Turn turn{};
  for (;;) {
    Outcome outcome = wait_for_reply(turn, deadline, since);
    if (outcome != Outcome::ok) return fail(outcome);
    outcome = take_reply(turn, results);
    if (outcome != Outcome::would_block) return outcome;
  }
}

// Whether the wait goes on that has ended in that way. Of what has no time at all only a request
// that is taken is asked for.
bool ClientSession::stays(const CallArguments& arguments, Outcome outcome, Deadline& deadline) {
  RetryPolicy* const policy = arguments.retry_policy;
  if (policy != nullptr) policy->number(number_);
  const bool asked = policy != nullptr && policy->before_dispatch();
  if (asked && outcome != Outcome::would_block && policy->stay(outcome, deadline)) return true;
  if (take_back() || policy == nullptr || asked) return false;
  return policy->stay(outcome == Outcome::would_block ? Outcome::timed_out : outcome, deadline);
}

// Takes a request out of the slot, so that who makes the call once more does not have it served
// twice. False: there is none, or the server has taken it. relaxed: the server reads nothing but
// what is there; of its exchange and the last one only one succeeds. By who makes the call and who
// closes the client, one at a time: what one has seen is no more so when the other begins. No
// handler leaves it by a jump, and the lock for ever.
bool ClientSession::withdraw() noexcept {
  const HeldSignals held;
  const std::lock_guard guard(withdrawing_);
  std::uint64_t word = slot().turn.load(std::memory_order_relaxed);
  const Turn request = Turn::unpack(word);
  const auto replace = [&](Turn by) {
    return slot().turn.compare_exchange_strong(word, by.pack(), std::memory_order_relaxed);
  };
  const Turn none{.number = request.number};
  bool gone = false;
  if (request.kind == Kind::one_way) {
    gone = replace(none);
  } else if (request.kind == Kind::request) {
    Turn leaving = request;
    leaving.kind = Kind::leaving;
    if (!replace(leaving)) return false;
    asymmetric_fence_to_others();
    word = leaving.pack();
    const bool late = control().taken.load(std::memory_order_relaxed) == request.number;
    gone = replace(late ? request : none) && !late;
  }
  if (gone) withdrawn_ = request.number;
  return gone;
}

// Waits for another thread that withdraws it.
bool ClientSession::dispatched() noexcept {
  const HeldSignals held;
  const std::lock_guard guard(withdrawing_);
  return withdrawn_ != number_ &&
         (kept_ == number_ || control().taken.load(std::memory_order_relaxed) == number_);
}

bool ClientSession::take_back() noexcept {
  if (dispatched()) return false;
  kept_ = number_;
  (void)withdraw();
  return !dispatched();
}

void OpenSessions::close() noexcept {
  const std::lock_guard guard(lock_);
  closed_.store(true, std::memory_order_relaxed);
  full_fence();
  for (ClientSession* const session : sessions_) session->give_up_request();
  for (const int socket : waited_at_) ::shutdown(socket, SHUT_RD);
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
  if (among_ && among_->closed()) [[unlikely]]
    give_up_request();
  for (;;) {
    const Outcome outcome = waiter_.wait(
        control().client, control().server, deadline, [&] { return replied(turn); }, since);
    if (outcome == Outcome::ok && dropping_) [[unlikely]]
      return await_dropped(turn, deadline, since);
    if (outcome != Outcome::interrupted || is_programs_signal(since)) return outcome;
  }
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

// There is no room for it here, which is no concern of the server's.
Outcome ClientSession::lose_reply(Turn turn, CallResults& results) noexcept {
  drop(results.descriptors);
  observe::expect_no_answer(received_);
  if ((turn.flags & kDescriptors) != 0)
    give_turn({.number = number_, .kind = Kind::done}, control().client, control().server);
  return Outcome::too_big;
}

// Where the reply goes. Memory for it is the client's, and its size the server's word.
Outcome ClientSession::make_room(std::uint64_t size, bool apart, CallResults& results) const {
  if (results.most != 0 && size > results.most) return Outcome::broken;
  std::span<std::byte> into = apart ? std::span<std::byte>() : results.buffer;
  if (size > into.size()) {
    if (results.most == 0 && !maker_.trusted) {
      const std::size_t said = limits_of_process().bytes_per_user;
      if (size > (said != 0 ? said : kBytesPerUser)) return Outcome::too_big;
    }
    const std::size_t pages = round_up_to_pages(size);
    void* address =
        ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return Outcome::too_big;
    results.large = Mapping(address, pages);
    into = {results.large.data(), pages};
  }
  results.data = into.first(size);
  return Outcome::ok;
}

// Out of the memory for long messages. Looks at the clock in between: the server says how much it
// is.
bool ClientSession::copy_reply(std::span<std::byte> into) noexcept {
  constexpr std::size_t kAtOnce = std::size_t{16} << 20;
  for (std::size_t at = 0; at < into.size(); at += kAtOnce) {
    cut_short_ = at != 0 && !copy_until_.is_never() && monotonic_ns() >= copy_until_.at();
    const auto part = into.subspan(at, std::min(kAtOnce, into.size() - at));
    if (cut_short_ || !transfer_.read(part, at)) return false;
  }
  return true;
}

// Throws RefusedRequest, where it makes sense.
Outcome ClientSession::take_refusal(Turn turn) {
  // Of an answer that failed before.
  if ((turn.flags & kTransferComes) != 0) (void)accept_transfer(SIZE_MAX);
  begin_dropping();
  transfer_ = {};  // the server may not have taken it
  const std::int64_t error = extra();
  if (error < 1 || error > kMostErrno) return Outcome::broken;
  throw RefusedRequest(static_cast<int>(error), "the server refuses the request",
                       turn.size == kHandedOver);
}

Outcome ClientSession::take_long_reply(Turn turn, CallResults& results) {
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  results.status = extra();
  std::uint64_t size = turn.size;
  const bool apart = (results.status & results.apart) != 0;
  if ((turn.flags & kRefused) != 0) return take_refusal(turn);
  if ((turn.flags & kTransferComes) != 0) {
    // The server takes it for given, and what else came with it is not to be taken for what
    // follows.
    if (const int error = accept_transfer(SIZE_MAX); error != 0) {
      made_after = kSpent;
      return error == EPROTO ? Outcome::broken : Outcome::too_big;
    }
  }
  if ((turn.flags & kTransfer) != 0) {
    size = load_once<std::uint64_t>(slot().data);
    if (size > transfer_.capacity()) return Outcome::broken;
  }
  int error = 0;
  if ((turn.flags & kDescriptors) != 0) {
    results.descriptors.clear();
    const Outcome outcome = next_descriptors(results.descriptors);
    if (outcome == Outcome::too_big) {
      begin_dropping();
      drop(results.descriptors);
      error = EMFILE;
    } else if (outcome != Outcome::ok) {
      return outcome;
    }
  }
  if (const Outcome outcome = make_room(size, apart, results); outcome != Outcome::ok)
    return outcome == Outcome::too_big ? lose_reply(turn, results) : outcome;
  if ((turn.flags & kTransfer) != 0) {
    if (!copy_reply(results.data)) return cut_short_ ? Outcome::timed_out : Outcome::broken;
    // What is copied after it was set may be zeros. A change of nothing, as it stays behind the
    // copy.
    if (control().discarded.fetch_or(0, std::memory_order_acq_rel) != 0) return Outcome::peer_gone;
  } else if (size != 0) {
    copy_memory(results.data.data(), slot().data, size);
  }
  if (error == 0) observe::note_reply(received_, results.data.data(), size);
  if ((turn.flags & kDescriptors) == 0) return Outcome::ok;
  // In the turn itself: the next request may be in the slot before the server has looked.
  give_turn({.number = number_, .kind = Kind::done, .size = static_cast<std::uint16_t>(error)},
            control().client, control().server);
  if (error == 0) return Outcome::ok;
  results.large.reset();
  results.data = {};
  return Outcome::would_block;
}

}  // namespace farcall::call
