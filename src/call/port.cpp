// SPDX-License-Identifier: Apache-2.0
#include "call/port.hpp"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "farcall/error.hpp"
#include "wait/held_signals.hpp"

namespace farcall {
namespace call {

constexpr unsigned kParksPerDrain = 32;
// A client that waits for its answer rings at most twice before it has it: for what it has taken of
// the last one, and for its request.
constexpr unsigned kMostParks = 4;

namespace {

std::size_t usable_processors() noexcept {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    return static_cast<std::size_t>(std::max(CPU_COUNT(&set), 1));
  // More than such a set holds.
  return static_cast<std::size_t>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

// Of a thread that is unwound, and leaves to others what it may have been told of.
class LookAgain {
 public:
  explicit LookAgain(PortState& port) noexcept : port_(&port) {}
  ~LookAgain() {
    if (port_ != nullptr) port_->look_again();
  }
  LookAgain(const LookAgain&) = delete;
  LookAgain& operator=(const LookAgain&) = delete;
  void dismiss() noexcept { port_ = nullptr; }

 private:
  PortState* port_;
};

}  // namespace

PortState::PortState(const PortLimits& port_limits, WaitMode wait_mode)
    : limits(port_limits), mode(wait_mode), processors(usable_processors()) {
  epoll = PrivateFd(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll) throw_errno("epoll_create1");
  closing = PrivateFd(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  queued = PrivateFd(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!closing || !queued) throw_errno("eventfd");
  listen(closing.get(), kClosing, EPOLLIN);
  listen(queued.get(), kQueued, EPOLLIN);
}

void PortState::listen(int fd, std::uint64_t id, std::uint32_t events) const {
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("epoll_ctl");
}

SessionPointer PortState::find(std::uint64_t id) {
  const std::lock_guard guard(lock);
  const auto found = sessions.find(id);
  return found == sessions.end() ? nullptr : found->second.session;
}

// Not by a port whose threads serve the most urgent first, for that has to listen to all.
PortState::Woken PortState::sleep_on_sessions(Deadline deadline, Outcome& outcome,
                                              const Sleeping& how, Item& item) {
  FutexMultiWait wait(*this);
  if (!wait.active()) return Woken::unable;
  const Counted asleep(&sleeping);
  const std::uint64_t since = ticks();
  outcome = wait.sleep(deadline, how.cancellable);
  has_slept(since);
  SessionPointer session = wait.end();
  if (outcome == Outcome::ok) multi_wait.account(static_cast<bool>(session));
  if (!session) return outcome == Outcome::interrupted ? Woken::ended : Woken::by_others;
  if (backlog.load(std::memory_order_relaxed) == 0)
    item = alone(item_of(std::move(session)));
  else
    queue(std::move(session));
  return Woken::by_session;
}

// `only_look`: it does not sleep, and is no point of cancellation.
void PortState::ask_for_events(Deadline until, bool only_look, const Sleeping& how,
                               Events& events) {
  timespec left = until.left();
  int cancel_state = 0;
  const std::size_t most = batch();
  const Counted asleep(only_look ? nullptr : &sleeping);
  std::optional<HeldSignals> held;
  if (!only_look && !how.restartable) {
    held.emplace();
    events.interrupted = SignalCount::now() != how.since;
    if (events.interrupted) left = {};  // what is there already is taken all the same
  }
  const bool cancellable = (how.cancellable || how.permits_cancellation) && !only_look;
  // A process that is stopped and continued stays in ppoll, while epoll_pwait2 ends with EINTR.
  // But of several threads that poll each would be woken each time.
  bool exact = !only_look && !how.restartable && sleeping.load() == 1;
  pollfd any{.fd = epoll.get(), .events = POLLIN, .revents = 0};
  const timespec* const time = until.is_never() && !events.interrupted ? nullptr : &left;
  const sigset_t* const mask = held ? held->before() : nullptr;
  const std::uint64_t since = ticks();
  // It may be cancelled when the call has already succeeded, and events are told of once.
  std::optional<LookAgain> unwound;
  if (cancellable) {
    unwound.emplace(*this);
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel_state);
  }
  int count = exact ? ::ppoll(&any, 1, time, mask) : -1;
  // A process that may have no descriptors (RLIMIT_NOFILE) polls none.
  if (exact && count < 0 && errno == EINVAL) exact = false;
  if (!exact)
    count = ::epoll_pwait2(epoll.get(), events.all.data(), static_cast<int>(most), time, mask);
  const int error = errno;  // handlers may run now
  if (cancellable) {
    ::pthread_setcancelstate(cancel_state, nullptr);
    unwound->dismiss();
  }
  held.reset();
  has_slept(since);
  if (count > 0 && exact) {
    count = ::epoll_wait(epoll.get(), events.all.data(), static_cast<int>(most), 0);
    events.look_again = count == 0;  // somebody else has taken it
  }
  if (count < 0 && error == EINTR && SignalCount::now() == how.since)
    events.look_again = !catches_uncounted_signals();
  events.count = count;
  events.error = count < 0 ? error : 0;
}

// Links them to each other: clients do not ring again where there is no memory for a list.
template <class Wanted, class Take>
void PortState::claim_each(Wanted wanted, Take take) noexcept {
  SessionPointer first;
  {
    const std::lock_guard guard(lock);
    for (const auto& [id, entry] : sessions) {
      const SessionPointer& session = entry.session;
      if (session->claimed() || !wanted(*session) || !session->claim()) continue;
      session->next = std::exchange(first, session);
    }
  }
  while (const SessionPointer session = std::exchange(first, nullptr)) {
    first = std::move(session->next);
    take(session);
  }
}

[[gnu::hot]] Item PortState::next(Deadline deadline, Outcome& outcome, Sleeping how) {
  for (bool looked = false;; looked = true) {
    if (backlog.load(std::memory_order_relaxed) != 0)
      if (Item item = next_waiting()) return item;
    // Events that come without end, and bring nothing, keep nobody from deadlines and signals.
    if (looked && is_over(deadline, how, outcome)) return {};
    bool only_look = deadline.is_now();
    if (!only_look && how.restartable && !limits.by_priority && multi_wait.pays()) {
      Item item;
      const Woken woken = sleep_on_sessions(deadline, outcome, how, item);
      if (item || woken == Woken::ended) return item;
      if (woken == Woken::by_session) continue;
      only_look = woken == Woken::by_others;
    }
    Events events;
    ask_for_events(only_look ? Deadline::now() : deadline, only_look, how, events);
    if (events.look_again) continue;
    if (events.count == 0 && !events.interrupted && only_look && monotonic_ns() < deadline.at())
      continue;
    if (events.count <= 0) {
      const bool interrupted = events.count == 0 ? events.interrupted : events.error == EINTR;
      outcome = interrupted         ? Outcome::interrupted
                : deadline.is_now() ? Outcome::would_block
                                    : Outcome::timed_out;
      return {};
    }
    bool closing_too = false;
    Item only =
        sort(std::span(events.all).first(static_cast<std::size_t>(events.count)), closing_too);
    if (closing_too) {
      if (only) queue(std::move(only));
      outcome = Outcome::finished;
      return {};
    }
    if (only) return alone(std::move(only));
  }
}

// What rang without being ready then, and is not to be served, has to be listened to again. It may
// be among those that a thread slept for, and be left to its doorbell since.
void PortState::look_again() noexcept {
  claim_each(
      [](const ServerSession& session) {
        return session.ready() || session.gone ||
               session.control().server.parked.load(std::memory_order_relaxed) == WaitState::kAwake;
      },
      [this](const SessionPointer& session) { settle(session); });
}

[[gnu::hot]] void PortState::release(const SessionPointer& session) noexcept {
  // Each time that it parks it may be rung for once. Each packet is an edge of its own, so that
  // doorbells can lie until there are many; but a full socket could not be rung any more.
  if (session->waiter().is_costly_to_wake()) [[unlikely]]
    return drop_in_vain(session);
  for (unsigned parked = 1;; ++parked) {
    if (++session->parks % kParksPerDrain == 0) session->drain();
    WaitState& side = session->control().server;
    Waiter::park_on_descriptor(side);
    session->release();
    // What came before these two lines rang no bell that anyone was waiting for.
    if (over(*session) || session->ready()) break;
    // What rang between them has perhaps been told to another thread, which found the session still
    // claimed. If it was no request, but that a reply has been taken, nobody else parks again.
    // relaxed: as for `turn`, claim() and release() order it.
    if (side.parked.load(std::memory_order_relaxed) != WaitState::kAwake) return;
    if (parked == kMostParks || !session->claim()) return;
  }
  if (session->claim()) settle(session);
}

void PortState::settle(const SessionPointer& session) noexcept {
  if (over(*session) && !session->ready_one_way())
    drop(session);
  else if (session->ready())
    queue(session);
  else
    release(session);
}

void PortState::drop(const SessionPointer& session) noexcept {
  // Others may still refer to the session; its client must know now.
  session->hang_up();
  decltype(sessions)::node_type dropped;  // destroyed without the lock
  {
    const std::lock_guard guard(lock);
    dropped = sessions.extract(session->id);
    if (dropped.empty()) return;
    --session->account->sessions;
  }
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, session->socket(), nullptr);
  multi_wait.wake();  // who waits refers to the session
}

void PortState::drop_in_vain(const SessionPointer& session) noexcept {
  waiting.charge_at_once(*session->account, (kWeightOfUnawaited - 1) * kTicksPerTurn);
  drop(session);
}

void PortState::refuse_later(const SessionPointer& session) noexcept {
  try {
    process::catch_up(session->caller.uid, [port = shared_from_this(), session] {
      session->drop_and_refuse();
      port->release(session);
    });
  } catch (const std::exception&) {
    drop_in_vain(session);  // there is no thread
  }
}

void PortState::forget_taken(uid_t user) noexcept {
  std::vector<SessionPointer> his;
  try {
    const std::lock_guard guard(lock);
    for (const auto& [id, entry] : sessions)
      if (entry.session->caller.uid == user) his.push_back(entry.session);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it looks at some
  }
  for (const SessionPointer& session : his) session->forget_taken();
}

void PortState::close_sessions(const Endpoint* endpoint) noexcept {
  const auto concerned = [endpoint](const ServerSession& session) {
    return session.endpoint.get() == endpoint;
  };
  claim_each(concerned, [this](const SessionPointer& session) { drop(session); });
  // Those that wait for a thread are claimed already.
  for (const Item& item :
       take_out([&](const Item& one) { return one.session && concerned(*one.session); }))
    drop(item.session);
}

// Of what waits for a thread.
template <class Unwanted>
std::list<Item> PortState::take_out(Unwanted unwanted) noexcept {
  std::list<Item> out;  // destroyed without the lock
  const std::lock_guard guard(lock);
  waiting.extract(unwanted, out);
  move_if(late, unwanted, out);
  tell_queued();
  return out;
}

void PortState::close() noexcept {
  if (closed.exchange(true)) return;
  // One by one, without a list of them: this also runs where memory is out.
  for (;;) {
    std::weak_ptr<EndpointState> next;
    {
      const std::lock_guard guard(lock);
      if (endpoints.empty()) break;
      next = std::move(endpoints.back());
      endpoints.pop_back();
    }
    if (const auto alive = next.lock()) alive->close();
  }
  // Nobody will receive these any more, and each keeps an endpoint, which keeps the port.
  take_out([](const Item& item) { return item.notice || item.source; });
  const std::uint64_t one = 1;
  (void)!::write(closing.get(), &one, sizeof one);
  ring_reserve(INT_MAX);
}

}  // namespace call

using call::PortState;

Port::Port(const PortLimits& limits, WaitMode mode)
    : state_(std::make_shared<PortState>(limits, mode)) {}

Port::~Port() {
  if (state_->generation == process::generation()) {
    close();
    return;
  }
  // All of it is the parent's: leave it as it is.
  process::leak_in_child(state_);
  process::leak_in_child(own_endpoint_);
}

int Port::descriptor() {
  if (!own_endpoint_) {
    own_endpoint_ = open_endpoint({}, {});
    handed_out_ = own_endpoint_->branch();
  }
  return handed_out_.get();
}

std::size_t Port::sessions() const noexcept {
  const std::lock_guard guard(state_->lock);
  return state_->sessions.size();
}

[[gnu::hot]] bool Port::has_sleeping_thread() const noexcept {
  return state_->sleeping.load(std::memory_order_relaxed) > 0;
}

std::size_t Port::idle_threads() const noexcept {
  // Pairs with the light one in receive(): of two threads that begin to serve at the same time at
  // least one learns that the other does, too.
  asymmetric_fence_heavy();
  const std::lock_guard guard(state_->lock);
  return state_->receiving_threads() + state_->reserve.called;
}

std::size_t Port::processors() const noexcept { return state_->processors; }

bool Port::call_reserve() noexcept { return state_->call_reserve(); }

bool Port::has_reserve() const noexcept {
  return state_->reserve.waiting.load(std::memory_order_relaxed) != 0;
}

void Port::close() noexcept { state_->close(); }

void Port::post(std::shared_ptr<Endpoint> endpoint, std::uint8_t priority,
                std::optional<uid_t> user) {
  call::Item item;
  {
    const std::lock_guard guard(state_->lock);
    item.account = state_->waiting.account(user ? *user : ::geteuid());
  }
  item.notice = std::move(endpoint);
  item.priority = priority;
  if (!state_->queue(std::move(item)) && !state_->closed) throw std::bad_alloc();
}

std::uint64_t Port::listen(int fd, std::shared_ptr<Source> source, uid_t user,
                           std::uint8_t priority) {
  std::uint64_t id = 0;
  {
    const std::lock_guard guard(state_->lock);
    id = state_->next_id++;
    state_->sources.emplace(
        id, std::make_shared<call::ListenedSource>(call::ListenedSource{
                .source = std::move(source),
                .account = state_->waiting.account(user),
                .fd = fd,
                .id = id,
                .priority = state_->limits.by_priority ? priority : std::uint8_t{0}}));
  }
  try {
    state_->listen(fd, id, EPOLLIN);
  } catch (const SystemError&) {
    const std::lock_guard guard(state_->lock);
    state_->sources.erase(id);
    throw;
  }
  return id;
}

void Port::set_enabled(std::uint64_t source, bool on) noexcept {
  const std::lock_guard guard(state_->lock);
  const auto found = state_->sources.find(source);
  if (found == state_->sources.end()) return;
  found->second->enabled = on;
  state_->listen_as_wanted(*found->second);
}

void Port::forget(int fd, std::uint64_t source) noexcept {
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::shared_ptr<call::ListenedSource> last;  // destroyed without the lock
  const std::lock_guard guard(state_->lock);
  const auto found = state_->sources.find(source);
  if (found == state_->sources.end()) return;
  last = std::move(found->second);
  last->fd = -1;
  state_->sources.erase(found);
}

int Port::poll_descriptor() const noexcept { return state_->epoll.get(); }

std::vector<Waiting> Port::waiting() const {
  std::vector<Waiting> all;
  const std::lock_guard guard(state_->lock);
  for (const auto& [id, entry] : state_->sessions)
    if (entry.session->ready())
      all.push_back({.caller = entry.session->caller,
                     .origin = entry.session->origin(),
                     .priority = entry.session->priority(),
                     .endpoint = entry.session->endpoint.get()});
  return all;
}

}  // namespace farcall
