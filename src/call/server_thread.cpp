// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <utility>

#include "call/port.hpp"
#include "farcall/error.hpp"

namespace farcall {

using call::PortState;
using call::ServerSession;
using call::SessionPointer;

namespace {

// So often a thread looks for others where the most urgent is to be served at any time: a look
// costs a system call.
#if defined(__x86_64__)
constexpr std::uint64_t kTicksPerLook = 20'000;  // 6 to 10 us
#else
constexpr std::uint64_t kTicksPerLook = 7'000;
#endif

// Who is woken often takes the processor at once: that is not time that the thread worked for it.
std::uint64_t time_of_woken(ServerSession& session) noexcept {
  const std::uint64_t waking = session.waiter().take_time_waking();
  return waking - std::min(waking, call::kTicksPerEvent);
}

// Says that the calling thread receives, as long as it does.
class Said {
 public:
  explicit Said(std::atomic<bool>& receiving) noexcept : receiving_(receiving) {
    receiving_.store(true, std::memory_order_relaxed);
  }
  ~Said() { call::stop_receiving(receiving_); }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;

 private:
  std::atomic<bool>& receiving_;
};

}  // namespace

Incoming::Incoming() noexcept : generation_(process::generation()) {}
Incoming::Incoming(Incoming&& other) noexcept : Incoming() { *this = std::move(other); }
Incoming& Incoming::operator=(Incoming&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  const bool in_line = other.request_.data.data() == other.inline_;
  session_ = std::move(other.session_);
  port_ = std::move(other.port_);
  endpoint_ = std::move(other.endpoint_);
  request_ = std::exchange(other.request_, {});
  large_ = std::move(other.large_);
  descriptors_ = std::move(other.descriptors_);
  notice_ = std::exchange(other.notice_, false);
  caller_ = other.caller_;
  generation_ = other.generation_;
  if (in_line) {
    std::ranges::copy(request_.data, inline_);
    request_.data = {inline_, request_.data.size()};
  }
  return *this;
}
Incoming::~Incoming() { abandon(); }

void Incoming::abandon() noexcept {
  if (!session_) return;
  if (generation_ != process::generation()) {
    // The call is the parent's to answer.
    process::leak_in_child(session_);
    process::leak_in_child(port_);
    return;
  }
  const process::NoCancel guard;
  // Left without an answer: the client must not wait for ever.
  session_->end_serving();
  port_->drop(session_);
  session_ = nullptr;
  port_ = nullptr;
}

bool Incoming::abandoned() const noexcept {
  return session_ && (session_->gone || session_->hung_up());
}

bool Incoming::known_abandoned() const noexcept {
  return session_ && session_->gone.load(std::memory_order_relaxed);
}

std::uint32_t Incoming::number() const noexcept { return session_->last_taken(); }

const CallerIdentity* Incoming::identity() const noexcept {
  return session_ ? &session_->identity() : nullptr;
}

void Incoming::refuse(int error) noexcept {
  if (!session_) return;
  const process::NoCancel guard;
  session_->end_serving();
  // Who has not taken the descriptors that came has them still here.
  session_->refuse(error, descriptors_.empty());
  port_->release(session_);
  session_ = nullptr;
  port_ = nullptr;
}

void Incoming::observe(ClientDeathObserver* observer) noexcept {
  if (!session_) return;
  session_->end_serving();
  session_->begin_serving(observer);
}

// The client's next words may be long in coming, or never come. As soon as others need this thread,
// or many wait like this one, it goes on. It looks before it waits, and then often: looking costs
// no more than a wait. `waits`: it serves this port. Others may have more clients to answer, of
// which nothing is known here, and go on soon.
Outcome Incoming::await_taken(bool waits) {
  constexpr int kMostWaiting = 4;
  constexpr auto kShortest = std::chrono::microseconds(50);
  constexpr auto kLongest = std::chrono::microseconds(800);
  constexpr auto kGlance = std::chrono::microseconds(400);
  const Deadline longest = Deadline::after(port_->limits.patience);
  const call::Counted waiting(&port_->confirming);
  std::chrono::nanoseconds step = kShortest;
  for (;;) {
    if (port_->confirming.load(std::memory_order_relaxed) > kMostWaiting ||
        port_->lacks_threads() || (!waits && step > kGlance)) {
      session_->leave_untold();
      return Outcome::ok;
    }
    const Outcome outcome = session_->await_taken(std::min(Deadline::after(step), longest));
    if (outcome != Outcome::timed_out) return outcome;
    // Too short a wait for it to notice.
    if (session_->gone.load(std::memory_order_relaxed)) return Outcome::peer_gone;
    if (monotonic_ns() >= longest.at()) return Outcome::broken;
    step = std::min<std::chrono::nanoseconds>(2 * step, kLongest);
  }
}

[[gnu::always_inline]] inline Outcome Incoming::give_reply(std::span<const std::byte> data,
                                                           std::span<const int> descriptors,
                                                           std::int64_t status,
                                                           ClientDeathObserver* observer,
                                                           bool waits) {
  if (!session_) throw MisuseError("reply to what wants no reply, or has had it");
  session_->end_serving();
  if (data.size() > kInlineBytes || !descriptors.empty() || session_->announced()) [[unlikely]]
    return reply_at_length(data, descriptors, status, observer, waits);
  session_->reply_shortly(data, status);
  return Outcome::ok;
}

Outcome Incoming::reply(std::span<const std::byte> data, std::span<const int> descriptors,
                        ClientDeathObserver* observer) {
  const Outcome outcome = give_reply(data, descriptors, 0, observer, false);
  if (outcome == Outcome::ok) {
    port_->release(session_);
    port_->spare_buffers.keep(std::move(large_));
    session_ = nullptr;
    port_ = nullptr;
  }
  return outcome;
}

Outcome Incoming::reply_at_length(std::span<const std::byte> data, std::span<const int> descriptors,
                                  std::int64_t status, ClientDeathObserver* observer, bool waits) {
  Outcome outcome = Outcome::peer_gone;
  try {
    const bool told = session_->reply(data, descriptors, status);
    outcome = told ? await_taken(waits) : Outcome::ok;
  } catch (const SystemError& error) {
    // A bad descriptor, say, leaves the client waiting for a better reply, unless it would take
    // some of this one's for that one's.
    const int code = error.code().value();
    if (code != EPIPE && code != ECONNRESET && code != ETIMEDOUT && !session_->sent_in_part()) {
      session_->begin_serving(observer);
      throw;
    }
  }
  if (outcome != Outcome::ok) port_->drop_in_vain(std::exchange(session_, nullptr));
  return outcome;
}

class ServerThread::State {
 public:
  State(std::shared_ptr<PortState> port, WaitMode mode, ClientDeathObserver* observer);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Outcome receive(Incoming& incoming, Deadline deadline, SignalCount since);
  Outcome reply(Incoming& incoming, std::span<const std::byte> data,
                std::span<const int> descriptors, std::int64_t status);
  void leave() noexcept;
  void set_about_to_receive(bool on) noexcept;

  bool cancellable = false;
  bool restartable = false;
  bool reservable = false;

 private:
  void attend(SessionPointer session) noexcept;
  inline bool take_at_once(Incoming& incoming);
  bool take(Incoming& incoming);
  bool accept(Incoming& incoming);
  bool take_long(Incoming& incoming);
  Outcome next(Incoming& incoming, Deadline deadline, SignalCount since, bool looked);
  inline bool has_arrived(ServerSession& session) noexcept;
  bool linger(ServerSession& session) noexcept;
  [[nodiscard]] bool look_due() const noexcept;
  bool look_around(Incoming& incoming);
  void take_notice(call::Item& item, Incoming& incoming) noexcept;

  std::shared_ptr<PortState> port_;
  const WaitMode mode_;
  ClientDeathObserver* const observer_;
  SessionPointer attending_;  // claimed
  const std::uint64_t generation_;
  std::atomic<bool> receiving_{true};  // a new one is about to
  std::uint64_t looked_ = 0;
  call::Work work_;
  Outcome wait_outcome_ = Outcome::ok;
};

ServerThread::State::State(std::shared_ptr<PortState> port, WaitMode mode,
                           ClientDeathObserver* observer)
    : port_(std::move(port)),
      mode_(mode),
      observer_(observer),
      generation_(process::generation()),
      work_(port_->waiting) {
  port_->join_threads(receiving_);
}

ServerThread::State::~State() {
  if (generation_ != process::generation()) {
    process::leak_in_child(port_);
    process::leak_in_child(attending_);
    return;
  }
  leave();
  port_->leave_threads(receiving_);
}

void ServerThread::State::set_about_to_receive(bool on) noexcept {
  if (on)
    receiving_.store(true, std::memory_order_relaxed);
  else
    call::stop_receiving(receiving_);
}

[[gnu::hot]] void ServerThread::State::attend(SessionPointer session) noexcept {
  work_.charge();
  Waiter::unpark(session->control().server);
  session->waiter().resume();  // the client may run first
  looked_ = work_.begin(session->account, 1);
  attending_ = std::move(session);
}

// Goes back to the pool: from now on the client has to ring.
[[gnu::hot]] void ServerThread::State::leave() noexcept {
  if (!attending_) return;
  const process::NoCancel guard;
  const SessionPointer session = std::exchange(attending_, nullptr);
  work_.leave_out(time_of_woken(*session));  // as long as it is this thread's
  port_->release(session);
  work_.end();
  if (observer_ != nullptr) observer_->left();
}

// Takes the request that is ready. False: there is nothing to serve after all.
bool ServerThread::State::take(Incoming& incoming) {
  const bool taken =
      attending_->take_short(incoming.inline_, incoming.request_) || take_long(incoming);
  return taken && accept(incoming);
}

// What has been taken out of the session. False: it is none that clients of this port may send.
[[gnu::hot]] bool ServerThread::State::accept(Incoming& incoming) {
  ServerSession& session = *attending_;
  call::Request& request = incoming.request_;
  if (!request.wants_reply && !port_->limits.one_way) [[unlikely]] {
    const process::NoCancel guard;
    request = {};
    process::close_later(session.caller.uid, std::move(incoming.descriptors_));
    port_->drop(std::exchange(attending_, nullptr));
    return false;
  }
  work_.weigh(request.wants_reply ? 1 : call::kWeightOfUnawaited);
  incoming.notice_ = false;
  incoming.caller_ = session.caller;
  // Mostly they are the same as last time; a look is cheaper than counting them up and down.
  if (incoming.endpoint_ != session.endpoint) incoming.endpoint_ = session.endpoint;
  if (request.wants_reply) {
    session.begin_serving(observer_);
    incoming.session_ = std::move(attending_);
    if (incoming.port_ != port_) incoming.port_ = port_;
  }
  return true;
}

bool ServerThread::State::take_long(Incoming& incoming) {
  Outcome outcome = Outcome::broken;
  if (!incoming.large_) incoming.large_ = port_->spare_buffers.take();
  const std::function<bool()> others_first = [this] {
    work_.charge();
    return port_->others_precede(*attending_);
  };
  const call::Destination to{.inline_data = incoming.inline_,
                             .large = incoming.large_,
                             .limits = port_->limits,
                             .descriptors = incoming.descriptors_,
                             .observer = observer_,
                             .others_first = others_first};
  try {
    outcome = attending_->take(to, incoming.request_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for this client
  }
  if (outcome == Outcome::ok) return true;
  incoming.request_ = {};
  process::close_later(attending_->caller.uid, std::move(incoming.descriptors_));
  if (outcome != Outcome::would_block)
    port_->drop_in_vain(std::exchange(attending_, nullptr));
  else if (attending_->stuck())
    port_->refuse_later(std::exchange(attending_, nullptr));
  return false;
}

[[gnu::hot]] inline bool ServerThread::State::look_due() const noexcept {
  return ticks() - looked_ >= (port_->limits.by_priority ? kTicksPerLook : call::kTicksPerTurn);
}

// What is done about it until the thread comes back is its user's.
void ServerThread::State::take_notice(call::Item& item, Incoming& incoming) noexcept {
  work_.charge();
  work_.begin(item.account, call::kWeightOfUnawaited);
  incoming.endpoint_ = std::move(item.notice);
  incoming.notice_ = true;
  incoming.caller_ = {.pid = 0, .uid = item.account->user, .gid = 0};
}

// Turns to somebody else whose turn has come, if there is anybody. True: it was a notice.
bool ServerThread::State::look_around(Incoming& incoming) {
  looked_ = ticks();
  work_.leave_out(time_of_woken(*attending_));
  work_.charge();
  if (!attending_->waiter().is_costly_to_wake() && !port_->others_precede(*attending_))
    return false;
  leave();
  call::Item other = port_->next_waiting();
  if (!other) return false;
  if (other.session) {
    incoming.crowded_ = port_->sleeping.load(std::memory_order_relaxed) == 0;
    attend(std::move(other.session));
    return false;
  }
  take_notice(other, incoming);
  return true;
}

// Looks for the next request as long as that pays, and not at all where others are known to wait.
[[gnu::hot]] inline bool ServerThread::State::has_arrived(ServerSession& session) noexcept {
  return port_->backlog.load(std::memory_order_relaxed) == 0 &&
         session.waiter().look(session.control().client, [&] { return session.arrived(); });
}

// What every short request of a client that never pauses passes through: without system calls. For
// who has looked, and found that one has arrived.
[[gnu::hot]] inline bool ServerThread::State::take_at_once(Incoming& incoming) {
  return !port_->over(*attending_) &&
         !(port_->limits.by_priority && attending_->ready_after_others()) &&
         attending_->take_short(incoming.inline_, incoming.request_) && accept(incoming);
}

// That it has let others have the processor meanwhile is not put to the client's account.
[[gnu::noinline]] bool ServerThread::State::linger(ServerSession& session) noexcept {
  const auto arrived = [&] { return session.arrived(); };
  call::SessionControl& control = session.control();
  if (port_->backlog.load(std::memory_order_relaxed) != 0)
    return session.waiter().glance(control.client, arrived);
  const std::uint64_t before = ticks();
  const Outcome outcome = session.waiter().linger_on(control.server, control.client, arrived);
  const std::uint64_t lingered = ticks() - before;
  work_.leave_out(lingered - std::min(lingered, call::kTicksPerTurn / 4));
  return outcome == Outcome::ok;
}

// Of all system calls only the wait for whatever client comes is a point of cancellation. `looked`:
// for a request of the session that is attended to, a moment ago.
Outcome ServerThread::State::next(Incoming& incoming, Deadline deadline, SignalCount since,
                                  bool looked) {
  const process::NoCancel guard;
  for (;; looked = false) {
    if (port_->closed) {
      leave();
      return Outcome::finished;
    }
    if (attending_) {
      // One client that never pauses must not keep the others waiting.
      if (look_due() && look_around(incoming)) return Outcome::ok;
      if (!attending_) continue;
      ServerSession& session = *attending_;
      const bool arrived = looked ? session.arrived() : has_arrived(session);
      if ((arrived || linger(session)) && !port_->over(session)) {
        if (port_->limits.by_priority && session.ready_after_others()) {
          port_->take_sent_before(session);
          if (look_around(incoming)) return Outcome::ok;
          if (!attending_ || !attending_->ready()) continue;
        }
        if (take(incoming)) return Outcome::ok;
        if (attending_ && attending_->copying()) leave();
        continue;
      }
      leave();
    }
    work_.end();
    if (reservable && restartable && !cancellable && deadline.is_never())
      port_->wait_in_reserve(receiving_);
    call::Item item = port_->next(deadline, wait_outcome_,
                                  {.cancellable = cancellable,
                                   .permits_cancellation = guard.was_cancellable(),
                                   .restartable = restartable,
                                   .since = since});
    if (!item) return wait_outcome_;
    if (item.notice) {
      take_notice(item, incoming);
      return Outcome::ok;
    }
    attend(std::move(item.session));
    if (attending_->ready() && take(incoming)) return Outcome::ok;
    leave();
  }
}

[[gnu::hot]] Outcome ServerThread::State::receive(Incoming& incoming, Deadline deadline,
                                                  SignalCount since) {
  incoming.abandon();
  if (incoming.large_) [[unlikely]]
    incoming.large_->release();
  if (!incoming.descriptors_.empty()) [[unlikely]]
    process::close_later(incoming.caller_.uid, std::move(incoming.descriptors_));
  incoming.request_ = {};
  incoming.notice_ = false;
  incoming.crowded_ = false;
  incoming.generation_ = generation_;
  const Said receiving(receiving_);
  const bool look = attending_ != nullptr && !look_due();
  if (look && has_arrived(*attending_) && take_at_once(incoming)) return Outcome::ok;
  return next(incoming, deadline, since, look);
}

[[gnu::hot]] Outcome ServerThread::State::reply(Incoming& incoming, std::span<const std::byte> data,
                                                std::span<const int> descriptors,
                                                std::int64_t status) {
  const Outcome outcome = incoming.give_reply(data, descriptors, status, observer_, true);
  if (outcome != Outcome::ok) return outcome;
  leave();
  attending_ = std::move(incoming.session_);
  if (!work_.is_for(*attending_->account)) [[unlikely]] {
    work_.charge();
    work_.begin(attending_->account, 1);
  }
  work_.weigh(1);
  return Outcome::ok;
}

ServerThread::ServerThread(Port& port, WaitMode mode, ClientDeathObserver* observer)
    : state_(std::make_unique<State>(port.state_, mode, observer)) {}
ServerThread::~ServerThread() = default;
[[gnu::hot]] Outcome ServerThread::receive(Incoming& incoming, Deadline deadline,
                                           SignalCount since) {
  return state_->receive(incoming, deadline, since);
}
[[gnu::hot]] Outcome ServerThread::reply(Incoming& incoming, std::span<const std::byte> data,
                                         std::span<const int> descriptors, std::int64_t status) {
  return state_->reply(incoming, data, descriptors, status);
}
void ServerThread::leave() noexcept { state_->leave(); }
void ServerThread::set_about_to_receive(bool on) noexcept { state_->set_about_to_receive(on); }
void ServerThread::set_cancellable(bool on) noexcept { state_->cancellable = on; }
void ServerThread::set_restartable(bool on) noexcept { state_->restartable = on; }
void ServerThread::set_reservable(bool on) noexcept { state_->reservable = on; }

}  // namespace farcall
