// SPDX-License-Identifier: Apache-2.0
#include "call/futex_multi_wait.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "call/port.hpp"

namespace farcall::call {
namespace {

constexpr std::uint32_t kRelayEvents = EPOLLIN | EPOLLONESHOT;

// Until a wait fails because the kernel is older than Linux 5.16, or forbids it (seccomp).
constinit std::atomic<bool> kernel_waits_for_several{true};

class Relay final : public Watch {
 public:
  explicit Relay(std::weak_ptr<PortState> port) : port_(std::move(port)) {}
  void on_readable(std::uint32_t) noexcept override {
    const auto port = port_.lock();
    if (!port) return;
    port->multi_wait.relay_set.store(false, std::memory_order_relaxed);
    port->multi_wait.wake();  // whose change of the bell releases what is above
  }

 private:
  const std::weak_ptr<PortState> port_;
};

struct Words {
  std::array<futex_waitv, FutexMultiWait::kMostSessions + 1> all{};
  unsigned count = 0;

  void add(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::uint32_t flags) {
    all[count++] = {.val = expected,
                    .uaddr = reinterpret_cast<std::uintptr_t>(&word),
                    .flags = FUTEX_32 | flags,
                    .__reserved = 0};
  }
};

long wait_for(Words& words, const timespec* until) {
  return ::syscall(SYS_futex_waitv, words.all.data(), words.count, 0, until, CLOCK_MONOTONIC);
}

// A cancellation point, which syscall(2) is not. It must have nothing to clean up: a cancellation
// that comes between two of its instructions could not be unwound through it.
[[gnu::noinline]] long wait_cancellably(Words& words, const timespec* until) {
  int type = 0;
  int state = 0;
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  const long result = wait_for(words, until);
  const int error = errno;
  ::pthread_setcancelstate(state, nullptr);
  ::pthread_setcanceltype(type, nullptr);
  errno = error;
  return result;
}

}  // namespace

void FutexMultiWaitState::wake() noexcept {
  // seq_cst: either this thread sees that another waits, or that one sees the new value.
  bell.fetch_add(1, std::memory_order_seq_cst);
  if (active.load(std::memory_order_seq_cst))
    ::syscall(SYS_futex, &bell, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, nullptr, nullptr, 0);
}

bool FutexMultiWaitState::pays() noexcept {
  if (rest.load(std::memory_order_relaxed) <= 0) return true;
  rest.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// Relaxed, and not exact where threads meet: whatever comes of it is right, and only more
// expensive.
void FutexMultiWaitState::account(bool gain) noexcept {
  constexpr int kTooMuch = 8;
  constexpr int kRest = 256;
  const int now = loss.load(std::memory_order_relaxed) + (gain ? -1 : 2);
  if (now >= kTooMuch) rest.store(kRest, std::memory_order_relaxed);
  loss.store(std::clamp(now, 0, kTooMuch - 2), std::memory_order_relaxed);
}

FutexMultiWait::FutexMultiWait(PortState& port) noexcept : port_(port), state_(port.multi_wait) {
  // A forked child has no business here, but would write to what its parent shares with clients.
  if (port.generation != process::generation()) return;
  if (!kernel_waits_for_several.load(std::memory_order_relaxed)) return;
  if (state_.active.exchange(true, std::memory_order_seq_cst)) {
    // Of what the calling thread has just left, perhaps, the other one does not know yet.
    const std::lock_guard guard(port.lock);
    if (port.sessions.size() <= kMostSessions &&
        std::ranges::any_of(port.sessions,
                            [](const auto& item) { return item.second.session->unattended(); }))
      state_.wake();
    return;
  }
  active_ = true;
  bell_ = state_.bell.load(std::memory_order_seq_cst);
  {
    const std::lock_guard guard(port.lock);
    if (port.sessions.size() <= kMostSessions)
      for (const auto& [id, entry] : port.sessions) sessions_[count_++] = entry.session;
  }
  if (count_ == 0 || !set_relay()) {
    count_ = 0;
    end();
    return;
  }
  for (std::size_t i = 0; i < count_;) {
    ServerSession& session = *sessions_[i];
    if (!session.claim()) {
      sessions_[i] = std::move(sessions_[--count_]);
      continue;
    }
    session.in_multi_wait.store(true, std::memory_order_relaxed);
    WaitState& side = session.control().server;
    bells_[i] = side.bell.load(std::memory_order_relaxed);
    Waiter::park_on_bell(side);
    session.release();
    // As in PortState::release(): what came before these lines nobody has taken.
    ready_ |= session.ready() || port.over(session);
    ++i;
  }
  if (count_ == 0) end();  // all of them are served just now
}

bool FutexMultiWait::set_relay() noexcept {
  if (state_.relay.active()) {
    if (!state_.relay_set.exchange(true, std::memory_order_relaxed)) {
      state_.account(false);
      state_.relay.rearm(kRelayEvents);
    }
    return true;
  }
  try {
    state_.relay_set.store(true, std::memory_order_relaxed);
    state_.relay.start(port_.epoll.get(), kRelayEvents,
                       std::make_shared<Relay>(port_.weak_from_this()));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

FutexMultiWait::~FutexMultiWait() {
  if (const SessionPointer session = end()) port_.queue(session);
}

Outcome FutexMultiWait::sleep(Deadline deadline, bool cancellable) {
  if (ready_) return Outcome::ok;
  Words words;
  words.add(state_.bell, bell_, FUTEX_PRIVATE_FLAG);
  for (std::size_t i = 0; i < count_; ++i)
    words.add(sessions_[i]->control().server.bell, bells_[i], 0);
  const timespec until = deadline.moment();
  const timespec* const limit = deadline.is_never() ? nullptr : &until;
  const long result = cancellable ? wait_cancellably(words, limit) : wait_for(words, limit);
  if (result >= 0) return Outcome::ok;
  switch (errno) {
    case EINTR: return Outcome::interrupted;
    case ETIMEDOUT: return Outcome::timed_out;
    case EPERM:
    case EACCES:
    case ENOSYS: kernel_waits_for_several.store(false, std::memory_order_relaxed); break;
    default: break;  // EAGAIN; or EFAULT, which a client can bring about
  }
  return Outcome::ok;
}

SessionPointer FutexMultiWait::end() noexcept {
  if (!active_) return nullptr;
  active_ = false;
  SessionPointer first;
  for (std::size_t i = 0; i < count_; ++i) {
    SessionPointer session = std::move(sessions_[i]);
    session->in_multi_wait.store(false, std::memory_order_relaxed);
    if (!session->claim()) continue;  // whose it is now looks after it when it leaves
    if (!session->ready() || port_.over(*session))
      port_.release(session);
    else if (!first)
      first = std::move(session);
    else
      port_.queue(std::move(session));
  }
  state_.active.store(false, std::memory_order_seq_cst);
  return first;
}

}  // namespace farcall::call
