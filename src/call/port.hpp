// SPDX-License-Identifier: Apache-2.0
//
// Everything of a port that its threads share. Sessions are watched edge-triggered: an edge means
// that a doorbell rang or that the client has gone, and wakes one thread of those that wait.
//
//   a session is owned by at most one thread (claim/release)
//   a thread leaves a session:   say "ring the doorbell"; release; look again, and claim if so
//   a thread that gets an edge:  claim, or leave it to the owner, who looks again when it leaves
//
// The reactor lets sessions in, and is told of clients that go; so neither waits for a thread that
// is free.
//
// What comes is gathered from the port's epoll descriptor, many at once, and queued by user
// (fair_queue.hpp). Who rings again and again and asks for nothing is listened to ever more seldom
// (vain_bells.cpp).
//
// Threads with nothing to do sleep on the port's epoll descriptor, where packets ring; but where a
// port has few sessions one of them sleeps on the futexes of all (futex_multi_wait.hpp).
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "call/fair_queue.hpp"
#include "call/futex_multi_wait.hpp"
#include "call/server_session.hpp"
#include "process/reactor.hpp"

namespace farcall::call {

// Counts the calling thread, also where it is cancelled meanwhile.
class Counted {
 public:
  explicit Counted(std::atomic<int>* count) noexcept : count_(count) {
    if (count_ != nullptr) count_->fetch_add(1, std::memory_order_relaxed);
  }
  ~Counted() {
    if (count_ != nullptr) count_->fetch_sub(1, std::memory_order_relaxed);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>* const count_;
};

// A descriptor that a port listens to beside its clients. Protected by the port's lock.
struct ListenedSource {
  std::shared_ptr<Source> source;
  AccountPointer account;
  int fd;  // -1: it has been forgotten
  std::uint64_t id;
  std::uint8_t priority;  // with which it waits
  bool enabled = true;    // its owner wants to hear of it
  bool waiting = false;   // it waits for a turn, and is not listened to meanwhile
};

// Tells when the next rest is over.
struct Alarm {
  PrivateFd timer;
  Registration registration;
  std::int64_t at = 0;  // 0: it is not set
};
// Sessions that have rung in vain too often, and are not listened to for a while. Protected by the
// port's lock.
struct Resting {
  std::multimap<std::int64_t, std::uint64_t> until;  // the moment, the session's id
  std::unique_ptr<Alarm> alarm;                      // while there are any
};

// The calling thread, of which this says whether it receives, does so no more.
inline void stop_receiving(std::atomic<bool>& receiving) noexcept {
  receiving.store(false, std::memory_order_relaxed);
  asymmetric_fence_light();  // pairs with the heavy one in Port::idle_threads()
}

// Threads that wait until somebody calls them, while enough others receive. Protected by the port's
// lock, but for what is atomic, which may be read without.
struct Reserve {
  std::atomic<std::uint32_t> bell{0};   // a futex: changes with each call
  std::atomic<std::size_t> waiting{0};  // that nobody has called yet
  std::size_t called = 0;               // that have still to notice
  std::size_t away = 0;                 // both, and who is about to wait
};

struct PortState : std::enable_shared_from_this<PortState> {
  static constexpr std::uint64_t kClosing = 1;
  static constexpr std::uint64_t kQueued = 2;
  static constexpr std::uint64_t kFirstSession = 3;
  static constexpr std::size_t kBatch = 32;

  struct Sleeping {
    bool cancellable = false;           // it is a cancellation point, whatever the thread's state
    bool permits_cancellation = false;  // that state
    bool restartable = false;           // signal handlers need not end it
    SignalCount since = SignalCount::now();  // else one that has run since then does
  };
  struct Entry {
    SessionPointer session;
    Registration death;  // tells of its client's
  };

  PortState(const PortLimits& limits, WaitMode mode);
  PortState(const PortState&) = delete;
  PortState& operator=(const PortState&) = delete;

  // How many events are asked for at once: one, where other threads sleep who may take the others.
  [[nodiscard]] std::size_t batch() const noexcept {
    return limits.by_priority || sleeping.load(std::memory_order_relaxed) == 0 ? kBatch : 1;
  }
  void listen(int fd, std::uint64_t id, std::uint32_t events) const;
  // A client's memory and socket, two descriptors, have come through an endpoint: answers with a
  // session, or its refusal. Throws SystemError for what is wrong with them.
  void add(ReceivedFds& descriptors, const Credentials& sender,
           const std::shared_ptr<EndpointState>& endpoint);
  // The session is the port's from here on, which listens to it and sees its end. `since` its
  // client has been served, of that account. Holds `lock`.
  void take_in(const SessionPointer& session, Account& account, std::uint64_t since);
  SessionPointer find(std::uint64_t id);
  // Something to do, the session claimed for the caller; or nothing, and `outcome` says why. For a
  // thread that may not be cancelled, but while it waits here.
  Item next(Deadline deadline, Outcome& outcome, Sleeping how);
  // By a session that gives something to do, which is queued where others wait, else in `item`; by
  // what else the port listens to; or without that, as `outcome` says.
  enum class Woken : std::uint8_t { unable, by_session, by_others, ended };
  Woken sleep_on_sessions(Deadline deadline, Outcome& outcome, const Sleeping& how, Item& item);
  struct Events {
    std::array<epoll_event, kBatch> all;
    int count = 0;
    int error = 0;
    bool interrupted = false;  // by a signal that had come before
    bool look_again = false;   // for nothing
  };
  void ask_for_events(Deadline until, bool only_look, const Sleeping& how, Events& events);
  // Whoever's turn it is of those that are known to wait; or nobody.
  Item take_waiting();
  Item next_waiting();
  void has_slept(std::uint64_t since) noexcept;
  [[nodiscard]] bool is_over(Deadline deadline, const Sleeping& how,
                             Outcome& outcome) const noexcept;
  // Somebody is served for whom nobody else has waited.
  Item alone(Item item) noexcept;
  // For a thread that attends to that session: whether somebody else's turn has come.
  bool others_precede(const ServerSession& session) noexcept;
  // Whether somebody waits for a thread while none waits for a client.
  [[nodiscard]] bool lacks_threads() const noexcept;
  // Queues all that has come, untold.
  void gather() noexcept;
  // Queues what has come, except for a single thing when nothing else waits.
  Item sort(std::span<const epoll_event> events, bool& closing_too);
  SessionPointer on_event(std::uint64_t id, std::uint32_t events);
  void on_source(const std::shared_ptr<ListenedSource>& source);
  void serve(const std::shared_ptr<ListenedSource>& source, std::uint64_t since);
  void listen_again(ListenedSource& source) noexcept;
  void take_sent_before(ServerSession& session);
  void serve_what_came_before(Item item);
  void listen_as_wanted(const ListenedSource& source) const noexcept;  // with the lock held
  [[nodiscard]] Item item_of(SessionPointer session) const;
  // For some thread of the port. `told`: at once; else who calls takes something, or tells.
  // False: there was no memory for it; a session has been dropped.
  bool queue(Item item, bool told = true) noexcept;
  void queue(SessionPointer session) noexcept { queue(item_of(std::move(session))); }
  void admit_late() noexcept;
  void tell_queued() noexcept;  // with the lock held
  // A session has rung, and there was nothing for which its owner or a new one was needed.
  void rung_in_vain(ServerSession& session) noexcept;
  void end_rests() noexcept;
  // Which threads serve. leave_threads() calls one in reserve instead. May throw std::bad_alloc.
  void join_threads(const std::atomic<bool>& receiving);
  void leave_threads(const std::atomic<bool>& receiving) noexcept;
  [[nodiscard]] std::size_t receiving_threads() const noexcept;  // with the lock held
  // Waits in reserve if, and as long as, more than enough threads receive.
  void wait_in_reserve(std::atomic<bool>& receiving) noexcept;
  bool call_reserve() noexcept;
  void ring_reserve(int most) noexcept;
  // The session goes to whichever thread comes next, if there is something to do; its owner calls.
  void release(const SessionPointer& session) noexcept;
  void drop(const SessionPointer& session) noexcept;
  // The same, of one that threads have worked for, and that cannot be answered.
  void drop_in_vain(const SessionPointer& session) noexcept;
  // The same, of one of whose request something stays in the socket. What that is may be long in
  // closing; its client waits as long, and nobody else.
  void refuse_later(const SessionPointer& session) noexcept;
  // Looks what of its replies that user has taken by now.
  void forget_taken(uid_t user) noexcept;
  // A session that the caller owns: what its client waits for is queued; or it is left again.
  void settle(const SessionPointer& session) noexcept;
  // Does so with all that have rung and are nobody's.
  void look_again() noexcept;
  template <class Wanted, class Take>
  void claim_each(Wanted wanted, Take take) noexcept;
  template <class Unwanted>
  std::list<Item> take_out(Unwanted unwanted) noexcept;
  void close() noexcept;
  void close_sessions(const Endpoint* endpoint) noexcept;
  [[nodiscard]] bool over(const ServerSession& session) const noexcept {
    return session.gone || closed || session.endpoint->closed;
  }

  const PortLimits limits;
  const WaitMode mode;
  const std::size_t processors;
  const std::uint64_t generation = process::generation();
  PrivateFd epoll;
  PrivateFd closing;
  PrivateFd queued;  // readable as long as somebody waits in `waiting`
  std::atomic<bool> closed{false};
  std::atomic<int> sleeping{0};         // threads that wait for any client to ring
  std::atomic<int> confirming{0};       // threads that wait for a client to have taken descriptors
  std::atomic<std::size_t> backlog{0};  // what `waiting` and `late` hold
  std::atomic<std::uint64_t> gathered{0};  // when, in ticks()
  std::atomic<std::size_t> serving{0};     // threads that are not in reserve
  FutexMultiWaitState multi_wait;
  SpareBuffers spare_buffers;

  mutable std::mutex lock;  // protects all below
  std::unordered_map<std::uint64_t, Entry> sessions;
  FairQueue waiting;
  std::list<Item> late;  // to wait behind all that has come, known here or not
  bool queued_told = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<ListenedSource>> sources;
  Resting resting;
  std::vector<std::weak_ptr<EndpointState>> endpoints;
  std::vector<const std::atomic<bool>*> threads;  // for each not in reserve, whether it receives
  Reserve reserve;
  std::uint64_t next_id = kFirstSession;
};

}  // namespace farcall::call
