// SPDX-License-Identifier: Apache-2.0
//
// Request and reply between processes: a port, the sessions of its clients, its server threads.
//
//   client thread ── Client ──> session ──> Port ── ServerThread: receive ... reply
//
// A port is reached through a descriptor that can be duplicated, inherited and passed on like any
// other; whoever holds one is a client. Each client thread that calls has a session of its own,
// memory shared with the server alone, made at the first call and kept for the next.
//
// A thread that has served a call attends to that session for a while, so a hot client meets a
// thread that already looks at its cache line. A session that nobody attends to costs no thread
// and no polling: its client rings a doorbell.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/peer.hpp"
#include "farcall/wait.hpp"

namespace farcall {

namespace call {
class ClientSession;
class ServerSession;
}  // namespace call

// Up to here a request or a reply travels in the cache lines of its session.
inline constexpr std::size_t kInlineBytes = 240;
inline constexpr std::size_t kCallDescriptors = kParcelDescriptors;

// Memory that a reply did not fit into; unmapped when it goes.
using LargeReply = Mapping;

struct CallArguments {
  std::span<const std::byte> data;
  std::span<const int> descriptors;  // at most kCallDescriptors; they stay the caller's
};

struct CallResults {
  std::span<std::byte> buffer;        // where the caller wants the reply
  std::span<std::byte> data;          // where it is: in `buffer`, or in `large`
  LargeReply large;                   // whole pages
  std::vector<UniqueFd> descriptors;  // close-on-exec
  std::int64_t status = 0;            // the server's
};

// The client's half. Any number of threads may call at once. A process that inherits a Client over
// fork opens sessions of its own.
class Client {
 public:
  // `port` is a port's descriptor; the client keeps a duplicate. Throws SystemError.
  explicit Client(int port, WaitMode mode = WaitMode::adaptive);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Outcomes: ok; timed_out and interrupted, where the server is told and its answer is dropped;
  // peer_gone where the server has died or closed (`dispatched` tells whether a thread had taken
  // the request) or takes no more sessions from this user; broken.
  Outcome call(const CallArguments& arguments, CallResults& results, Deadline deadline);
  // Sends a request that gets no reply, and returns when the server has room for it. One session
  // holds one; a further send or call of the same thread waits until the server has taken it.
  Outcome send(const CallArguments& arguments, Deadline deadline);

  // After a call that did not end with ok: whether a server thread had taken the request.
  [[nodiscard]] static bool dispatched() noexcept;

 private:
  std::unique_ptr<call::ClientSession> take(Deadline deadline, Outcome& outcome);
  void give_back(std::unique_ptr<call::ClientSession> session) noexcept;
  void forget_after_fork() noexcept;

  UniqueFd port_;
  WaitMode mode_;
  std::atomic<call::ClientSession*> hot_{nullptr};  // one idle session, taken without the lock
  std::mutex lock_;                                 // protects `idle_`
  std::vector<std::unique_ptr<call::ClientSession>> idle_;
  std::uint64_t generation_;
};

struct PortLimits {
  std::size_t sessions = 65'536;
  std::size_t sessions_per_user = 16'384;
  std::size_t request_bytes = std::size_t{1} << 30;  // longer ones break their session
};

// The server's half: where requests arrive. Not copied, not moved: threads refer to it.
class Port {
 public:
  explicit Port(const PortLimits& limits = {});
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // What clients need; duplicate it, pass it on, let children inherit it. close-on-exec.
  [[nodiscard]] int descriptor() const noexcept;
  // Closes the port: waiting clients and later ones get peer_gone, calls in progress finish, and
  // every receive() ends with finished. Any thread may call it.
  void close() noexcept;
  [[nodiscard]] std::size_t sessions() const noexcept;

 private:
  friend class ServerThread;
  friend class Incoming;
  struct State;
  std::shared_ptr<State> state_;
};

// A request that a thread has taken. Its data is a copy that nobody else can change. If it wants a
// reply it must get one, through whatever thread; one that is destroyed without closes its
// session, and the client gets peer_gone.
class Incoming {
 public:
  Incoming() noexcept;
  Incoming(Incoming&&) noexcept;
  Incoming& operator=(Incoming&&) noexcept;
  ~Incoming();

  [[nodiscard]] std::span<std::byte> data() noexcept {
    return {large_ ? large_.get() : inline_, size_};
  }
  [[nodiscard]] std::vector<UniqueFd>& descriptors() noexcept { return descriptors_; }
  [[nodiscard]] bool wants_reply() const noexcept { return wants_reply_; }
  // The client as the kernel saw it when its session was opened.
  [[nodiscard]] const Credentials& caller() const noexcept { return caller_; }
  // Whether the client has died or given up. Costs a system call.
  [[nodiscard]] bool abandoned() const noexcept;

 private:
  friend class ServerThread;
  void abandon() noexcept;

  std::shared_ptr<call::ServerSession> session_;  // if it wants a reply
  Credentials caller_{};
  std::size_t size_ = 0;
  std::unique_ptr<std::byte[]> large_;
  std::vector<UniqueFd> descriptors_;
  bool wants_reply_ = false;
  alignas(8) std::byte inline_[kInlineBytes];
};

// What one thread needs to serve a port. Each serving thread has its own.
class ServerThread {
 public:
  explicit ServerThread(Port& port, WaitMode mode = WaitMode::adaptive);
  ~ServerThread();
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  // Waits for a request. Outcomes: ok, would_block, timed_out, interrupted, finished (the port was
  // closed).
  Outcome receive(Incoming& incoming, Deadline deadline);
  // Answers; outcomes: ok, peer_gone (the client no longer waits), broken, too_big (descriptors).
  Outcome reply(Incoming& incoming, std::span<const std::byte> data,
                std::span<const int> descriptors = {}, std::int64_t status = 0);

 private:
  void attend(std::shared_ptr<call::ServerSession> session) noexcept;
  bool take(Incoming& incoming);
  void leave() noexcept;

  std::shared_ptr<Port::State> state_;
  WaitMode mode_;
  std::shared_ptr<call::ServerSession> attending_;  // claimed
  unsigned serves_ = 0;
  Outcome wait_outcome_ = Outcome::ok;
};

}  // namespace farcall
