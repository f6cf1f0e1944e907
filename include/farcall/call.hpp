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
// A port can have several endpoints; their clients share its threads.
//
// A thread that has served a call attends to that session for a while, so a hot client meets a
// thread that already looks at its cache line. A session that nobody attends to costs no thread
// and no polling: its client rings a doorbell.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/observe.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall {

class Endpoint;

namespace call {
class RequestBuffer;
class ServerSession;
struct PortState;
}  // namespace call

// Up to here a request or a reply travels in the memory of its session.
inline constexpr std::size_t kInlineBytes = 3568;
// What one request or reply can carry.
inline constexpr std::size_t kCallDescriptors = 16 * kPacketDescriptors;

// Words that an endpoint tells all its clients. Their meaning is its owner's.
inline constexpr std::size_t kTerms = 7;
using Terms = std::array<std::uint64_t, kTerms>;
// The same where a session has them: they may change at any time.
class LiveTerms {
 public:
  using Words = std::array<std::atomic<std::uint64_t>, kTerms>;
  explicit LiveTerms(const Words& words) noexcept : words_(&words) {}
  // relaxed: each word stands for itself.
  std::uint64_t operator[](std::size_t which) const noexcept {
    return (*words_)[which].load(std::memory_order_relaxed);
  }

 private:
  const Words* words_;
};

// Memory that a reply did not fit into; unmapped when it goes.
using LargeReply = Mapping;

// Asked when a signal or the deadline ends the wait for a reply after a server thread has taken the
// request: whether to wait on all the same, and until when.
class RetryPolicy {
 public:
  virtual bool stay(Outcome outcome, Deadline& deadline) = 0;
  // Whether it is asked as well where no thread may have taken the request yet.
  [[nodiscard]] virtual bool before_dispatch() const noexcept { return false; }
  // Before it is asked: which request of its session it is about. The server knows it by the same.
  virtual void number(std::uint32_t) noexcept {}

 protected:
  ~RetryPolicy() = default;
};

// Looks at a request before it is sent, in the light of the endpoint's terms.
class Admission {
 public:
  // Returns 0, or the errno that the call is to fail with. Once for each session that is tried.
  virtual int admit(LiveTerms terms) = 0;

 protected:
  ~Admission() = default;
};

// Whether pthread_cancel() may end a wait: whatever the thread's state, or if that permits it.
enum class Cancellable : std::uint8_t { no, yes, if_permitted };

struct CallArguments {
  std::span<const std::byte> data;
  std::span<const int> descriptors;  // at most kCallDescriptors; they stay the caller's
  std::int32_t word = 0;             // for the server, beside the data
  std::uint8_t priority = 0;         // of requests that wait for a thread the highest goes first
  int port = -1;                     // where a new session is opened, in place of the client's own
  Cancellable cancellable = Cancellable::no;
  std::uint32_t origin = 0;  // for the server: who of the client it is, in 24 bits
  RetryPolicy* retry_policy = nullptr;
  Admission* admission = nullptr;  // of an AsyncCall: to its end
  bool until_taken = false;        // of send(): wait until the server has taken it
  bool after_others = false;  // a server by priority first looks for what else has come to its port
};

struct CallResults {
  std::span<std::byte> buffer;  // where the caller wants the reply
  std::span<std::byte> data;    // where it is: in `buffer`, or in `large`
  LargeReply large;             // whole pages
  ReceivedFds descriptors;      // close-on-exec
  std::int64_t status = 0;      // the server's
  std::int64_t apart = 0;       // a reply with these bits in its status goes to `large`
  // A longer reply is none: broken. 0: that is for the server to say; but one of another user's
  // that is longer than the buffer and than farcall_limits' bytes_per_user is too_big.
  std::size_t most = 0;
};

// The client's half. Any number of threads may call at once. A process that inherits a Client over
// fork opens sessions of its own.
class Client {
 public:
  // `port` is a port's descriptor, of which the client keeps a duplicate, or -1: then each call
  // names one. Throws SystemError.
  explicit Client(int port, WaitMode mode = WaitMode::adaptive);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Outcomes: ok; timed_out and interrupted (see Waiter::wait for `since`), where the server is
  // told and its answer is dropped; peer_gone where the server has died or closed (`dispatched`
  // tells whether a thread had taken the request); too_big where the reply cannot be mapped;
  // broken. Throws SystemError for what the admission or the server refuses (EFAULT: the data
  // cannot be read; EMFILE: no room for the descriptors; E2BIG; EAGAIN: no more sessions).
  Outcome call(const CallArguments& arguments, CallResults& results, Deadline deadline,
               SignalCount since = SignalCount::now());
  // Sends a request that gets no reply, and returns when the server has room for it. One session
  // holds one; a further send or call of the same thread waits until the server has taken it.
  Outcome send(const CallArguments& arguments, Deadline deadline,
               SignalCount since = SignalCount::now());
  // What the endpoint says to its clients. Outcomes as for call(), but signals do not interrupt.
  Outcome terms(Terms& terms, Deadline deadline, int port = -1);
  // Closes all idle sessions; others close when their calls have ended.
  void retire() noexcept;
  // By who has made the ports useless: ends it for all threads. Calls whose request the server has
  // not taken return peer_gone, soon; others get their reply.
  void close() noexcept;
  // What sessions that are opened from now on are called. Before others use it.
  void set_label(const observe::Label& label) noexcept;
  // The socket (SO_COOKIE) that all ports given with its calls lead to: a number that has come to
  // stand for something else is sent nothing. Before others use it.
  void set_socket(std::uint64_t cookie) noexcept;
  // After a call that did not end with ok: whether a server thread had taken the request.
  [[nodiscard]] static bool dispatched() noexcept;
  static void forget_dispatched() noexcept;

 private:
  friend class AsyncCall;
  class State;
  std::unique_ptr<State> state_;
};

// A call whose thread does other things meanwhile: used by one at a time, only in the process that
// has made it, and destroyed there. The client outlives it.
class AsyncCall {
 public:
  static constexpr std::chrono::milliseconds kRoom{100};  // the server's socket may be full
  // Sends the request, or keeps a copy, of its descriptors, too, to be sent by take() when the
  // server has let it in. Throws SystemError: EPIPE where nobody serves, EAGAIN where the port is
  // full, as Client::call().
  AsyncCall(Client& client, const CallArguments& arguments, Deadline room = Deadline::after(kRoom));
  // Gives it up where it goes on: the server is told, and its answer is dropped.
  ~AsyncCall();
  AsyncCall(const AsyncCall&) = delete;
  AsyncCall& operator=(const AsyncCall&) = delete;
  // One as long as it goes on; then -1. Readable: see Waiter::prepare_poll(); take() is to follow.
  [[nodiscard]] int poll_descriptor() const noexcept;
  Outcome prepare_poll() noexcept;
  void finish_poll() noexcept;
  // would_block, timed_out and interrupted: it goes on. All else ends it: as Client::call().
  Outcome take(CallResults& results, Deadline deadline, SignalCount since = SignalCount::now());
  // After its end: whether a server thread had taken the request.
  [[nodiscard]] bool dispatched() const noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

inline constexpr std::size_t kMostRequestBytes = std::size_t{1} << 40;

// What clients may make a server hold, and how it serves them. What is beyond a limit is refused
// with the errno named there; 0 means the default. The server's own user, and root, have more (see
// farcall_limits_set(3)).
struct PortLimits {
  std::size_t sessions = 65'536;                      // EAGAIN
  std::size_t sessions_per_user = 16'384;             // EAGAIN
  std::size_t request_bytes = kMostRequestBytes;      // E2BIG
  std::size_t descriptors_per_user = 0;               // EAGAIN; a quarter of the process's table
  std::size_t bytes_per_user = 0;                     // E2BIG; 256 MiB
  std::chrono::nanoseconds patience = kPeerPatience;  // with a client that takes descriptors
  bool one_way = true;       // else a client that sends a one-way request is turned out
  bool by_priority = false;  // of all that waits the most urgent is served first, at any time
};

// A descriptor that the threads of a port listen to beside their clients.
class Source {
 public:
  virtual ~Source() = default;
  // It can be read, or has hung up. On whatever thread receives, or several; posts notices, takes a
  // little at a time. Returns how much came for nothing, which is put to its user's account.
  virtual std::size_t on_readable() noexcept = 0;
};

// Somebody who waits for a thread.
struct Waiting {
  Credentials caller;
  std::uint32_t origin;
  std::uint8_t priority;
  const Endpoint* endpoint;
};

// What the owner of an endpoint is told, on a thread that serves the whole process: quick work
// only.
class EndpointOwner {
 public:
  virtual ~EndpointOwner() = default;
  // Before a long request is copied: 0, or the errno that it is refused with. On the thread that
  // serves it.
  [[nodiscard]] virtual int admit(std::size_t bytes, std::size_t descriptors) const noexcept;
  // What a client's claim to be urgent is worth. On any thread of the port, with its lock held.
  [[nodiscard]] virtual std::uint8_t bounded(std::uint8_t claimed, const Credentials& caller,
                                             std::uint32_t origin) noexcept;
  // Takes what a client has sent otherwise than by requests, and what a descriptor brings that has
  // to wait for its turn (Port::listen): a request comes that is to be behind that. On a thread
  // that receives. False: that is too much, and the request is refused (EAGAIN).
  virtual bool take_sent_before(const Credentials&) noexcept { return true; }
  // Nobody holds the descriptors of one branch any more; `cookie` was the socket's (SO_COOKIE).
  virtual void branch_closed(std::uint64_t cookie) noexcept;
  // Somebody who holds a descriptor has sent others, for a purpose that is the owner's affair.
  // False if it is none of the owner's. What is left in `descriptors` is closed by a thread that
  // may wait.
  virtual bool received(std::uint8_t purpose, ReceivedFds& descriptors,
                        const Credentials& sender) noexcept;
};
// Purposes below belong to calls themselves.
inline constexpr std::uint8_t kFirstOwnPurpose = 16;

// The server's half: where requests arrive. Not copied, not moved: threads refer to it. It belongs
// to the process that made it; a forked child must leave it alone.
class Port {
 public:
  explicit Port(const PortLimits& limits = {}, WaitMode mode = WaitMode::adaptive);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // What clients need; duplicate it, pass it on, let children inherit it. close-on-exec. Leads to
  // an endpoint of its own, made when this is first called. Throws SystemError.
  [[nodiscard]] int descriptor();
  // A further way in. Throws SystemError.
  std::shared_ptr<Endpoint> open_endpoint(std::weak_ptr<EndpointOwner> owner, const Terms& terms);
  // Closes the port: waiting clients and later ones get peer_gone, calls in progress finish, and
  // every receive() ends with finished. Any thread may call it.
  void close() noexcept;
  // Lets one thread of the port receive a notice, which comes from no client, in the turn of
  // `user`, or of this process's own; once the port is closed nobody does. Throws std::bad_alloc.
  void post(std::shared_ptr<Endpoint> endpoint, std::uint8_t priority = 0,
            std::optional<uid_t> user = {});
  // Listens to `fd` until forget(). What it brings is `user`'s, whose turn it takes, with that
  // priority, where that user has had more of the threads' time than others who wait. Returns a
  // number for it. Throws SystemError.
  std::uint64_t listen(int fd, std::shared_ptr<Source> source, uid_t user, std::uint8_t priority);
  // Whether to listen to it for the time being.
  void set_enabled(std::uint64_t source, bool on) noexcept;
  void forget(int fd, std::uint64_t source) noexcept;
  // Readable when there may be something to receive, for a thread that attends to no session.
  [[nodiscard]] int poll_descriptor() const noexcept;
  // The clients that wait for a thread.
  [[nodiscard]] std::vector<Waiting> waiting() const;
  [[nodiscard]] std::size_t sessions() const noexcept;
  // Whether a thread waits for whatever client comes.
  [[nodiscard]] bool has_sleeping_thread() const noexcept;
  // The threads that are receiving or about to, and have perhaps not gone to sleep yet. A system
  // call.
  [[nodiscard]] std::size_t idle_threads() const noexcept;
  // Of the processors that this process could use when the port was made.
  [[nodiscard]] std::size_t processors() const noexcept;
  // Makes one of the threads that wait in reserve receive. False: there is none.
  bool call_reserve() noexcept;
  [[nodiscard]] bool has_reserve() const noexcept;

 private:
  friend class ServerThread;
  friend class Incoming;
  std::shared_ptr<call::PortState> state_;
  std::shared_ptr<Endpoint> own_endpoint_;
  UniqueFd handed_out_;
};

// What clients have sent that nobody has asked for. It is dropped.
struct Unsolicited {
  std::uint64_t control_messages = 0;  // beside packets: pidfds, security labels
  std::uint64_t descriptors = 0;
};

// A way into a port. Each branch of it is one pair of sockets: all descriptors that are duplicates
// of the one handed out are one branch.
class Endpoint {
 public:
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  // A new branch. The socket gets the abstract name `name` where that is not empty, so that its
  // holders can tell what it is. `cookie` gets the socket's (SO_COOKIE). `user`: who asked for it,
  // if that was somebody else. Throws SystemError: EAGAIN, where that user has too many. `holder`:
  // the same, of a branch that counts as something else already.
  UniqueFd branch(std::string_view name = {}, std::uint64_t* cookie = nullptr,
                  std::optional<uid_t> user = {}, std::optional<uid_t> holder = {});
  [[nodiscard]] std::size_t branches() const noexcept;
  void set_terms(const Terms& terms);
  // What sessions that are let in from now on are called.
  void set_label(const observe::Label& label);
  // As Port::close(), for the clients of this endpoint. Its descriptors show a hang-up for reading
  // (POLLRDHUP) from now on, and the whole hang-up (POLLHUP) when the server has died.
  void close() noexcept;
  [[nodiscard]] bool closed() const noexcept;
  [[nodiscard]] std::shared_ptr<EndpointOwner> owner() const noexcept;
  [[nodiscard]] const PortLimits& limits() const noexcept;
  [[nodiscard]] Unsolicited unsolicited() const noexcept;
  void count_unsolicited(std::size_t control_messages, std::size_t descriptors) noexcept;

 protected:
  Endpoint() = default;  // Port::open_endpoint() makes them
  ~Endpoint() = default;
};

// A client as the kernel knows it.
struct CallerIdentity {
  Credentials effective;  // as the client gave them when it opened its session
  uid_t real_uid;
  gid_t real_gid;
  uid_t saved_uid;
  gid_t saved_gid;
  std::optional<std::vector<gid_t>> groups;  // none: not known
};

// Who serves a call, and wants to know when its client dies or gives up.
class ClientDeathObserver {
 public:
  // May be called on any thread, while the call is served. Must not end that call, or observe it.
  virtual void client_gone(const Endpoint& endpoint) noexcept = 0;
  // The thread attends to no client any more. On that thread.
  virtual void left() noexcept {}
  // The thread is about to copy a long request. On that thread.
  virtual void busy(const Endpoint&) {}

 protected:
  ~ClientDeathObserver() = default;
};

namespace call {

// What a server takes out of a session.
struct Request {
  std::span<std::byte> data;
  std::int32_t word = 0;
  std::uint32_t origin = 0;
  std::uint8_t priority = 0;
  bool wants_reply = false;
};

}  // namespace call

// A request that a thread has taken. Its data is a copy that nobody else can change. If it wants a
// reply it must get one, through whatever thread; one that is destroyed without closes its
// session, and the client gets peer_gone. Each call passes through one: it is a value, and what is
// looked at is looked at in line.
class Incoming {
 public:
  Incoming() noexcept;
  Incoming(Incoming&&) noexcept;
  Incoming& operator=(Incoming&&) noexcept;
  ~Incoming();

  [[nodiscard]] std::span<std::byte> data() noexcept { return request_.data; }
  [[nodiscard]] ReceivedFds& descriptors() noexcept { return descriptors_; }
  [[nodiscard]] std::int32_t word() const noexcept { return request_.word; }
  [[nodiscard]] std::uint8_t priority() const noexcept { return request_.priority; }
  // As the client says.
  [[nodiscard]] std::uint32_t origin() const noexcept { return request_.origin; }
  // Which request of the client's session it is, where it wants a reply: see RetryPolicy.
  [[nodiscard]] std::uint32_t number() const noexcept;
  [[nodiscard]] bool wants_reply() const noexcept { return request_.wants_reply; }
  // It has waited while all threads of the port were busy with others.
  [[nodiscard]] bool crowded() const noexcept { return crowded_; }
  // From Port::post(), not from a client.
  [[nodiscard]] bool notice() const noexcept { return notice_; }
  [[nodiscard]] Endpoint* endpoint() const noexcept { return endpoint_.get(); }
  // The client as the kernel saw it when its session was opened.
  // Of a notice only the user is known.
  [[nodiscard]] const Credentials& caller() const noexcept { return caller_; }
  // All that the kernel says of the client. Null for what wants no reply.
  [[nodiscard]] const CallerIdentity* identity() const noexcept;
  // Whether the client has died or given up. Costs a system call.
  [[nodiscard]] bool abandoned() const noexcept;
  // Whether that is known already. Costs nothing.
  [[nodiscard]] bool known_abandoned() const noexcept;
  // Tells the client that its request is refused: its call fails with `error`.
  void refuse(int error) noexcept;
  // From now on the client's death is told to that one, which may be null, and to nobody else any
  // more; at once, where it has been told of already. As long as this waits for its answer, and is
  // not moved.
  void observe(ClientDeathObserver* observer) noexcept;
  // Answers, by whatever thread, as ServerThread::reply() does; but for a client that does not say
  // soon whether it has taken the descriptors it does not wait. `observer` is as last given to
  // observe().
  Outcome reply(std::span<const std::byte> data, std::span<const int> descriptors,
                ClientDeathObserver* observer);

 private:
  friend class ServerThread;
  void abandon() noexcept;
  Outcome give_reply(std::span<const std::byte> data, std::span<const int> descriptors,
                     std::int64_t status, ClientDeathObserver* observer, bool waits);
  Outcome reply_at_length(std::span<const std::byte> data, std::span<const int> descriptors,
                          std::int64_t status, ClientDeathObserver* observer, bool waits);
  Outcome await_taken(bool waits);

  std::shared_ptr<call::ServerSession> session_;  // if it wants a reply
  std::shared_ptr<call::PortState> port_;         // of the last that did
  std::shared_ptr<Endpoint> endpoint_;
  Credentials caller_{};
  call::Request request_;
  std::unique_ptr<call::RequestBuffer> large_;  // made when first needed
  ReceivedFds descriptors_;
  bool notice_ = false;
  bool crowded_ = false;
  std::uint64_t generation_ = 0;
  alignas(16) std::byte inline_[kInlineBytes];
};

// What one thread needs to serve a port. Each serving thread has its own.
class ServerThread {
 public:
  explicit ServerThread(Port& port, WaitMode mode = WaitMode::adaptive,
                        ClientDeathObserver* observer = nullptr);
  ~ServerThread();
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  // Waits for a request. Outcomes: ok, would_block, timed_out, interrupted (see Waiter::wait for
  // `since`), finished (the port was closed).
  Outcome receive(Incoming& incoming, Deadline deadline, SignalCount since = SignalCount::now());
  // Answers; outcomes: ok, peer_gone (the client no longer waits), broken. Throws SystemError where
  // the answer cannot be given so, and the client waits for a better one: EBADF (of `descriptors`),
  // EMFILE (the client has no room for them; where it says so only after others have come to need
  // this thread, its call fails instead).
  Outcome reply(Incoming& incoming, std::span<const std::byte> data,
                std::span<const int> descriptors = {}, std::int64_t status = 0);
  // Goes back to the port: no session is attended to any more.
  void leave() noexcept;
  // Whether it counts as one that receives, see Port::idle_threads(), though it has still to reply
  // to a request: it will receive next, and nothing that it does first may take long.
  void set_about_to_receive(bool on) noexcept;
  // Whether pthread_cancel() may end a wait for requests, whatever the thread's state otherwise.
  void set_cancellable(bool on) noexcept;
  // Whether receive() may wait on when a signal handler has run that was installed with SA_RESTART,
  // as read(2) does. Where it may, and the port does not serve by priority, few clients wake an
  // idle thread sooner.
  void set_restartable(bool on) noexcept;
  // Whether receive() may wait in reserve while more threads receive than there are processors: who
  // would only compete for them delays the clients that it has taken on. Only where it is
  // restartable, not cancellable, and has no deadline; and whoever sets this has to see to it that
  // Port::call_reserve() is called when others are needed.
  void set_reservable(bool on) noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace farcall
