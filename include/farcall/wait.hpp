// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits for a word that another process will write, and how it is woken.
//
// A wait goes through up to three phases, each more expensive to leave and cheaper to stay in:
//
//   spin        look again and again; only where the peer last ran on another processor
//   hand over   sched_yield, so that a peer on this processor can run
//   sleep       on a futex; after some 20 ms on a descriptor, where the peer's death wakes too
//
// One that ends before it has got there, without what it waited for, asks whether the peer is dead.
//
// The sleeper says in shared memory that it sleeps, and on what; only then does the waker make a
// system call. Both sides put a full fence between their own store and their look at the other's:
//
//   sleeper                                waker
//     parked = kOnFutex                      publish (the word that `ready` reads)
//     ---- fence ----                        ---- fence ----
//     ready? if not: sleep                   parked? if so: wake
//
// so at least one of them sees the other.
//
// A signal handler that runs while a thread is awake would be followed by a sleep that nobody ends.
// So handlers tell of it (note_signal), and a thread sleeps only if none has since its call began:
//
//   sleeper                                handler, on the same thread
//     "I am about to sleep on `parked`"      count
//     counted since? if so: do not sleep     somebody about to sleep? change that word: then the
//     sleep while parked == kOnFutex         sleep does not begin, or is not begun anew
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <ctime>
#include <string_view>
#include <utility>

#include "farcall/observe.hpp"

#if defined(__SANITIZE_THREAD__)
#include <unistd.h>
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace farcall {

// The layout of shared memory is ABI, so the line size is ours, not the compiler's. Adjacent
// lines are fetched in pairs, so words that two sides contend for stand kFalseSharing apart.
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kFalseSharing = 128;

// What came of an operation that may have to wait.
enum class Outcome : std::uint8_t {
  ok,
  would_block,  // the deadline was Deadline::now() and there is nothing to do yet
  timed_out,    // the deadline passed
  interrupted,  // a signal handler ran while sleeping, or told of itself before (EINTR)
  finished,     // the peer has said that it is done, and everything it sent has been read
  peer_gone,    // the peer has closed or died without saying so
  broken,       // the peer has written something that the protocol forbids; final
  too_big,      // does not fit the buffer given (read) or can never fit the ring (reserve)
  dropped,      // this reader was too slow, and is none any more; final
};
std::string_view to_string(Outcome outcome) noexcept;
// The errno nearest to an outcome: EAGAIN, ETIMEDOUT, EINTR, EPIPE, ECONNRESET, EPROTO, EMSGSIZE,
// ECONNABORTED.
int to_errno(Outcome outcome) noexcept;

// A moment on CLOCK_MONOTONIC, in nanoseconds; "never" waits for ever, "now" does not wait. One
// before the machine's start, which the clock has no numbers for, is one that has passed.
class Deadline {
 public:
  static constexpr Deadline never() noexcept { return Deadline(kNever); }
  static constexpr Deadline now() noexcept { return Deadline(0); }
  static Deadline after(std::chrono::nanoseconds duration) noexcept;
  constexpr explicit Deadline(std::int64_t at) noexcept : at_(at < 0 ? kPassed : at) {}

  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 is the compiler's
  constexpr auto operator<=>(const Deadline&) const noexcept = default;
  [[nodiscard]] constexpr bool is_never() const noexcept { return at_ == kNever; }
  [[nodiscard]] constexpr bool is_now() const noexcept { return at_ == 0; }
  [[nodiscard]] constexpr std::int64_t at() const noexcept { return at_; }
  // The same as the kernel wants it, and how long it is until then, at least 0; never() has
  // neither.
  [[nodiscard]] constexpr timespec moment() const noexcept { return split(at_); }
  [[nodiscard]] timespec left() const noexcept;

 private:
  static constexpr timespec split(std::int64_t ns) noexcept {
    return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  static constexpr std::int64_t kNever = INT64_MAX;
  static constexpr std::int64_t kPassed = 1;  // 0 is now()
  std::int64_t at_;
};

// CLOCK_MONOTONIC in nanoseconds.
std::int64_t monotonic_ns() noexcept;

// How one side of a shared structure waits, as the other side sees it. Written by its owner, except
// that the waker clears `parked` and counts in `bell`. Nothing in it is trusted: at worst a lie
// costs its teller a wake-up.
struct alignas(kFalseSharing) WaitState {
  enum : std::uint32_t { kAwake = 0, kOnFutex = 1, kOnDescriptor = 2, kOnBell = 3 };
  static constexpr unsigned kHowBits = 8;  // those of the above; the rest numbers polls
  enum : std::uint32_t { kOpen = 0, kFinished = 1 };

  std::atomic<std::uint32_t> parked;     // is also the futex
  std::atomic<std::uint32_t> processor;  // where the owner ran when it last waited, plus one
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> bell;  // rung where `parked` says so; a futex
};
static_assert(sizeof(WaitState) == kFalseSharing);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

enum class WaitMode : std::uint8_t {
  spin,      // never sleeps; yields where the peer shares the processor or is long in coming
  adaptive,  // spins as long as recent waits have earned, hands over, sleeps
  block,     // hands over at most once, where the peer shares the processor; else sleeps at once
};
std::string_view to_string(WaitMode mode) noexcept;
// What FARCALL_WAIT in the environment names now; adaptive where it names none of them.
WaitMode wait_mode_from_environment() noexcept;

// How many signals the calling thread has caught of which it was told. Who takes it when a call
// begins knows before each sleep whether a handler has run since.
class SignalCount {
 public:
  static SignalCount now() noexcept { return SignalCount(caught.load(std::memory_order_relaxed)); }
  constexpr bool operator==(const SignalCount&) const noexcept = default;

 private:
  friend void note_signal() noexcept;
  constexpr explicit SignalCount(unsigned long count) noexcept : count_(count) {}

  // Atomic for the sake of the handler, which runs on the same thread.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local std::atomic<unsigned long>
      caught;
  unsigned long count_;
};
// For signal handlers, before anything else: what this thread waits for in this library ends with
// `interrupted` rather than sleep, or sleep on. Async-signal-safe. libfarcall-doors and
// libfarcall-messages call it for the handlers that programs install.
void note_signal() noexcept;

// A full fence between this side's store and its look at the other side's word.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not model fences; a read-modify-write that all threads share orders more.
  static std::atomic<std::uint32_t> everyone{0};
  everyone.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// ThreadSanitizer knows memory by its address. Where two threads of one process have the same
// memory mapped at two addresses it does not see that what one publishes orders what the other
// reads: this tells it, before a word is published and after it has been read. It also is for who
// has waited for another process that such a thread has served. Nothing elsewhere.
inline void order_for_sanitizer() noexcept {
#if defined(__SANITIZE_THREAD__)
  // An address that all parts of a program agree on.
  __tsan_acquire(&::environ);
  __tsan_release(&::environ);
#endif
}

// Two fences for the threads of one process, of which the light one costs nothing: the heavy one
// makes all processors that run a thread of this process pass a full fence, by a system call
// (membarrier(2)). Where one thread passes the heavy one and another the light one, each between
// its own store and its look at the other's word, at least one of them sees the other.
namespace detail {
extern const std::atomic<bool> kernel_fences;  // else both are full fences
}
inline void asymmetric_fence_light() noexcept {
  if (detail::kernel_fences.load(std::memory_order_relaxed)) [[likely]]
    std::atomic_signal_fence(std::memory_order_seq_cst);
  else
    full_fence();
}
void asymmetric_fence_heavy() noexcept;
// The heavy one for another process, of which the kernel knows nothing: it takes so long that no
// processor keeps a store to itself any more. There the light one is one of the compiler alone.
void asymmetric_fence_to_others() noexcept;

// A clock that costs little and touches no memory; 1 to 5 ticks are a nanosecond.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(monotonic_ns());
#endif
}

inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Takes the doorbells out of a lifeline, and whatever else the user of that lifeline sends.
struct Drain {
  static constexpr int kUnknown = -1;
  static constexpr int kEnded = -2;

  // How many came, where that is known.
  unsigned (*take)(void* context, int lifeline) noexcept;
  void* context;
  // The peer's end may be held by others as well, which outlive it: children that were made by a
  // system call of its own. So where a wait lasts this is asked for a descriptor that is readable
  // once the peer's process has ended, or one of the two above; with false, to let go of it.
  int (*watch_process)(void* context, bool on) noexcept = nullptr;
};
// For lifelines in which there is nothing but doorbells.
unsigned drop_doorbells(void* context, int lifeline) noexcept;

// Waits and wakes for one side. Private to that side; not thread safe, like the side itself.
class Waiter {
 public:
  Waiter() noexcept = default;
  // `lifeline` is a connected socket whose other end the peer holds, or -1 when the peer is a
  // thread of this process; it is borrowed. Doorbells in it are single zero bytes. `doorbell`: a
  // socket through which the peer is rung, where that is another.
  explicit Waiter(int lifeline, WaitMode mode = WaitMode::adaptive,
                  Drain drain = {drop_doorbells, nullptr}, int doorbell = -1) noexcept
      : lifeline_(lifeline),
        doorbell_(doorbell < 0 ? lifeline : doorbell),
        mode_(mode),
        drain_(drain) {}

  // The first look at a peer that answers at once, without any system call.
  template <class Ready>
  bool look(const WaitState& peer, Ready ready) {
    return ready() || quick_look(peer, ready);
  }

  // Waits until ready() is true. `mine` and `peer` are the two sides of the shared structure.
  // Returns ok, would_block, timed_out, interrupted, or peer_gone once the peer is dead or has
  // finished and ready() is still false: the caller tells these two apart. A signal that was caught
  // after `since` interrupts as one does that comes now; but what is ready is ok.
  template <class Ready>
  Outcome wait(WaitState& mine, const WaitState& peer, Deadline deadline, Ready ready,
               SignalCount since = SignalCount::now()) {
    if (ready()) return Outcome::ok;
    if (deadline.is_now())
      return gone(peer) && !ready() ? Outcome::peer_gone : Outcome::would_block;
    if (quick_look(peer, ready)) return Outcome::ok;
    return wait_long(mine, peer, deadline, ReadyRef(ready), since);
  }

  // Looks for a moment at a peer that runs on another processor, without any system call: for who
  // has others to turn to.
  template <class Ready>
  bool glance(const WaitState& peer, Ready ready) {
    if (ready()) return true;
    if (mode_ == WaitMode::block || peer.processor.load(std::memory_order_relaxed) == processor_)
      return false;
    for (unsigned i = 0; i < kQuickLooks; ++i)
      if (ready()) return true;
    return false;
  }
  // As wait(), but ends with would_block instead of sleeping: for who has other things to do
  // than to sleep on this one.
  template <class Ready>
  Outcome linger(WaitState& mine, const WaitState& peer, Ready ready) {
    if (look(peer, ready)) return Outcome::ok;
    return linger_on(mine, peer, ready);
  }
  // The same for who has looked.
  template <class Ready>
  Outcome linger_on(WaitState& mine, const WaitState& peer, Ready ready) {
    return linger_long(mine, peer, ReadyRef(ready));
  }
  // After linger() ended with would_block: tells when its wait is over in the end, so that the
  // next one knows how long waits are, and lets the peer run first.
  void resume() noexcept;
  // Says that the owner of `mine` waits on the descriptor, in whatever way it does that. Look
  // again whether there is something to do after this, before waiting.
  static void park_on_descriptor(WaitState& mine) noexcept { park(mine, WaitState::kOnDescriptor); }
  // The same for who waits until `mine.bell` has changed, and beside that for others
  // (futex_waitv(2)). Not `parked`: that would take the wake-ups of who sleeps there meanwhile.
  static void park_on_bell(WaitState& mine) noexcept { park(mine, WaitState::kOnBell); }
  static void unpark(WaitState& mine) noexcept {
    mine.parked.store(WaitState::kAwake, std::memory_order_relaxed);
  }

  // Called after publishing; wakes the peer if it sleeps.
  void wake(WaitState& mine, WaitState& peer) noexcept {
    full_fence();
    wake_after_fence(mine, peer);
  }
  // The same for who has passed a full fence since, on behalf of several peers.
  void wake_after_fence(WaitState& mine, WaitState& peer) noexcept {
    late_ = false;
    const std::uint32_t parked = peer.parked.load(std::memory_order_relaxed);
    if (parked != WaitState::kAwake) [[unlikely]]
      wake_parked(mine, peer, parked);
    // A side that never waits must tell now and then where it runs.
    if (--wakes_until_note_ == 0) [[unlikely]]
      note_processor(mine);
  }

  // As wake(), for who is about to publish more: a peer that slept on this processor could do
  // nothing meanwhile but take it away, so it is left asleep. Call wake_late() before this side
  // waits. Should this side turn to something else instead, the peer looks by itself after some
  // 20 ms: only those are left asleep that do.
  void wake_with_next(WaitState& mine, WaitState& peer) noexcept {
    full_fence();
    const std::uint32_t parked = peer.parked.load(std::memory_order_relaxed);
    if (parked != WaitState::kAwake) [[unlikely]] {
      late_ = parked == WaitState::kOnFutex && lifeline_ >= 0 &&
              peer.processor.load(std::memory_order_relaxed) == processor_;
      if (!late_) wake_parked(mine, peer, parked);
    }
  }
  void wake_late(WaitState& mine, WaitState& peer) noexcept {
    if (late_) [[unlikely]]
      wake_after_fence(mine, peer);
  }

  // How long waking the peer has taken since this was last asked, in ticks(): mostly the time that
  // the woken had the processor. Where much of it was this thread's own that is not counted, if
  // measure_wakes() has been called.
  [[nodiscard]] std::uint64_t take_time_waking() noexcept { return std::exchange(waking_, 0); }

  // From now on it is looked for what long wakes take.
  void measure_wakes() noexcept { measures_ = true; }
  // Again and again it has cost this side more than 0.2 ms of its own time to wake the peer.
  [[nodiscard]] bool is_costly_to_wake() const noexcept { return costly_wakes_ == kTooCostly; }

  // How many doorbells have been sent. Any thread; acquire: they are in the socket, or taken out.
  [[nodiscard]] std::uint32_t doorbells() noexcept {
    return std::atomic_ref(doorbells_).load(std::memory_order_acquire);
  }

  // Says that `mine` will do nothing more, and wakes a peer that sleeps on its futex: who sleeps on
  // the descriptor learns of it by what becomes of the socket. Any thread.
  static void finish(WaitState& mine, WaitState& peer) noexcept;

  // For poll and epoll: after prepare_poll() returned would_block, poll_descriptor() becomes
  // readable when ready() may have turned true or the peer has gone. Call finish_poll() before
  // the next operation. prepare_poll() returns ok when there is nothing to wait for.
  template <class Ready>
  Outcome prepare_poll(WaitState& mine, const WaitState& peer, Ready ready) {
    on_descriptor_ = true;
    park(mine, WaitState::kOnDescriptor | ++polls_ << WaitState::kHowBits);
    if (!ready() && !gone(peer)) return Outcome::would_block;
    finish_poll(mine);
    return Outcome::ok;
  }
  // Whether a doorbell is under way still: a peer that takes the word rings once, but may be kept
  // between the two. Until it has come, the descriptor becomes readable for nothing.
  bool finish_poll(WaitState& mine) noexcept;
  [[nodiscard]] int poll_descriptor() const noexcept { return lifeline_; }

  // Whether pthread_cancel() may end a sleep on the descriptor; whatever the state of the calling
  // thread is otherwise. Nothing else here is a point of cancellation.
  void set_cancellable(bool on) noexcept { cancellable_ = on; }
  // Several wait for this peer, as the readers of a broadcast do: a spin that has kept others from
  // the processor is not tried again at once.
  void expect_company() noexcept { in_company_ = true; }

  // Where it is counted how this side waits, and wakes the other; null: nowhere.
  void observe(observe::Half* waits) noexcept { observed_ = waits; }

  // Whether the peer has finished, closed or died.
  [[nodiscard]] bool gone(const WaitState& peer) const noexcept;
  [[nodiscard]] WaitMode mode() const noexcept { return mode_; }

 private:
  // A borrowed callable: the long path is compiled once.
  class ReadyRef {
   public:
    template <class Ready>
    explicit ReadyRef(Ready& ready) noexcept
        : object_(&ready), call_([](void* object) { return (*static_cast<Ready*>(object))(); }) {}
    bool operator()() const { return call_(object_); }

   private:
    void* object_;
    bool (*call_)(void*);
  };

  // One side has slept, so nothing that is known of the other one holds: where it runs, say.
  enum class AfterSleep : std::uint8_t {
    none,
    peers,  // and has just been woken; mostly it is to run on this processor
    mine,   // and the other side is about to get what it has waited for
  };

  static constexpr std::uint8_t kTooCostly = 32;
  static constexpr unsigned kQuickLooks = 400;
  static constexpr unsigned kStreamingLooks = 8;
  static constexpr std::uint32_t kShortestPause = 32;     // after a slow hand-over, in waits
  static constexpr std::uint32_t kShortestSpinPause = 8;  // after a harmful spin, in waits

  // A hot peer answers within this loop, which has no clock and no pause in it: a pause costs as
  // much as the answer. After waits this short, however, the peer is streaming; leaving it alone
  // for a moment lets it write several messages before the line is taken away again.
  template <class Ready>
  bool quick_look(const WaitState& peer, Ready& ready) {
    const bool apart = peer.processor.load(std::memory_order_relaxed) != processor_;
    if (mode_ == WaitMode::block) return false;
    if (after_sleep_ != AfterSleep::none) [[unlikely]] {
      let_peer_run(apart);
      if (ready()) return true;
    }
    if (!apart) return false;
    if (std::exchange(streaming_, false)) relax();
    for (unsigned i = 0; i < kQuickLooks; ++i) {
      if (ready()) {
        streaming_ = i < kStreamingLooks;
        return true;
      }
    }
    return false;
  }

  void let_peer_run(bool apart) noexcept;
  Outcome linger_long(WaitState& mine, const WaitState& peer, ReadyRef ready);
  bool stay_awake(const WaitState& peer, std::int64_t start, Deadline deadline, ReadyRef ready);
  Outcome wait_long(WaitState& mine, const WaitState& peer, Deadline deadline, ReadyRef ready,
                    SignalCount since);
  bool spin(const WaitState& peer, std::int64_t until, ReadyRef ready);
  // The end of a wait that may have been too short to ask after the peer, as the next ones may be.
  Outcome give_up(const WaitState& peer, Outcome why, ReadyRef ready) const;
  Outcome spin_for_ever(const WaitState& peer, Deadline deadline, ReadyRef ready,
                        SignalCount since);
  bool hand_over(ReadyRef ready);
  void pause_hand_overs() noexcept;
  Outcome sleep(WaitState& mine, const WaitState& peer, std::int64_t start, Deadline deadline,
                ReadyRef ready, SignalCount since);
  static Outcome sleep_on_futex(WaitState& mine, Deadline deadline, SignalCount since);
  Outcome sleep_on_descriptor(Deadline deadline, SignalCount since);
  static void park(WaitState& mine, std::uint32_t how) noexcept;
  void leave_descriptor(WaitState& mine) noexcept;
  void take_doorbells() noexcept;
  void wake_parked(WaitState& mine, WaitState& peer, std::uint32_t parked) noexcept;
  void wake_and_measure(WaitState& mine, WaitState& peer, std::uint32_t parked) noexcept;
  void wake_sleeper(WaitState& mine, WaitState& peer, std::uint32_t parked) noexcept;
  void ring_doorbell() noexcept;
  void note_processor(WaitState& mine) noexcept;
  bool shares_processor(const WaitState& peer) const noexcept;
  void learn(std::int64_t waited) noexcept;
  class ProcessWatch;
  std::int64_t spin_budget() noexcept;
  void judge_spin(Outcome outcome, std::int64_t now) noexcept;

  int lifeline_ = -1;
  int doorbell_ = -1;
  WaitMode mode_ = WaitMode::adaptive;
  Drain drain_{drop_doorbells, nullptr};
  int process_ = Drain::kUnknown;  // the peer's, while it is watched
  bool streaming_ = false;
  bool cancellable_ = false;
  bool in_company_ = false;
  bool late_ = false;       // a peer that sleeps has not been woken
  bool deaf_ = false;       // a doorbell could not be delivered: the peer's end is closed
  bool rang_bell_ = false;  // that was how the peer was woken last, and not by its socket
  bool measures_ = false;
  std::uint8_t wakes_to_measure_ = 0;
  std::uint8_t costly_wakes_ = 0;  // two for each, less one for each that is not
  AfterSleep after_sleep_ = AfterSleep::none;
  std::uint8_t hand_over_credit_ = 2;
  std::uint8_t hand_overs_ = 0;
  std::uint32_t hand_over_pause_ = 0;  // waits that are left of it
  std::uint32_t next_pause_ = kShortestPause;
  std::uint32_t quick_ones_ = 0;
  std::uint8_t waits_since_probe_ = 0;
  std::uint8_t wakes_until_note_ = 1;
  std::uint32_t processor_ = 0;  // where this side ran when it last waited, plus one
  std::int64_t linger_since_ = 0;
  std::int64_t expected_ns_ = 20'000;  // a running mean of recent waits
  std::int64_t spun_until_ = 0;        // in vain, in the wait that goes on; 0: it has not
  std::uint32_t spin_pause_ = 0;       // waits that are left of it
  std::uint32_t next_spin_pause_ = kShortestSpinPause;
  std::uint64_t waking_ = 0;
  std::uint32_t doorbells_ = 0;
  bool on_descriptor_ = false;  // parked there, for all that this side knows
  std::uint32_t polls_ = 0;
  // Doorbells that the peer has yet to send, or had when they were counted. For a moment below
  // zero, as who sleeps may hear one before it looks at the word.
  int due_ = 0;
  observe::Half* observed_ = nullptr;
};

}  // namespace farcall
