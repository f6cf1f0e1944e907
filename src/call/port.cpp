// SPDX-License-Identifier: Apache-2.0
#include "call/port.hpp"

#include <poll.h>
#include <pthread.h>
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

#include "farcall/error.hpp"
#include "wait/held_signals.hpp"

namespace farcall {
namespace call {

constexpr unsigned kParksPerDrain = 32;

PortState::PortState(const PortLimits& port_limits, WaitMode wait_mode)
    : limits(port_limits), mode(wait_mode) {
  epoll = PrivateFd(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll) throw_errno("epoll_create1");
  closing = PrivateFd(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  queued = PrivateFd(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)));
  if (!closing || !queued) throw_errno("eventfd");
  listen(closing.get(), kClosing, EPOLLIN);
  listen(queued.get(), kQueued, EPOLLIN);
}

PortState::~PortState() {
  if (generation != process::generation()) return;
  for (const auto& [id, entry] : sessions)
    Reactor::here().forget(entry.session->socket(), entry.watch);
  if (vigil.relay != 0) Reactor::here().forget(epoll.get(), vigil.relay);
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

void PortState::queue(Item item) noexcept {
  const int priority = item.priority();
  const SessionPointer session = item.session;
  try {
    const std::lock_guard guard(lock);
    if (closed && item.notice) return;
    if (session && limits.by_priority && session->ready_after_others())
      late.push_back(std::move(item));
    else
      waiting.emplace(-priority, std::move(item));
    backlog.store(waiting.size() + late.size(), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    if (session) drop(session);
    return;
  }
  const std::uint64_t one = 1;
  // By a system call that is no point of cancellation: threads come by that are about to leave.
  ::syscall(SYS_write, queued.get(), &one, sizeof one);
}

void PortState::admit_late() {
  for (Item& item : late) {
    const int priority = item.priority();
    waiting.emplace(-priority, std::move(item));
  }
  late.clear();
}

// Whoever takes something has just listened to all.
PortState::Item PortState::take_queued() {
  const std::lock_guard guard(lock);
  admit_late();
  while (!waiting.empty()) {
    std::uint64_t one = 0;
    (void)!::read(queued.get(), &one, sizeof one);
    Item item = std::move(waiting.begin()->second);
    waiting.erase(waiting.begin());
    backlog.store(waiting.size(), std::memory_order_relaxed);
    return item;
  }
  return {};
}

// Something came from a client. Returns its session if there is a request to take.
SessionPointer PortState::hear(std::uint64_t id, std::uint32_t events) {
  SessionPointer session = find(id);
  if (!session) {
    std::shared_ptr<Source> source;
    {
      const std::lock_guard guard(lock);
      const auto found = sources.find(id);
      if (found != sources.end()) source = found->second;
    }
    if (source) source->on_readable();
    return nullptr;
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) session->tell_gone();
  if (!session->claim()) return nullptr;  // the owner looks again when it leaves
  // What a client has sent one way before it went is still to be taken.
  if (over(*session) && !session->ready_one_way()) {
    drop(session);
    return nullptr;
  }
  if (session->ready()) return session;
  release(session);
  return nullptr;
}

namespace {

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

// Says that the calling thread receives, as long as it does.
class Said {
 public:
  explicit Said(std::atomic<bool>& receiving) noexcept : receiving_(receiving) {
    receiving_.store(true, std::memory_order_relaxed);
  }
  ~Said() {
    receiving_.store(false, std::memory_order_relaxed);
    asymmetric_fence_light();  // pairs with the heavy one in has_idle_thread()
  }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;

 private:
  std::atomic<bool>& receiving_;
};

}  // namespace

PortState::Item PortState::sort(std::span<const epoll_event> events, bool& closing_too) {
  Item only;
  for (const epoll_event& event : events) {
    if (event.data.u64 == kClosing) {
      closing_too = true;
    } else if (event.data.u64 == kQueued) {
      if (backlog.load(std::memory_order_relaxed) != 0) continue;
      // Somebody has taken it without looking at the count.
      std::uint64_t one = 0;
      (void)!::read(queued.get(), &one, sizeof one);
    } else {
      // What this brings may be a notice, which is queued at once: it came later.
      if (only) queue(std::exchange(only, {}));
      SessionPointer session = hear(event.data.u64, event.events);
      if (!session) continue;
      only = {.session = std::move(session), .notice = nullptr};
      if (limits.by_priority && only.session->ready_after_others()) queue(std::exchange(only, {}));
    }
  }
  if (only && backlog.load(std::memory_order_relaxed) != 0) queue(std::exchange(only, {}));
  return only;
}

[[gnu::hot]] PortState::Item PortState::next(Deadline deadline, Outcome& outcome, Sleeping how) {
  // Of all system calls here only the wait is a point of cancellation.
  const NoCancel guard;
  constexpr std::size_t kMostAtOnce = 32;
  std::array<epoll_event, kMostAtOnce> events;
  const std::size_t most = limits.by_priority ? events.size() : 1;
  for (;;) {
    if (backlog.load(std::memory_order_relaxed) != 0) {
      // Before the first of those that wait is taken, all others who have rung are among them.
      bool closing_too = false;
      constexpr int kMostRounds = 64;
      std::size_t count = limits.by_priority ? most : 0;
      for (int round = 0; round < kMostRounds && count == most; ++round) {
        const int found = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(most), 0);
        count = found > 0 ? static_cast<std::size_t>(found) : 0;
        if (Item only = sort(std::span(events).first(count), closing_too)) queue(std::move(only));
      }
      if (Item item = take_queued()) return item;
    }
    bool only_look = deadline.is_now();
    if (!only_look && how.restartable && !limits.by_priority && vigil.pays()) {
      Vigil watch(*this);
      if (watch.kept()) {
        const Counted asleep(&sleeping);
        outcome = watch.sleep(deadline, how.cancellable);
        Item item{.session = watch.end(), .notice = nullptr};
        if (outcome == Outcome::ok) vigil.account(static_cast<bool>(item));
        if (item) {
          if (backlog.load(std::memory_order_relaxed) == 0) return item;
          queue(std::move(item));
          continue;
        }
        if (outcome == Outcome::interrupted) return {};
        only_look = true;
      }
    }
    const Deadline until = only_look ? Deadline::now() : deadline;
    timespec left = until.left();
    int cancel_state = 0;
    const Counted asleep(only_look ? nullptr : &sleeping);
    std::optional<HeldSignals> held;
    bool interrupted = false;
    if (!only_look && !how.restartable) {
      held.emplace();
      interrupted = SignalCount::now() != how.since;  // what is there already is taken all the same
      if (interrupted) left = {};
    }
    const bool cancellable = (how.cancellable || guard.was_cancellable()) && !only_look;
    // A process that is stopped and continued stays in ppoll, while epoll_pwait2 ends with EINTR.
    // But of several threads that poll each would be woken each time.
    const bool exact = !only_look && !how.restartable && sleeping.load() == 1;
    pollfd any{.fd = epoll.get(), .events = POLLIN, .revents = 0};
    const timespec* const time = until.is_never() && !interrupted ? nullptr : &left;
    const sigset_t* const mask = held ? held->before() : nullptr;
    if (cancellable) ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel_state);
    int count =
        exact ? ::ppoll(&any, 1, time, mask)
              : ::epoll_pwait2(epoll.get(), events.data(), static_cast<int>(most), time, mask);
    const int error = errno;  // handlers may run now
    if (cancellable) ::pthread_setcancelstate(cancel_state, nullptr);
    held.reset();
    if (count > 0 && exact) {
      count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(most), 0);
      if (count == 0) continue;  // somebody else has taken it
    }
    if (count < 0 && error == EINTR && !exact && SignalCount::now() == how.since &&
        !catches_signals())
      continue;
    if (count == 0 && interrupted) {
      outcome = Outcome::interrupted;
      return {};
    }
    if (count == 0 && only_look && monotonic_ns() < deadline.at()) continue;
    if (count == 0 || (count < 0 && error != EINTR)) {
      outcome = deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
      return {};
    }
    if (count < 0) {
      outcome = Outcome::interrupted;
      return {};
    }
    bool closing_too = false;
    Item only = sort(std::span(events).first(static_cast<std::size_t>(count)), closing_too);
    if (closing_too) {
      if (only) queue(std::move(only));
      outcome = Outcome::finished;
      return {};
    }
    if (only) return only;
  }
}

[[gnu::hot]] void PortState::release(const SessionPointer& session) noexcept {
  // Each time that it parks it may be rung for once. Each packet is an edge of its own, so that
  // doorbells can lie until there are many; but a full socket could not be rung any more.
  if (++session->parks % kParksPerDrain == 0) session->drain();
  Waiter::park_on_descriptor(session->control().server);
  session->release();
  // What came before these two lines rang no bell that anyone heeded.
  const bool gone = over(*session);
  if (!gone && !session->ready()) return;
  if (!session->claim()) return;
  if (gone && !session->ready_one_way())
    drop(session);
  else if (session->ready())
    queue({.session = session, .notice = nullptr});
  else
    release(session);
}

void PortState::drop(const SessionPointer& session) noexcept {
  // Others may still refer to the session; its client shall know now.
  ::shutdown(session->socket(), SHUT_RDWR);
  std::uint64_t watch = 0;
  {
    const std::lock_guard guard(lock);
    const auto found = sessions.find(session->id);
    if (found == sessions.end()) return;
    watch = found->second.watch;
    sessions.erase(found);
    const auto user = per_user.find(session->caller.uid);
    if (--user->second == 0) per_user.erase(user);
  }
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, session->socket(), nullptr);
  Reactor::here().forget(session->socket(), watch);
  vigil.disturb();  // who keeps it refers to the session
}

void PortState::close_sessions(const Endpoint* endpoint) noexcept {
  std::vector<SessionPointer> idle_ones;
  try {
    const std::lock_guard guard(lock);
    for (const auto& [id, entry] : sessions)
      if (endpoint == nullptr || entry.session->endpoint.get() == endpoint)
        if (entry.session->claim()) idle_ones.push_back(entry.session);
    // Those that wait for a thread are claimed already.
    admit_late();
    for (auto item = waiting.begin(); item != waiting.end();) {
      const SessionPointer& session = item->second.session;
      if (session && (endpoint == nullptr || session->endpoint.get() == endpoint)) {
        idle_ones.push_back(session);
        item = waiting.erase(item);
      } else {
        ++item;
      }
    }
    backlog.store(waiting.size(), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): those close later
  }
  for (const SessionPointer& session : idle_ones) drop(session);
}

void PortState::close() noexcept {
  if (closed.exchange(true)) return;
  std::vector<std::shared_ptr<Endpoint>> open;
  {
    const std::lock_guard guard(lock);
    for (const auto& endpoint : endpoints)
      if (auto alive = endpoint.lock()) open.push_back(std::move(alive));
  }
  for (const auto& endpoint : open) endpoint->close();
  // Nobody will receive these any more, and each keeps an endpoint, which keeps the port.
  std::vector<Item> notices;  // destroyed without the lock
  try {
    const std::lock_guard guard(lock);
    for (auto item = waiting.begin(); item != waiting.end();) {
      if (!item->second.notice) {
        ++item;
        continue;
      }
      notices.push_back(std::move(item->second));
      item = waiting.erase(item);
    }
    backlog.store(waiting.size() + late.size(), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): they stay, and it with them
  }
  const std::uint64_t one = 1;
  (void)!::write(closing.get(), &one, sizeof one);
}

std::byte* RequestBuffer::reserve(std::size_t size, Charge charge) noexcept {
  if (!charge) return nullptr;
  if (size > memory_.size()) {
    memory_.reset();
    const std::size_t pages = round_up_to_pages(size);
    if (pages < size) return nullptr;
    void* address =
        ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    memory_ = Mapping(address, pages);
  }
  charge_ = std::move(charge);
  return memory_.data();
}

void RequestBuffer::release() noexcept {
  constexpr std::size_t kKeep = std::size_t{32} << 20;
  if (memory_.size() > kKeep) memory_.reset();
  charge_ = {};
}

}  // namespace call

using call::PortState;
using call::ServerSession;
using call::SessionPointer;

namespace {

// A thread that serves one client without pause looks this often whether others wait.
constexpr unsigned kServesPerLook = 32;
// And so often where the most urgent is to be served at any time: a look costs a system call.
#if defined(__x86_64__)
constexpr std::uint64_t kTicksPerLook = 20'000;  // 6 to 10 us
#else
constexpr std::uint64_t kTicksPerLook = 7'000;
#endif

}  // namespace

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

bool Port::has_idle_thread() const noexcept {
  // Pairs with the light one in receive(): of two threads that begin to serve at the same time at
  // least one learns that the other does, too.
  asymmetric_fence_heavy();
  const std::lock_guard guard(state_->lock);
  return std::ranges::any_of(state_->threads, [](const std::atomic<bool>* receiving) {
    return receiving->load(std::memory_order_relaxed);
  });
}

void Port::close() noexcept { state_->close(); }

void Port::post(std::shared_ptr<Endpoint> endpoint, std::uint8_t priority) {
  state_->queue({.session = nullptr, .notice = std::move(endpoint), .notice_priority = priority});
}

std::uint64_t Port::listen(int fd, std::shared_ptr<Source> source) {
  std::uint64_t id = 0;
  {
    const std::lock_guard guard(state_->lock);
    id = state_->next_id++;
    state_->sources.emplace(id, std::move(source));
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

void Port::set_enabled(int fd, std::uint64_t source, bool on) noexcept {
  // Nothing that is not wanted can be told so often that it does harm: errors and hang-ups are told
  // in any case, hence the edge.
  epoll_event event{.events = on ? std::uint32_t{EPOLLIN} : EPOLLET, .data = {.u64 = source}};
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

void Port::forget(int fd, std::uint64_t source) noexcept {
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::shared_ptr<Source> last;  // destroyed without the lock
  const std::lock_guard guard(state_->lock);
  const auto found = state_->sources.find(source);
  if (found == state_->sources.end()) return;
  last = std::move(found->second);
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

const CallerIdentity* Incoming::identity() const noexcept {
  return session_ ? &session_->identity() : nullptr;
}

void Incoming::refuse(int error) noexcept {
  if (!session_) return;
  session_->end_serving();
  session_->refuse(error);
  port_->release(session_);
  session_ = nullptr;
  port_ = nullptr;
}

ServerThread::ServerThread(Port& port, WaitMode mode, ClientDeathObserver* observer)
    : state_(port.state_), mode_(mode), observer_(observer), generation_(process::generation()) {
  const std::lock_guard guard(state_->lock);
  state_->threads.push_back(&receiving_);
}

ServerThread::~ServerThread() {
  if (generation_ != process::generation()) {
    process::leak_in_child(state_);
    process::leak_in_child(attending_);
    return;
  }
  leave();
  const std::lock_guard guard(state_->lock);
  std::erase(state_->threads, &receiving_);
}

[[gnu::hot]] void ServerThread::attend(SessionPointer session) noexcept {
  Waiter::unpark(session->control().server);
  session->waiter().resume();
  attending_ = std::move(session);
}

// Goes back to the pool: from now on the client has to ring.
[[gnu::hot]] void ServerThread::leave() noexcept {
  if (!attending_) return;
  const SessionPointer session = std::exchange(attending_, nullptr);
  state_->release(session);
  if (observer_ != nullptr) observer_->left();
}

// Takes the request that is ready. False: there is nothing to serve after all.
[[gnu::hot]] bool ServerThread::take(Incoming& incoming) {
  ServerSession& session = *attending_;
  call::Request& request = incoming.request_;
  if (!session.take_short(incoming.inline_, request) && !take_long(incoming)) return false;
  if (!request.wants_reply && !state_->limits.one_way) [[unlikely]] {
    request = {};
    process::close_later(session.caller.uid, std::move(incoming.descriptors_));
    state_->drop(std::exchange(attending_, nullptr));
    return false;
  }
  incoming.notice_ = false;
  incoming.caller_ = session.caller;
  // Mostly they are the same as last time; a look is cheaper than counting them up and down.
  if (incoming.endpoint_ != session.endpoint) incoming.endpoint_ = session.endpoint;
  if (request.wants_reply) {
    session.begin_serving(observer_);
    incoming.session_ = std::move(attending_);
    if (incoming.port_ != state_) incoming.port_ = state_;
  }
  return true;
}

bool ServerThread::take_long(Incoming& incoming) {
  Outcome outcome = Outcome::broken;
  const call::Destination to{.inline_data = incoming.inline_,
                             .large = incoming.large_,
                             .limits = state_->limits,
                             .descriptors = incoming.descriptors_,
                             .observer = observer_};
  try {
    outcome = attending_->take(to, incoming.request_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for this client
  }
  if (outcome == Outcome::ok) return true;
  incoming.request_ = {};
  process::close_later(attending_->caller.uid, std::move(incoming.descriptors_));
  if (outcome != Outcome::would_block) state_->drop(std::exchange(attending_, nullptr));
  return false;
}

[[gnu::hot]] bool ServerThread::look_due() noexcept {
  if (!state_->limits.by_priority) return ++serves_ % kServesPerLook == 0;
  const std::uint64_t now = ticks();
  if (now - looked_ < kTicksPerLook) return false;
  looked_ = now;
  return true;
}

// Turns to somebody else who waits, if there is anybody. True: it was a notice.
bool ServerThread::look_around(Incoming& incoming) {
  PortState::Item other = state_->next(Deadline::now(), wait_outcome_, {});
  if (!other) return false;
  // Who has waited goes before who comes anew, unless that one is more urgent.
  if (state_->limits.by_priority && attending_->ready() &&
      attending_->priority() > other.priority()) {
    state_->queue(std::move(other));
    return false;
  }
  leave();
  if (other.session) {
    incoming.crowded_ = state_->sleeping.load(std::memory_order_relaxed) == 0;
    attend(std::move(other.session));
    return false;
  }
  incoming.endpoint_ = std::move(other.notice);
  incoming.notice_ = true;
  return true;
}

[[gnu::hot]] Outcome ServerThread::next(Incoming& incoming, Deadline deadline, SignalCount since) {
  for (;;) {
    if (state_->closed) {
      leave();
      return Outcome::finished;
    }
    if (attending_) {
      // One client that never pauses must not keep the others waiting.
      if (look_due() && look_around(incoming)) return Outcome::ok;
      ServerSession& session = *attending_;
      const Outcome outcome = session.waiter().linger(
          session.control().server, session.control().client, [&] { return session.arrived(); });
      if (outcome == Outcome::ok && !state_->over(session)) {
        if (state_->limits.by_priority && session.ready_after_others()) {
          if (look_around(incoming)) return Outcome::ok;
          if (!attending_->ready()) continue;
        }
        if (take(incoming)) return Outcome::ok;
        continue;
      }
      leave();
    }
    PortState::Item item =
        state_->next(deadline, wait_outcome_,
                     {.cancellable = cancellable_, .restartable = restartable_, .since = since});
    if (!item) return wait_outcome_;
    if (item.notice) {
      incoming.endpoint_ = std::move(item.notice);
      incoming.notice_ = true;
      return Outcome::ok;
    }
    attend(std::move(item.session));
    if (attending_->ready() && take(incoming)) return Outcome::ok;
    leave();
  }
}

[[gnu::hot]] Outcome ServerThread::receive(Incoming& incoming, Deadline deadline,
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
  const call::Said receiving(receiving_);
  return next(incoming, deadline, since);
}

[[gnu::hot]] Outcome ServerThread::reply(Incoming& incoming, std::span<const std::byte> data,
                                         std::span<const int> descriptors, std::int64_t status) {
  if (!incoming.session_) throw MisuseError("reply to what wants no reply, or has had it");
  incoming.session_->end_serving();
  if (data.size() <= kInlineBytes && descriptors.empty()) [[likely]] {
    incoming.session_->reply_shortly(data, status);
  } else {
    const Outcome outcome = reply_at_length(incoming, data, descriptors, status);
    if (outcome != Outcome::ok) return outcome;
  }
  leave();
  attending_ = std::move(incoming.session_);
  return Outcome::ok;
}

Outcome ServerThread::reply_at_length(Incoming& incoming, std::span<const std::byte> data,
                                      std::span<const int> descriptors, std::int64_t status) {
  Outcome outcome = Outcome::peer_gone;
  try {
    outcome = incoming.session_->reply(data, descriptors, status, state_->limits.patience);
  } catch (const SystemError& error) {
    // A bad descriptor, say, leaves the client waiting for a better reply.
    const int code = error.code().value();
    if (code != EPIPE && code != ECONNRESET && code != ETIMEDOUT) {
      incoming.session_->begin_serving(observer_);
      throw;
    }
  }
  if (outcome != Outcome::ok) state_->drop(std::exchange(incoming.session_, nullptr));
  return outcome;
}

}  // namespace farcall
