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
// Threads with nothing to do sleep on the port's epoll descriptor, where packets ring; but where a
// port has few sessions one of them sleeps on the futexes of all (futex_multi_wait.hpp).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

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

struct PortState : std::enable_shared_from_this<PortState> {
  static constexpr std::uint64_t kClosing = 1;
  static constexpr std::uint64_t kQueued = 2;
  static constexpr std::uint64_t kFirstSession = 3;
  static constexpr std::size_t kBatch = 32;

  // What waits for a thread: a session, claimed, with something to do; or else a notice.
  struct Item {
    SessionPointer session;
    std::shared_ptr<Endpoint> notice;
    std::uint8_t notice_priority = 0;
    [[nodiscard]] std::uint8_t priority() const noexcept {
      return session ? session->priority() : notice_priority;
    }
    explicit operator bool() const noexcept { return session || notice; }
  };
  struct Sleeping {
    bool cancellable = false;                // it is a cancellation point
    bool restartable = false;                // signal handlers need not end it
    SignalCount since = SignalCount::now();  // else one that has run since then does
  };
  struct Entry {
    SessionPointer session;
    Registration death;  // tells of its client's
  };

  PortState(const PortLimits& limits, WaitMode mode);
  PortState(const PortState&) = delete;
  PortState& operator=(const PortState&) = delete;

  // What is asked for at once: where the most urgent goes first, all of those who have rung.
  [[nodiscard]] std::size_t batch() const noexcept { return limits.by_priority ? kBatch : 1; }
  void listen(int fd, std::uint64_t id, std::uint32_t events) const;
  // A client's memory and socket, two descriptors, have come through an endpoint: answers with a
  // session, or its refusal. Throws SystemError for what is wrong with them.
  void add(ReceivedFds& descriptors, const Credentials& sender,
           const std::shared_ptr<Endpoint>& endpoint);
  SessionPointer find(std::uint64_t id);
  // Something to do, the session claimed for the caller; or nothing, and `outcome` says why.
  Item next(Deadline deadline, Outcome& outcome, Sleeping how);
  // The same at once, for a thread that has a client already.
  Item look();
  // Whether somebody waits for a thread while none waits for a client.
  [[nodiscard]] bool lacks_threads() const noexcept;
  // Queues what has come, except for a single thing when nothing else waits.
  Item sort(std::span<const epoll_event> events, bool& closing_too);
  SessionPointer on_event(std::uint64_t id, std::uint32_t events);
  // For some thread of the port.
  void queue(Item item) noexcept;
  Item take_queued();
  void admit_late();
  // The session goes to whichever thread comes next, if there is something to do; its owner calls.
  void release(const SessionPointer& session) noexcept;
  void drop(const SessionPointer& session) noexcept;
  void close() noexcept;
  void close_sessions(const Endpoint* endpoint) noexcept;
  [[nodiscard]] bool over(const ServerSession& session) const noexcept {
    return session.gone || closed || session.endpoint->closed();
  }

  const PortLimits limits;
  const WaitMode mode;
  const std::uint64_t generation = process::generation();
  PrivateFd epoll;
  PrivateFd closing;
  PrivateFd queued;  // counts what was put into `waiting`
  std::atomic<bool> closed{false};
  std::atomic<int> sleeping{0};         // threads that wait for any client to ring
  std::atomic<int> confirming{0};       // threads that wait for a client to have taken descriptors
  std::atomic<std::size_t> backlog{0};  // what `waiting` holds
  FutexMultiWaitState multi_wait;

  mutable std::mutex lock;  // protects all below
  std::unordered_map<std::uint64_t, Entry> sessions;
  std::unordered_map<uid_t, std::size_t> per_user;
  std::multimap<int, Item> waiting;  // by falling priority
  std::vector<Item> late;            // to wait behind all that has come, known here or not
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources;
  std::vector<std::weak_ptr<Endpoint>> endpoints;
  std::vector<const std::atomic<bool>*> threads;  // for each, whether it receives
  std::uint64_t next_id = kFirstSession;
};

}  // namespace farcall::call
