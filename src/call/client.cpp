// SPDX-License-Identifier: Apache-2.0
#include "call/client.hpp"

#include <poll.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <optional>

#include "call/calls_in_progress.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "socket/peer.hpp"

namespace farcall {
namespace {

// One byte, for which every loader has room.
[[gnu::tls_model("initial-exec")]] thread_local bool last_call_dispatched = false;

// What an earlier call has left there.
[[gnu::noinline]] void drop_last(CallResults& results) noexcept {
  results.large.reset();
  results.descriptors.clear();
}

// A server that ends drops what it has been asked for just before its port hangs up; if it has to
// wait for a processor in between, or is one of many that are killed, that takes a while. What its
// children hold of the port does not hang up. `expected`: the SO_COOKIE that the port has, or 0; a
// number that is another one's by now says nothing of a port that is there.
bool hangs_up(int port, std::uint64_t expected, Deadline deadline) noexcept {
  constexpr std::chrono::seconds kBetween{1};
  const process::NoCancel guard;
  const auto is_other = [&] { return expected != 0 && socket_cookie(port) != expected; };
  if (is_other()) return true;
  const call::WatchedProcess maker(port);
  const Deadline then = std::min(deadline, Deadline::after(kBetween));
  return maker.ended || call::hung_up(port, then, maker.descriptor.get()) || is_other();
}

// What a wait has come to that ended before the server's time was up; ok: it did not.
Outcome past(Deadline deadline) noexcept {
  if (deadline.is_now()) return Outcome::would_block;
  return monotonic_ns() >= deadline.at() ? Outcome::timed_out : Outcome::ok;
}

}  // namespace

namespace call {

// A port that has been closed takes sessions no more, but may not have told those under way.
bool hung_up(int port, Deadline deadline, int process) noexcept {
  const process::NoCancel guard;
  std::array<pollfd, 2> entries{{{.fd = port, .events = POLLRDHUP, .revents = 0},
                                 {.fd = process, .events = POLLIN, .revents = 0}}};
  for (;;) {
    const timespec left = deadline.left();
    const int count = ::ppoll(entries.data(), process < 0 ? 1 : 2, &left, nullptr);
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

bool means_gone(const SystemError& error) noexcept {
  if (dynamic_cast<const call::RefusedRequest*>(&error) != nullptr) return false;
  const int code = error.code().value();
  return code == EPIPE || code == ECONNRESET || code == ENOTCONN;
}

}  // namespace call

using call::goes_on;
using call::hung_up;
using call::means_gone;

struct Client::State::Own {
  // In place of a session that a thread has in use and will put back: only that one may do so.
  static inline call::ClientSession* const kTaken = reinterpret_cast<call::ClientSession*>(1);

  const std::uint64_t generation = process::generation();
  std::atomic<call::ClientSession*> hot{nullptr};  // one idle session, taken without the lock
  std::mutex lock;                                 // protects what follows
  std::vector<std::unique_ptr<call::ClientSession>> idle;
  std::vector<call::SessionRequest> asked;  // by calls that were interrupted meanwhile
  std::atomic<std::uint64_t> retirements{0};
  const std::shared_ptr<call::OpenSessions> open = std::make_shared<call::OpenSessions>();

  ~Own() { close_hot(); }
  // acquire: pairs with the release of who put it there, so that the session's own state is
  // visible.
  std::unique_ptr<call::ClientSession> take_hot() noexcept {
    call::ClientSession* there = hot.load(std::memory_order_relaxed);
    while (there != nullptr && there != kTaken) {
      if (hot.compare_exchange_weak(there, nullptr, std::memory_order_acquire,
                                    std::memory_order_relaxed))
        return std::unique_ptr<call::ClientSession>(there);
    }
    return nullptr;
  }
  void close_hot() noexcept { take_hot().reset(); }
};

Client::State::State(int port, WaitMode mode) : mode_(mode) {
  if (port >= 0) port_ = call::PortFd(call::duplicate_descriptor(port));
  own_ = new Own;
}

Client::State::~State() {
  Own* own = own_.load(std::memory_order_acquire);
  if (own->generation == process::generation()) delete own;
}

// After a fork the sessions are the parent's, and perhaps in the middle of a call, locks and all:
// they stay where they are, untouched.
Client::State::Own& Client::State::own_after_fork(Own* parents) {
  auto fresh = std::make_unique<Own>();
  if (own_.compare_exchange_strong(parents, fresh.get(), std::memory_order_acq_rel))
    return *fresh.release();
  return *parents;  // by now those of a thread that was faster
}

inline Client::State::Own& Client::State::own() {
  Own* const now = own_.load(std::memory_order_acquire);
  return now->generation == process::generation() ? *now : own_after_fork(now);
}

std::unique_ptr<call::ClientSession> Client::State::take_idle() {
  Own& own = this->own();
  for (;;) {
    std::unique_ptr<call::ClientSession> session;
    session = own.take_hot();
    if (!session) {
      const std::lock_guard guard(own.lock);
      if (own.idle.empty()) return nullptr;
      session = std::move(own.idle.back());
      own.idle.pop_back();
    }
    if (session->epoch() == process::credentials_epoch() &&
        session->made_after == own.retirements.load(std::memory_order_relaxed))
      return session;
  }
}

call::SessionRequest Client::State::ask(int port, Deadline deadline,
                                        std::optional<SignalCount> since) {
  Own& own = this->own();
  const std::uint64_t retirements = own.retirements.load(std::memory_order_seq_cst);
  {
    const std::lock_guard guard(own.lock);
    while (!own.asked.empty()) {
      call::SessionRequest request = std::move(own.asked.back());
      own.asked.pop_back();
      if (request.valid(retirements)) return request;
    }
  }
  return {port, socket, retirements, deadline, since};
}

std::unique_ptr<call::ClientSession> Client::State::await(call::SessionRequest& request, int port,
                                                          bool cancellable, Deadline deadline,
                                                          std::optional<SignalCount> since,
                                                          Outcome& outcome) {
  const std::shared_ptr<call::OpenSessions> open = own().open;
  std::unique_ptr<call::ClientSession> session;
  {
    const call::OpenSessions::Wait wait(*open, request.socket());
    session = request.await(port, mode_, cancellable, deadline, since, outcome);
  }
  if (outcome == Outcome::peer_gone && !hangs_up(port, socket, deadline))
    throw SystemError(EAGAIN, "the server has no room for a further client");
  if (!session) return nullptr;
  observe::Description end = label.description(observe::Role::client);
  end.session = request.inode();
  end.peer = session->maker().process;
  session->observe(end);
  session->join(open);
  return session;
}

void Client::State::keep(call::SessionRequest&& request) {
  Own& own = this->own();
  const std::lock_guard guard(own.lock);
  own.asked.push_back(std::move(request));
}

std::unique_ptr<call::ClientSession> Client::State::take(int port, bool cancellable,
                                                         Deadline deadline,
                                                         std::optional<SignalCount> since,
                                                         Outcome& outcome) {
  outcome = Outcome::ok;
  if (auto session = take_idle()) return session;
  try {
    port = port_or_own(port);
    if (hung_up(port) || has_peer_ended(port)) {
      outcome = Outcome::peer_gone;
      return nullptr;
    }
    call::SessionRequest request = ask(port, deadline, since);
    auto session = await(request, port, cancellable, deadline, since, outcome);
    if (goes_on(outcome)) keep(std::move(request));
    return session;
  } catch (const SystemError& error) {
    // A server that has stopped, and whose socket is full of others by now.
    if (error.code().value() == ETIMEDOUT) {
      outcome = past(deadline);
      if (outcome != Outcome::ok) return nullptr;
      throw SystemError(EAGAIN, "the server takes no clients");
    }
    if (error.code().value() == EINTR) {
      outcome = Outcome::interrupted;
      return nullptr;
    }
    if (!means_gone(error)) throw;
    outcome = Outcome::peer_gone;
    return nullptr;
  }
}

[[gnu::hot]] void Client::State::give_back(std::unique_ptr<call::ClientSession> session) noexcept {
  Own& own = *own_.load(std::memory_order_acquire);
  if (own.generation != process::generation()) [[unlikely]] {
    (void)session.release();  // forked meanwhile, in a signal handler
    return;
  }
  if (session->made_after != own.retirements.load(std::memory_order_relaxed)) [[unlikely]] {
    const process::NoCancel guard;
    session = nullptr;
    return;
  }
  call::ClientSession* none = nullptr;
  if (own.hot.compare_exchange_strong(none, session.get(), std::memory_order_release,
                                      std::memory_order_relaxed)) {
    (void)session.release();
    return;
  }
  try {
    const std::lock_guard guard(own.lock);
    own.idle.push_back(std::move(session));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the session closes instead
  }
}

void Client::State::retire() noexcept {
  Own& own = *own_.load(std::memory_order_acquire);
  if (own.generation != process::generation()) return;
  own.retirements.fetch_add(1, std::memory_order_seq_cst);
  own.close_hot();
  std::vector<std::unique_ptr<call::ClientSession>> idle;
  std::vector<call::SessionRequest> asked;
  // Whoever takes one of them looks, too; and this may be a handler that has interrupted one.
  const std::unique_lock guard(own.lock, std::try_to_lock);
  if (!guard) return;
  idle.swap(own.idle);
  asked.swap(own.asked);
}

void Client::State::close() noexcept {
  const Own& own = *own_.load(std::memory_order_acquire);
  if (own.generation == process::generation()) own.open->close();
  retire();
}

// What every short call to a server that answers at once passes through: without system calls, and
// with as few locked instructions as can be.
[[gnu::always_inline]] inline Outcome Client::State::transact(const CallArguments& arguments,
                                                              CallResults* results,
                                                              Deadline deadline,
                                                              SignalCount since) {
  last_call_dispatched = false;
  Own& own = this->own();
  // acquire: as in take_hot().
  call::ClientSession* session = own.hot.exchange(Own::kTaken, std::memory_order_acquire);
  if (session == Own::kTaken)
    return transact_slowly(nullptr, false, arguments, results, deadline, since);
  const bool begun = session != nullptr && results != nullptr && !deadline.is_now() &&
                     session->can_at_once(arguments) &&
                     session->epoch() == process::credentials_epoch() &&
                     admit(*session, arguments.admission) == 0;
  if (begun && session->call_at_once(arguments, *results) &&
      session->made_after == own.retirements.load(std::memory_order_relaxed)) [[likely]] {
    own.hot.store(session, std::memory_order_release);
    return Outcome::ok;
  }
  own.hot.store(nullptr, std::memory_order_relaxed);
  return transact_slowly(std::unique_ptr<call::ClientSession>(session), begun, arguments, results,
                         deadline, since);
}

// `at_hand`: a session that is idle, or null; or, if the call has begun already, its own.
[[gnu::hot]] Outcome Client::State::transact_slowly(std::unique_ptr<call::ClientSession>&& at_hand,
                                                    bool begun, const CallArguments& arguments,
                                                    CallResults* results, Deadline deadline,
                                                    SignalCount since) {
  const process::NoCancel guard;
  auto session = std::move(at_hand);  // to be closed where that is no point of cancellation
  const bool cancellable =
      arguments.cancellable == Cancellable::yes ||
      (arguments.cancellable == Cancellable::if_permitted && guard.was_cancellable());
  if (!begun) {
    if (session) give_back(std::move(session));
    if (arguments.descriptors.size() > kCallDescriptors)
      throw SystemError(ENFILE, "too many descriptors for one call");
    Outcome outcome;
    session = take(arguments.port, cancellable, deadline, since, outcome);
    if (!session) return outcome;
    while (const int error = admit(*session, arguments.admission)) {
      // A session that has ended says what no longer holds.
      if (!session->hung_up() && !hung_up(port_or_own(arguments.port))) {
        give_back(std::move(session));
        throw SystemError(error, "call");
      }
      session = take(arguments.port, cancellable, deadline, since, outcome);
      if (!session) return outcome;
    }
  }
  Outcome outcome = Outcome::ok;
  try {
    const call::CallInProgress in_progress(*session);
    session->set_cancellable(cancellable);
    outcome = begun ? session->finish(arguments, *results, deadline, since)
                    : session->call(arguments, results, deadline, since);
  } catch (const SystemError& error) {
    last_call_dispatched = session->dispatched();
    const bool late = error.code().value() == ETIMEDOUT && !last_call_dispatched;
    outcome = late ? past(deadline) : Outcome::peer_gone;
    if (outcome == Outcome::ok || (!late && !means_gone(error))) {
      if (results != nullptr) session->drop(results->descriptors);
      // A refusal leaves the session as it was. A request that has been sent in part does not.
      if (last_call_dispatched || dynamic_cast<const call::NothingSent*>(&error) != nullptr)
        give_back(std::move(session));
      throw;
    }
  } catch (...) {  // the thread is cancelled
    if (results != nullptr) session->give_up();
    last_call_dispatched = session->dispatched();
    throw;
  }
  // A session whose call has not been answered is given up: that is how the server is told.
  if (outcome != Outcome::ok) {
    last_call_dispatched = session->dispatched();
    if (results != nullptr) session->drop(results->descriptors);
    // As one does that has no descriptors left.
    if (outcome == Outcome::peer_gone && !last_call_dispatched &&
        !hangs_up(port_or_own(arguments.port), socket, deadline))
      throw SystemError(EAGAIN, "the server has given the session up");
  }
  if (call::is_answered(outcome)) give_back(std::move(session));
  return outcome;
}

Client::Client(int port, WaitMode mode) : state_(std::make_unique<State>(port, mode)) {}
Client::~Client() = default;

bool Client::dispatched() noexcept { return last_call_dispatched; }
void Client::forget_dispatched() noexcept { last_call_dispatched = false; }
void Client::retire() noexcept { state_->retire(); }
void Client::close() noexcept { state_->close(); }
void Client::set_socket(std::uint64_t cookie) noexcept { state_->socket = cookie; }
void Client::set_label(const observe::Label& label) noexcept { state_->label = label; }

[[gnu::hot]] Outcome Client::call(const CallArguments& arguments, CallResults& results,
                                  Deadline deadline, SignalCount since) {
  if (results.large || !results.descriptors.empty()) [[unlikely]]
    drop_last(results);
  results.data = {};
  return state_->transact(arguments, &results, deadline, since);
}

Outcome Client::send(const CallArguments& arguments, Deadline deadline, SignalCount since) {
  return state_->transact(arguments, nullptr, deadline, since);
}

Outcome Client::terms(Terms& terms, Deadline deadline, int port) {
  Outcome outcome;
  auto session = state_->take(port, false, deadline, std::nullopt, outcome);
  if (!session) return outcome;
  // What an idle session says lasts longer than its server.
  if (session->hung_up()) return Outcome::peer_gone;
  terms = session->terms();
  state_->give_back(std::move(session));
  return Outcome::ok;
}

}  // namespace farcall
