// SPDX-License-Identifier: Apache-2.0
#include "farcall/wait.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "observe/clock.hpp"
#include "wait/counts_handler.hpp"
#include "wait/held_signals.hpp"
#include "wait/sleeper.hpp"

namespace farcall {
namespace {

// Spinning longer than about two wake-ups of an idle processor (35 to 55 us on virtual machines)
// cannot pay, even when both sides would otherwise sleep and wake each other.
constexpr std::int64_t kLongestSpin = 100'000;
constexpr std::int64_t kShortestSpin = 2'000;
constexpr std::uint8_t kWaitsPerProbe = 32;
constexpr std::uint8_t kWakesPerNote = 64;

// A spinner that has looked for this long may be keeping its peer from running.
constexpr std::int64_t kSpinBeforeYield = 10'000;

// A hand-over that took longer than this gave the processor to somebody else than the peer.
constexpr std::int64_t kSlowHandOver = 50'000;
// The same in ticks, where the peer had to be woken first and nothing was in the caches.
constexpr std::uint64_t kSlowWake = 500'000;
// Somebody else's slice is a thousand times as long as a hand-over, and while somebody else wants
// this processor most hand-overs are quick all the same. So each slow one is followed by a pause,
// twice as long as the one before, and only many quick ones in a row shorten the next.
constexpr std::uint32_t kLongestPause = 65'536;
constexpr std::uint32_t kQuickOnes = 1024;
constexpr std::uint8_t kMostHandOverCredit = 4;
constexpr std::uint8_t kHandOversPerSleep = 128;

// Where several wait for one, a spinner may keep from its processor who has to answer first: then
// what it waits for comes soon after it has gone to sleep. Waits are short as long as it sleeps,
// and look as if spinning would pay, so each harmful spin is followed by a pause, twice as long as
// the one before.
constexpr std::int64_t kSoonAfterSpin = 100'000;
constexpr std::uint32_t kLongestSpinPause = 256;

// How long a sleeper may stay on the futex, where the peer's death does not wake it.
constexpr std::int64_t kShallowSleep = 20'000'000;

constexpr unsigned kLooksPerCheck = 64;  // between looks at the clock while spinning
constexpr std::int64_t kDeathCheckEvery = 2'000'000;

std::uint32_t current_processor() noexcept {
  return static_cast<std::uint32_t>(sched_getcpu()) + 1;
}

// Sleeps while *word == expected, at most until `deadline`. Returns 0 or errno.
int futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline) {
  const timespec at = deadline.moment();
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, deadline.is_never() ? nullptr : &at,
                nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 ? 0 : errno;
}

}  // namespace

constinit thread_local std::atomic<unsigned long> SignalCount::caught{0};
constinit thread_local std::atomic<std::atomic<std::uint32_t>*> detail::sleeps_on{nullptr};

constinit std::atomic<CountsHandler*> counts_handler{nullptr};

void note_signal() noexcept {
  // Not one step, and need not be: whatever comes between leaves another number than before.
  SignalCount::caught.store(SignalCount::caught.load(std::memory_order_relaxed) + 1,
                            std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>* const word = detail::sleeps_on.load(std::memory_order_relaxed);
  if (word == nullptr) return;
  // Once for each sleep; a handler that does not come back leaves nothing behind.
  detail::sleeps_on.store(nullptr, std::memory_order_relaxed);
  std::uint32_t expected = WaitState::kOnFutex;
  word->compare_exchange_strong(expected, WaitState::kAwake, std::memory_order_relaxed);
}

[[gnu::hot]] std::int64_t monotonic_ns() noexcept { return observe::monotonic_ns(); }

timespec Deadline::left() const noexcept {
  return is_never() ? timespec{} : split(std::max<std::int64_t>(at_ - monotonic_ns(), 0));
}

Deadline Deadline::after(std::chrono::nanoseconds duration) noexcept {
  if (duration <= std::chrono::nanoseconds::zero()) return now();
  const std::int64_t start = monotonic_ns();
  if (duration.count() > kNever - 1 - start) return never();
  return Deadline(start + duration.count());
}

std::string_view to_string(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::ok: return "ok";
    case Outcome::would_block: return "would block";
    case Outcome::timed_out: return "timed out";
    case Outcome::interrupted: return "interrupted";
    case Outcome::finished: return "finished";
    case Outcome::peer_gone: return "peer gone";
    case Outcome::broken: return "protocol broken by the peer";
    case Outcome::too_big: return "too big";
    case Outcome::dropped: return "dropped for being slow";
  }
  return "unknown";
}

int to_errno(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::ok: return 0;
    case Outcome::would_block: return EAGAIN;
    case Outcome::timed_out: return ETIMEDOUT;
    case Outcome::interrupted: return EINTR;
    case Outcome::finished: return EPIPE;
    case Outcome::peer_gone: return ECONNRESET;
    case Outcome::broken: return EPROTO;
    case Outcome::too_big: return EMSGSIZE;
    case Outcome::dropped: return ECONNABORTED;
  }
  return EINVAL;
}

std::string_view to_string(WaitMode mode) noexcept {
  switch (mode) {
    case WaitMode::spin: return "spin";
    case WaitMode::adaptive: return "adaptive";
    case WaitMode::block: return "block";
  }
  return "unknown";
}

WaitMode wait_mode_from_environment() noexcept {
  const char* const wanted = std::getenv("FARCALL_WAIT");
  for (const WaitMode mode : {WaitMode::spin, WaitMode::block})
    if (wanted != nullptr && to_string(mode) == wanted) return mode;
  return WaitMode::adaptive;
}

bool Waiter::gone(const WaitState& peer) const noexcept {
  // acquire: pairs with the release in the peer's finish, so that all it wrote is visible.
  if (peer.state.load(std::memory_order_acquire) != WaitState::kOpen) return true;
  if (lifeline_ < 0) return false;
  if (process_ == Drain::kEnded) return true;
  std::array<pollfd, 2> death{{{.fd = lifeline_, .events = POLLRDHUP, .revents = 0},
                               {.fd = process_, .events = POLLIN, .revents = 0}}};
  int cancel_state = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  const int count = ::poll(death.data(), process_ < 0 ? 1 : 2, 0);
  ::pthread_setcancelstate(cancel_state, nullptr);
  if (count >= 0)
    return (death[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || death[1].revents != 0;
  // Where RLIMIT_NOFILE is 0 the kernel polls nothing. Not recv(2), a point of cancellation.
  char ring = 0;
  const long got =
      ::syscall(SYS_recvfrom, lifeline_, &ring, 1, MSG_PEEK | MSG_DONTWAIT, nullptr, nullptr);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

// From begin() on, as long as it lives, the peer's process is watched beside its socket.
class Waiter::ProcessWatch {
 public:
  explicit ProcessWatch(Waiter& waiter) noexcept : waiter_(waiter) {}
  ~ProcessWatch() {
    if (!begun_) return;
    waiter_.process_ = Drain::kUnknown;
    (void)waiter_.drain_.watch_process(waiter_.drain_.context, false);
  }
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  void begin() noexcept {
    if (waiter_.drain_.watch_process == nullptr || std::exchange(begun_, true)) return;
    waiter_.process_ = waiter_.drain_.watch_process(waiter_.drain_.context, true);
  }

 private:
  Waiter& waiter_;
  bool begun_ = false;
};

[[gnu::hot]] void Waiter::note_processor(WaitState& mine) noexcept {
  wakes_until_note_ = kWakesPerNote;
  const std::uint32_t here = current_processor();
  if (here == processor_) return;
  processor_ = here;
  mine.processor.store(here, std::memory_order_relaxed);
}

[[gnu::hot]] bool Waiter::shares_processor(const WaitState& peer) const noexcept {
  return peer.processor.load(std::memory_order_relaxed) == processor_;
}

std::int64_t Waiter::spin_budget() noexcept {
  if (expected_ns_ <= kLongestSpin) {
    waits_since_probe_ = 0;
    return std::clamp(2 * expected_ns_, kShortestSpin, kLongestSpin);
  }
  // Sleeping makes waits look long: when both sides sleep, each waits for the other's wake-up.
  // So a sleeper tries now and then whether the peer has become quick.
  if (++waits_since_probe_ < kWaitsPerProbe) return 0;
  waits_since_probe_ = 0;
  return kLongestSpin;
}

[[gnu::hot]] void Waiter::learn(std::int64_t waited) noexcept {
  // One long pause after a busy time must not make the next thousand waits sleep, so it is capped.
  constexpr std::int64_t kCap = 4 * kLongestSpin;
  expected_ns_ += (std::min(waited, kCap) - expected_ns_) / 8;
}

[[gnu::hot]] Outcome Waiter::wait_long(WaitState& mine, const WaitState& peer, Deadline deadline,
                                       ReadyRef ready, SignalCount since) {
  note_processor(mine);
  if (mode_ == WaitMode::spin) return spin_for_ever(peer, deadline, ready, since);
  const std::int64_t start = monotonic_ns();
  if (stay_awake(peer, start, deadline, ready)) return Outcome::ok;
  observe::note_sleep(observed_, start);
  const Outcome outcome = sleep(mine, peer, start, deadline, ready, since);
  const std::int64_t now = monotonic_ns();
  observe::note_awake(observed_, now - start);
  learn(now - start);
  if (spun_until_ != 0) [[unlikely]]
    judge_spin(outcome, now);
  return outcome;
}

void Waiter::judge_spin(Outcome outcome, std::int64_t now) noexcept {
  const bool harmful = outcome == Outcome::ok && now - spun_until_ < kSoonAfterSpin;
  spun_until_ = 0;
  if (!harmful) return;
  spin_pause_ = next_spin_pause_;
  next_spin_pause_ = std::min(2 * next_spin_pause_, kLongestSpinPause);
}

[[gnu::hot]] Outcome Waiter::linger_long(WaitState& mine, const WaitState& peer, ReadyRef ready) {
  note_processor(mine);
  const std::int64_t start = monotonic_ns();
  if (stay_awake(peer, start, Deadline::never(), ready)) return Outcome::ok;
  linger_since_ = start;
  return Outcome::would_block;
}

[[gnu::hot]] void Waiter::resume() noexcept {
  after_sleep_ = AfterSleep::mine;
  spun_until_ = 0;
  if (linger_since_ == 0) return;
  learn(monotonic_ns() - linger_since_);
  linger_since_ = 0;
}

[[gnu::hot]] bool Waiter::stay_awake(const WaitState& peer, std::int64_t start, Deadline deadline,
                                     ReadyRef ready) {
  // On one processor only the peer's progress ends the wait, and it needs this processor for that.
  if (shares_processor(peer)) return hand_over(ready);
  if (mode_ == WaitMode::block) return false;
  if (spin_pause_ > 0) [[unlikely]] {
    --spin_pause_;
    return false;
  }
  const bool probe = expected_ns_ > kLongestSpin;
  const std::int64_t budget = spin_budget();
  if (budget == 0) return false;
  if (!spin(peer, std::min(start + budget, deadline.at()), ready)) {
    const std::int64_t now = monotonic_ns();
    observe::note_spun(observed_, now - start);
    if (in_company_ && !probe) spun_until_ = now;  // of a probe it is no surprise
    return false;
  }
  next_spin_pause_ = std::max(next_spin_pause_ / 2, kShortestSpinPause);
  if (probe) expected_ns_ = kLongestSpin / 2;
  const std::int64_t spun = monotonic_ns() - start;
  observe::note_spun(observed_, spun);
  learn(spun);
  return true;
}

bool Waiter::spin(const WaitState& peer, std::int64_t until, ReadyRef ready) {
  for (;;) {
    for (unsigned i = 0; i < kLooksPerCheck; ++i) {
      if (ready()) return true;
      relax();
    }
    if (monotonic_ns() >= until ||
        peer.processor.load(std::memory_order_relaxed) == current_processor())
      return false;
  }
}

Outcome Waiter::give_up(const WaitState& peer, Outcome why, ReadyRef ready) const {
  const bool over = gone(peer);
  if (ready()) return Outcome::ok;
  return over ? Outcome::peer_gone : why;
}

Outcome Waiter::spin_for_ever(const WaitState& peer, Deadline deadline, ReadyRef ready,
                              SignalCount since) {
  const std::int64_t start = monotonic_ns();
  std::int64_t death_check = start + kDeathCheckEvery;
  ProcessWatch process(*this);
  for (;;) {
    const bool shared = shares_processor(peer);
    for (unsigned i = 0; i < (shared ? 1 : kLooksPerCheck); ++i) {
      if (ready()) return Outcome::ok;
      relax();
    }
    const std::int64_t now = monotonic_ns();
    if (now >= deadline.at()) return give_up(peer, Outcome::timed_out, ready);
    if (SignalCount::now() != since) return give_up(peer, Outcome::interrupted, ready);
    if (now >= death_check) {
      if (now - start >= kShallowSleep) process.begin();
      if (gone(peer)) return ready() ? Outcome::ok : Outcome::peer_gone;
      death_check = now + kDeathCheckEvery;
      if (cancellable_) {
        int before = 0;
        ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
        ::pthread_testcancel();
        ::pthread_setcancelstate(before, nullptr);
      }
    }
    if (shared || now - start >= kSpinBeforeYield) ::sched_yield();
  }
}

void Waiter::pause_hand_overs() noexcept {
  hand_over_pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  quick_ones_ = 0;
}

// Whoever sleeps, wakes the other and then prepares to sleep again keeps the other one from the
// processor for as long as that takes, which is long where nothing is in the caches.
[[gnu::hot]] void Waiter::let_peer_run(bool apart) noexcept {
  const bool woken = std::exchange(after_sleep_, AfterSleep::none) == AfterSleep::peers;
  if (!woken && apart) return;
  if (hand_over_pause_ > 0) {
    --hand_over_pause_;
    return;
  }
  const std::uint64_t before = ticks();
  ::sched_yield();
  // How long a peer takes that has got its answer tells nothing.
  if (woken && ticks() - before > kSlowWake) pause_hand_overs();
}

[[gnu::hot]] bool Waiter::hand_over(ReadyRef ready) {
  // Two processes that hand one processor to and fro look busy, so the scheduler leaves them
  // there, even where another one is idle. It places a task anew when the task is woken.
  if (++hand_overs_ % kHandOversPerSleep == 0) return false;
  if (hand_over_pause_ > 0) {
    --hand_over_pause_;
    return false;
  }
  // Credit is earned by hand-overs that the peer answered and lost by those it did not; without
  // credit one in kWaitsPerProbe is tried all the same.
  if (hand_over_credit_ == 0) {
    if (++waits_since_probe_ < kWaitsPerProbe) return false;
    waits_since_probe_ = 0;
  }
  const unsigned tries = mode_ == WaitMode::block ? 1 : std::max<unsigned>(hand_over_credit_, 1);
  std::int64_t before = monotonic_ns();
  for (unsigned i = 0; i < tries; ++i) {
    ::sched_yield();
    const std::int64_t after = monotonic_ns();
    const bool slow = after - before > kSlowHandOver;
    before = after;
    if (slow) {
      pause_hand_overs();
      return ready();
    }
    if (++quick_ones_ == kQuickOnes) {
      next_pause_ = std::max(next_pause_ / 2, kShortestPause);
      quick_ones_ = 0;
    }
    if (ready()) {
      if (hand_over_credit_ < kMostHandOverCredit) ++hand_over_credit_;
      return true;
    }
  }
  if (hand_over_credit_ > 0) --hand_over_credit_;
  return false;
}

[[gnu::hot]] void Waiter::park(WaitState& mine, std::uint32_t how) noexcept {
  mine.parked.store(how, std::memory_order_relaxed);
  full_fence();  // pairs with the one in wake()
}

Outcome Waiter::sleep(WaitState& mine, const WaitState& peer, std::int64_t start, Deadline deadline,
                      ReadyRef ready, SignalCount since) {
  // The first sleep is on the futex, which is cheap and deaf to the peer's death; a sleeper that
  // nobody has woken by `shallow` moves to the descriptor.
  Deadline shallow = lifeline_ < 0 ? Deadline::never() : Deadline(start + kShallowSleep);
  Outcome outcome = Outcome::ok;
  ProcessWatch process(*this);
  for (bool deep = deaf_;;) {
    if (deep) leave_descriptor(mine);
    on_descriptor_ = deep;
    park(mine, deep ? WaitState::kOnDescriptor : WaitState::kOnFutex);
    if (ready()) {
      outcome = Outcome::ok;
      break;
    }
    const bool over =
        deep ? gone(peer) : peer.state.load(std::memory_order_acquire) != WaitState::kOpen;
    if (over) {
      outcome = ready() ? Outcome::ok : Outcome::peer_gone;
      break;
    }
    outcome = deep ? sleep_on_descriptor(deadline, since)
                   : sleep_on_futex(mine, std::min(shallow, deadline), since);
    if (ready()) {
      outcome = Outcome::ok;
      break;
    }
    const bool timed_out = outcome == Outcome::timed_out;
    if (outcome == Outcome::interrupted || (timed_out && (deep || deadline <= shallow))) {
      outcome = give_up(peer, outcome, ready);
      break;
    }
    if (outcome == Outcome::would_block) {  // the kernel lets nobody sleep there, see gone()
      deep = false;
      shallow = Deadline(monotonic_ns() + kShallowSleep);
    }
    if (timed_out) {
      deep = true;
      process.begin();
      // The one that its bell wakes may be kept by a signal handler while others hear the socket.
      if (std::exchange(rang_bell_, false)) ring_doorbell();
    }
  }
  leave_descriptor(mine);
  return outcome;
}

Outcome Waiter::sleep_on_futex(WaitState& mine, Deadline deadline, SignalCount since) {
  const Sleeper sleeper(mine.parked);
  if (SignalCount::now() != since) return Outcome::interrupted;
  switch (futex_wait(mine.parked, WaitState::kOnFutex, deadline)) {
    case EINTR: return Outcome::interrupted;
    case ETIMEDOUT: return Outcome::timed_out;
    // A peer that goes on changing the word keeps nobody beyond the deadline.
    default: return monotonic_ns() < deadline.at() ? Outcome::ok : Outcome::timed_out;
  }
}

Outcome Waiter::sleep_on_descriptor(Deadline deadline, SignalCount since) {
  std::array<pollfd, 2> signs{{{.fd = lifeline_, .events = POLLIN | POLLRDHUP, .revents = 0},
                               {.fd = process_, .events = POLLIN, .revents = 0}}};
  const timespec left = deadline.left();
  int count = 0;
  {
    const HeldSignals held;
    if (SignalCount::now() != since) return Outcome::interrupted;
    int cancel_state = 0;
    ::pthread_setcancelstate(cancellable_ ? PTHREAD_CANCEL_ENABLE : PTHREAD_CANCEL_DISABLE,
                             &cancel_state);
    count = ::ppoll(signs.data(), process_ < 0 ? 1 : 2, deadline.is_never() ? nullptr : &left,
                    held.before());
    if (count < 0) count = -errno;
    ::pthread_setcancelstate(cancel_state, nullptr);
  }
  if (count == -EINTR) return Outcome::interrupted;
  if (count == 0) return Outcome::timed_out;
  take_doorbells();
  if (count < 0) return Outcome::would_block;
  // A peer that rings without end, and has nothing, does not put off the deadline.
  const bool late = !deadline.is_never() && left.tv_sec == 0 && left.tv_nsec == 0;
  return late ? Outcome::timed_out : Outcome::ok;
}

}  // namespace farcall
