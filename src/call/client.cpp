// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>

#include <cerrno>

#include "call/session.hpp"
#include "farcall/error.hpp"

namespace farcall {
namespace {

// Counts the forks that lie between this process and the one that loaded the library.
std::atomic<std::uint64_t> fork_generation{1};

std::uint64_t generation() noexcept {
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  return fork_generation.load(std::memory_order_relaxed);
}

thread_local bool last_call_dispatched = false;

}  // namespace

Client::Client(int port, WaitMode mode) : mode_(mode), generation_(generation()) {
  port_ = UniqueFd(::fcntl(port, F_DUPFD_CLOEXEC, 3));
  if (!port_) throw_errno("duplicate a port's descriptor");
}

Client::~Client() {
  if (generation_ == generation()) delete hot_.load(std::memory_order_acquire);
}

bool Client::dispatched() noexcept { return last_call_dispatched; }

void Client::forget_after_fork() noexcept {
  // The sessions are the parent's: their memory stays mapped here, unused, but their sockets must
  // close, or the parent's death would not be noticed. Destroying them does both, and tells the
  // server nothing, as the parent holds the same sockets.
  const std::lock_guard guard(lock_);
  const std::uint64_t now = generation();
  if (generation_ == now) return;
  delete hot_.exchange(nullptr, std::memory_order_acq_rel);
  idle_.clear();
  generation_ = now;
}

std::unique_ptr<call::ClientSession> Client::take(Deadline, Outcome& outcome) {
  if (generation_ != generation()) [[unlikely]]
    forget_after_fork();
  outcome = Outcome::ok;
  // acquire: pairs with the release in give_back(), so that the session's own state is visible.
  if (call::ClientSession* hot = hot_.exchange(nullptr, std::memory_order_acquire))
    return std::unique_ptr<call::ClientSession>(hot);
  {
    const std::lock_guard guard(lock_);
    if (!idle_.empty()) {
      auto session = std::move(idle_.back());
      idle_.pop_back();
      return session;
    }
  }
  try {
    return call::ClientSession::open(port_.get(), mode_, generation_);
  } catch (const SystemError& error) {
    const int code = error.code().value();
    if (code != EPIPE && code != ECONNRESET && code != ENOTCONN) throw;
    outcome = Outcome::peer_gone;
    return nullptr;
  }
}

void Client::give_back(std::unique_ptr<call::ClientSession> session) noexcept {
  call::ClientSession* none = nullptr;
  if (hot_.compare_exchange_strong(none, session.get(), std::memory_order_release,
                                   std::memory_order_relaxed)) {
    (void)session.release();
    return;
  }
  try {
    const std::lock_guard guard(lock_);
    idle_.push_back(std::move(session));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the session closes instead
  }
}

Outcome Client::call(const CallArguments& arguments, CallResults& results, Deadline deadline) {
  results.data = {};
  results.large.reset();
  results.descriptors.clear();
  last_call_dispatched = false;
  Outcome outcome;
  auto session = take(deadline, outcome);
  if (!session) return outcome;
  try {
    outcome = session->call(arguments, &results, deadline);
  } catch (const SystemError& error) {
    if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
    outcome = Outcome::peer_gone;
  }
  // A session whose call has not been answered is given up: that is how the server learns of it.
  if (outcome == Outcome::ok) {
    give_back(std::move(session));
  } else {
    last_call_dispatched = session->dispatched();
  }
  return outcome;
}

Outcome Client::send(const CallArguments& arguments, Deadline deadline) {
  last_call_dispatched = false;
  Outcome outcome;
  auto session = take(deadline, outcome);
  if (!session) return outcome;
  try {
    outcome = session->call(arguments, nullptr, deadline);
  } catch (const SystemError& error) {
    if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
    outcome = Outcome::peer_gone;
  }
  if (outcome == Outcome::ok) give_back(std::move(session));
  return outcome;
}

}  // namespace farcall
