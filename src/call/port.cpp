// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <unordered_map>

#include "call/session.hpp"
#include "farcall/error.hpp"

namespace farcall {

using call::ServerSession;
using SessionPointer = std::shared_ptr<ServerSession>;

// A thread that serves one client without pause looks this often whether others wait.
constexpr unsigned kServesPerLook = 32;

// Everything of a port that its threads share. Sessions are watched edge-triggered: an edge means
// that a doorbell rang or that the client has gone, and wakes one thread of those that wait.
//
//   a session is owned by at most one thread (claim/release)
//   a thread leaves a session:   say "ring the doorbell"; release; look again, and claim if so
//   a thread that hears an edge: claim, or leave it to the owner, who looks again when it leaves
struct Port::State {
  static constexpr std::uint64_t kDoor = 0;
  static constexpr std::uint64_t kClosing = 1;
  static constexpr std::uint64_t kQueued = 2;
  static constexpr std::uint64_t kFirstSession = 3;

  explicit State(const PortLimits& port_limits) : limits(port_limits) {
    std::tie(door, handed_out) = packet_socket_pair();
    const int on = 1;
    if (::setsockopt(door.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
      throw_errno("SO_PASSCRED");
    epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) throw_errno("epoll_create1");
    closing = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!closing) throw_errno("eventfd");
    watch(door.get(), kDoor, EPOLLIN);
    queued = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
    if (!queued) throw_errno("eventfd");
    watch(closing.get(), kClosing, EPOLLIN);
    watch(queued.get(), kQueued, EPOLLIN);
  }

  void watch(int fd, std::uint64_t id, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.u64 = id}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("epoll_ctl");
  }

  // Takes new clients, until there are no more. Their first request needs no doorbell.
  void welcome(WaitMode mode, std::vector<SessionPointer>& fresh);
  void add(std::vector<UniqueFd> descriptors, const Credentials& sender, WaitMode mode,
           std::vector<SessionPointer>& fresh);
  SessionPointer find(std::uint64_t id) {
    const std::lock_guard guard(lock);
    const auto found = sessions.find(id);
    return found == sessions.end() ? nullptr : found->second;
  }
  // A session with something to do, claimed for the caller; or null, and `outcome` says why.
  SessionPointer next(WaitMode mode, Deadline deadline, Outcome& outcome);
  SessionPointer hear(std::uint64_t id, std::uint32_t events);
  // For some thread of the pool; the session is claimed already.
  void queue(const SessionPointer& session) noexcept;
  SessionPointer take_queued();
  void drop(const SessionPointer& session) noexcept;

  const PortLimits limits;
  UniqueFd door;
  UniqueFd handed_out;
  UniqueFd epoll;
  UniqueFd closing;
  UniqueFd queued;  // counts `waiting`
  std::atomic<bool> closed{false};

  mutable std::mutex lock;  // protects all below
  std::unordered_map<std::uint64_t, SessionPointer> sessions;
  std::unordered_map<uid_t, std::size_t> per_user;
  std::deque<SessionPointer> waiting;  // claimed, with something to do, and no thread yet
  std::uint64_t next_id = kFirstSession;
};

void Port::State::welcome(WaitMode mode, std::vector<SessionPointer>& fresh) {
  constexpr int kMostAtOnce = 16;
  for (int i = 0; i < kMostAtOnce; ++i) {
    Arrival arrival;
    try {
      arrival = take_arrival(door.get());
      if (arrival.kind == Arrival::Kind::nothing) return;
      if (arrival.kind == Arrival::Kind::closed) {
        // Nobody can call any more; existing sessions go on. Level-triggered, so stop watching.
        ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, door.get(), nullptr);
        return;
      }
      if (arrival.kind == Arrival::Kind::descriptors && arrival.sender)
        add(std::move(arrival.descriptors), *arrival.sender, mode, fresh);
    } catch (const std::exception&) {
      // What this client sent is no session, or there is no room: closing what came tells it.
      continue;
    }
  }
}

void Port::State::add(std::vector<UniqueFd> descriptors, const Credentials& sender, WaitMode mode,
                      std::vector<SessionPointer>& fresh) {
  if (descriptors.size() != 2) return;
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(descriptors[1].get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET)
    return;
  Mapping memory = call::adopt_session(std::move(descriptors[0]));
  const std::lock_guard guard(lock);
  if (closed || sessions.size() >= limits.sessions) return;
  std::size_t& count = per_user[sender.uid];
  if (count >= limits.sessions_per_user) return;
  const std::uint64_t id = next_id++;
  auto session = std::make_shared<ServerSession>(std::move(memory), std::move(descriptors[1]),
                                                 sender, id, mode);
  Waiter::park_on_descriptor(session->control().server);
  sessions.emplace(id, session);
  ++count;
  try {
    watch(session->socket(), id, EPOLLIN | EPOLLRDHUP | EPOLLET);
  } catch (const SystemError&) {
    sessions.erase(id);
    --count;
    throw;
  }
  if (session->ready() && session->claim()) fresh.push_back(session);
}

void Port::State::queue(const SessionPointer& session) noexcept {
  try {
    const std::lock_guard guard(lock);
    waiting.push_back(session);
  } catch (const std::bad_alloc&) {
    return drop(session);
  }
  const std::uint64_t one = 1;
  (void)!::write(queued.get(), &one, sizeof one);
}

SessionPointer Port::State::take_queued() {
  std::uint64_t one = 0;
  if (::read(queued.get(), &one, sizeof one) < 0) return nullptr;  // another thread was quicker
  const std::lock_guard guard(lock);
  if (waiting.empty()) return nullptr;
  SessionPointer session = std::move(waiting.front());
  waiting.pop_front();
  return session;
}

// Something came from a client. Returns its session if there is a request to take.
SessionPointer Port::State::hear(std::uint64_t id, std::uint32_t events) {
  SessionPointer session = find(id);
  if (!session) return nullptr;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) session->gone = true;
  if (!session->claim()) return nullptr;  // the owner looks again when it leaves
  session->drain();
  // What a client has sent one way before it went is still to be taken.
  if (session->gone && !session->ready_one_way()) {
    drop(session);
    return nullptr;
  }
  return session;
}

SessionPointer Port::State::next(WaitMode mode, Deadline deadline, Outcome& outcome) {
  for (;;) {
    timespec left{};
    if (!deadline.is_never()) {
      const std::int64_t ns = std::max<std::int64_t>(deadline.at() - monotonic_ns(), 0);
      left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    }
    epoll_event event{};
    const int count =
        ::epoll_pwait2(epoll.get(), &event, 1, deadline.is_never() ? nullptr : &left, nullptr);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      outcome = deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
      return nullptr;
    }
    if (count < 0) {
      outcome = Outcome::interrupted;
      return nullptr;
    }
    SessionPointer session;
    if (event.data.u64 == kClosing) {
      outcome = Outcome::finished;
      return nullptr;
    }
    if (event.data.u64 == kDoor) {
      std::vector<SessionPointer> fresh;
      welcome(mode, fresh);
      for (const SessionPointer& other : fresh) queue(other);
    } else if (event.data.u64 == kQueued) {
      session = take_queued();
    } else {
      session = hear(event.data.u64, event.events);
    }
    if (session) return session;
  }
}

void Port::State::drop(const SessionPointer& session) noexcept {
  const std::lock_guard guard(lock);
  if (sessions.erase(session->id) == 0) return;
  const auto user = per_user.find(session->caller.uid);
  if (--user->second == 0) per_user.erase(user);
  // Others may still refer to the session; its client shall know now.
  ::shutdown(session->socket(), SHUT_RDWR);
}

Port::Port(const PortLimits& limits) : state_(std::make_shared<State>(limits)) {}

Port::~Port() { close(); }

int Port::descriptor() const noexcept { return state_->handed_out.get(); }

std::size_t Port::sessions() const noexcept {
  const std::lock_guard guard(state_->lock);
  return state_->sessions.size();
}

void Port::close() noexcept {
  if (state_->closed.exchange(true)) return;
  ::shutdown(state_->door.get(), SHUT_RDWR);
  {
    const std::lock_guard guard(state_->lock);
    for (auto& [id, session] : state_->sessions)
      if (session->claim()) ::shutdown(session->socket(), SHUT_RDWR);
  }
  // Sessions that nobody has welcomed lie in the door; taking them out closes them.
  try {
    for (Arrival arrival = take_arrival(state_->door.get());
         arrival.kind != Arrival::Kind::nothing && arrival.kind != Arrival::Kind::closed;)
      arrival = take_arrival(state_->door.get());
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): no descriptors left to take them
  }
  const std::uint64_t one = 1;
  (void)!::write(state_->closing.get(), &one, sizeof one);
}

Incoming::Incoming() noexcept = default;
Incoming::Incoming(Incoming&& other) noexcept { *this = std::move(other); }
Incoming& Incoming::operator=(Incoming&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  session_ = std::move(other.session_);
  size_ = std::exchange(other.size_, 0);
  large_ = std::move(other.large_);
  descriptors_ = std::move(other.descriptors_);
  wants_reply_ = std::exchange(other.wants_reply_, false);
  caller_ = other.caller_;
  if (!large_ && size_ != 0) std::memcpy(inline_, other.inline_, size_);
  return *this;
}
Incoming::~Incoming() { abandon(); }

void Incoming::abandon() noexcept {
  if (!session_) return;
  // Left without an answer: the client must not wait for ever. The hang-up brings a thread of the
  // port, which drops the session.
  session_->release();
  ::shutdown(session_->socket(), SHUT_RDWR);
  session_ = nullptr;
}

bool Incoming::abandoned() const noexcept {
  return session_ && (session_->gone || session_->hung_up());
}

ServerThread::ServerThread(Port& port, WaitMode mode) : state_(port.state_), mode_(mode) {}

ServerThread::~ServerThread() { leave(); }

void ServerThread::attend(SessionPointer session) noexcept {
  Waiter::unpark(session->control().server);
  session->waiter().resume();
  attending_ = std::move(session);
}

// Goes back to the pool: from now on the client has to ring.
void ServerThread::leave() noexcept {
  if (!attending_) return;
  const SessionPointer session = std::exchange(attending_, nullptr);
  Waiter::park_on_descriptor(session->control().server);
  session->release();
  // What came before these two lines rang no bell that anyone heeded.
  const bool over = session->gone || state_->closed;
  if (!over && !session->ready()) return;
  if (!session->claim()) return;
  if (over && !session->ready_one_way())
    state_->drop(session);
  else
    state_->queue(session);
}

// Takes the request that is ready in the session attended to. On failure the session is gone.
bool ServerThread::take(Incoming& incoming) {
  Outcome outcome = Outcome::broken;
  try {
    outcome = attending_->take(incoming.inline_, state_->limits.request_bytes, incoming.large_,
                               incoming.size_, incoming.descriptors_, incoming.wants_reply_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for this client
  }
  if (outcome != Outcome::ok) {
    incoming = Incoming();
    state_->drop(std::exchange(attending_, nullptr));
    return false;
  }
  incoming.caller_ = attending_->caller;
  if (incoming.wants_reply_) incoming.session_ = std::move(attending_);
  return true;
}

Outcome ServerThread::receive(Incoming& incoming, Deadline deadline) {
  incoming.abandon();
  incoming.large_.reset();
  incoming.descriptors_.clear();
  for (;;) {
    if (state_->closed) {
      leave();
      return Outcome::finished;
    }
    if (attending_) {
      // One client that never pauses must not keep the others waiting.
      if (++serves_ % kServesPerLook == 0) {
        if (SessionPointer other = state_->next(mode_, Deadline::now(), wait_outcome_)) {
          leave();
          attend(std::move(other));
        }
      }
      ServerSession& session = *attending_;
      const Outcome outcome = session.waiter().linger(
          session.control().server, session.control().client, [&] { return session.ready(); });
      if (outcome == Outcome::ok && !state_->closed) {
        if (take(incoming)) return Outcome::ok;
        continue;
      }
      leave();
    }
    SessionPointer session = state_->next(mode_, deadline, wait_outcome_);
    if (!session) return wait_outcome_;
    attend(std::move(session));
    if (attending_->ready() && take(incoming)) return Outcome::ok;
    leave();
  }
}

Outcome ServerThread::reply(Incoming& incoming, std::span<const std::byte> data,
                            std::span<const int> descriptors, std::int64_t status) {
  if (!incoming.session_) throw MisuseError("reply to what wants no reply, or has had it");
  Outcome outcome = Outcome::peer_gone;
  try {
    outcome = incoming.session_->reply(data, descriptors, status);
  } catch (const SystemError& error) {
    // A bad descriptor, say, leaves the client waiting for a better reply.
    if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
  }
  SessionPointer session = std::move(incoming.session_);
  incoming.session_ = nullptr;
  if (outcome != Outcome::ok) {
    state_->drop(session);
    return outcome;
  }
  leave();
  attending_ = std::move(session);
  return Outcome::ok;
}

}  // namespace farcall
