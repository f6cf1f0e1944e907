// SPDX-License-Identifier: Apache-2.0
//
// How what comes to a port gets to a thread: gathered, queued, taken in turn.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "call/port.hpp"

namespace farcall::call {

Item PortState::item_of(SessionPointer session) const {
  Item item;
  item.account = session->account;
  // Claims to be urgent are for ports that listen to them.
  if (limits.by_priority) item.priority = session->priority();
  item.session = std::move(session);
  return item;
}

// Who waits is told of by one descriptor that is readable. Threads that gather what comes take
// something at once, and mostly it is all.
void PortState::tell_queued() noexcept {
  const std::size_t count = waiting.size() + late.size();
  backlog.store(count, std::memory_order_relaxed);
  if (queued_told == (count != 0)) return;
  queued_told = count != 0;
  // By system calls that are no points of cancellation: threads come by that are about to leave.
  std::uint64_t value = 1;
  if (queued_told)
    ::syscall(SYS_write, queued.get(), &value, sizeof value);
  else
    ::syscall(SYS_read, queued.get(), &value, sizeof value);
}

bool PortState::queue(Item item, bool told) noexcept {
  const SessionPointer session = item.session;
  bool queued_it = false;
  try {
    const std::lock_guard guard(lock);
    // What is there when it closes is dropped; nobody would take what comes later.
    if (!closed) {
      if (session && limits.by_priority && !item.admitted && session->ready_after_others())
        late.push_back(std::move(item));
      else
        waiting.push(std::move(item), session && session->is_one_of_several_copies());
      if (told)
        tell_queued();
      else
        backlog.store(waiting.size() + late.size(), std::memory_order_relaxed);
      queued_it = true;
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): its client is told
  }
  if (!queued_it && session) drop(session);
  return queued_it;
}

void PortState::admit_late() noexcept {
  try {
    for (; !late.empty(); late.pop_front()) {
      late.front().late = true;
      waiting.push(late.front());
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): they wait a little longer
  }
}

// By priority, who takes something has listened to all.
Item PortState::take_waiting() {
  if (backlog.load(std::memory_order_relaxed) == 0) return {};
  // relaxed: it orders nothing.
  if (limits.by_priority || ticks() - gathered.load(std::memory_order_relaxed) > kTicksPerTurn)
    gather();
  const std::lock_guard guard(lock);
  admit_late();
  Item item = waiting.pop();
  tell_queued();
  return item;
}

bool PortState::others_precede(const ServerSession& session) noexcept {
  gather();
  if (backlog.load(std::memory_order_relaxed) == 0) {
    waiting.settle();
    return false;
  }
  const NoCancel guard;
  const bool ready = session.ready();
  const bool overtakes = limits.by_priority && session.ready_after_others() &&
                         session.account->deferred.load(std::memory_order_relaxed) != 0;
  const std::uint8_t priority = limits.by_priority ? session.priority() : std::uint8_t{0};
  const std::lock_guard held(lock);
  admit_late();
  const bool precede =
      !ready || overtakes ||
      waiting.precedes(*session.account, priority, session.is_one_of_several_copies());
  if (!precede) tell_queued();
  return precede;
}

void PortState::gather() noexcept {
  constexpr int kMostRounds = 64;
  std::array<epoll_event, kBatch> events;
  const timespec none{};
  gathered.store(ticks(), std::memory_order_relaxed);
  for (int round = 0; round < kMostRounds; ++round) {
    // By a system call that is no point of cancellation: mostly nobody is there.
    const long found = ::syscall(SYS_epoll_pwait2, epoll.get(), events.data(), events.size(), &none,
                                 nullptr, std::size_t{0});
    if (found <= 0) return;
    const NoCancel guard;
    bool closing_too = false;
    const auto count = static_cast<std::size_t>(found);
    if (Item only = sort(std::span(events).first(count), closing_too))
      queue(std::move(only), false);
    if (count < events.size()) return;
  }
}

// Something came from a client. Returns its session if there is a request to take.
SessionPointer PortState::on_event(std::uint64_t id, std::uint32_t events) {
  SessionPointer session = find(id);
  if (!session) {
    std::shared_ptr<ListenedSource> source;
    {
      const std::lock_guard guard(lock);
      const auto found = sources.find(id);
      if (found != sources.end()) source = found->second;
    }
    if (source) on_source(source);
    return nullptr;
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) session->tell_gone();
  if (!session->claim()) {  // the owner looks again when it leaves
    rung_in_vain(*session);
    return nullptr;
  }
  // What a client has sent one way before it went is still to be taken.
  if (over(*session) && !session->ready_one_way()) {
    drop(session);
    return nullptr;
  }
  if (session->ready()) return session;
  rung_in_vain(*session);
  release(session);
  return nullptr;
}

// Listened to at once, unless its user has had more than others: then it takes its turn.
void PortState::on_source(const std::shared_ptr<ListenedSource>& source) {
  const std::uint64_t since = ticks();
  if (waiting.ahead(*source->account) <= kTicksPerTurn) return serve(source, since);
  Item item;
  item.account = source->account;
  item.source = source;
  item.priority = source->priority;
  {
    const std::lock_guard guard(lock);
    if (source->waiting || source->fd < 0) return;
    source->waiting = true;
    source->account->deferred.fetch_add(1, std::memory_order_relaxed);
    listen_as_wanted(*source);
  }
  if (!queue(std::move(item), false)) listen_again(*source);
  waiting.charge_at_once(*source->account, kWeightOfUnawaited * (ticks() - since));
}

// From now on other threads, too, find what it brings, before what comes after it.
void PortState::listen_again(ListenedSource& source) noexcept {
  const std::lock_guard guard(lock);
  source.waiting = false;
  source.account->deferred.fetch_sub(1, std::memory_order_relaxed);
  listen_as_wanted(source);
}

// For its owner.
void PortState::take_sent_before(ServerSession& session) {
  const std::uint64_t since = ticks();
  const auto owner = session.endpoint->owner.lock();
  if (owner && !owner->take_sent_before(session.caller)) session.refuse_next(EAGAIN);
  waiting.charge_at_once(*session.account, kWeightOfUnawaited * (ticks() - since));
}

// Its sender has sent something else before, which goes before it. In its turn.
void PortState::serve_what_came_before(Item item) {
  take_sent_before(*item.session);
  item.late = false;
  item.admitted = true;
  queue(std::move(item), false);
}

// What has been done for it since then is its user's, too.
void PortState::serve(const std::shared_ptr<ListenedSource>& source, std::uint64_t since) {
  const std::size_t vain = source->source->on_readable();
  const std::uint64_t used = ticks() - since + vain * kTicksPerEvent;
  waiting.charge_at_once(*source->account, kWeightOfUnawaited * used);
}

void PortState::listen_as_wanted(const ListenedSource& source) const noexcept {
  if (source.fd < 0) return;
  // Nothing that is not wanted can be told so often that it does harm: errors and hang-ups are told
  // in any case, so the edge is asked for.
  const bool on = source.enabled && !source.waiting;
  epoll_event event{.events = on ? std::uint32_t{EPOLLIN} : EPOLLET, .data = {.u64 = source.id}};
  ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, source.fd, &event);
}

bool PortState::lacks_threads() const noexcept {
  if (sleeping.load(std::memory_order_relaxed) != 0) return false;
  pollfd any{.fd = epoll.get(), .events = POLLIN, .revents = 0};
  return backlog.load(std::memory_order_relaxed) != 0 || ::poll(&any, 1, 0) > 0;
}

Item PortState::sort(std::span<const epoll_event> events, bool& closing_too) {
  Item only;
  for (const epoll_event& event : events) {
    if (event.data.u64 == kClosing) {
      closing_too = true;
    } else if (event.data.u64 != kQueued) {
      // What this brings may be a notice, which is queued at once: it came later.
      if (only) queue(std::exchange(only, {}), false);
      SessionPointer session = on_event(event.data.u64, event.events);
      if (!session) continue;
      only = item_of(std::move(session));
      if (limits.by_priority && only.session->ready_after_others())
        queue(std::exchange(only, {}), false);
    }
  }
  if (only && backlog.load(std::memory_order_relaxed) != 0) queue(std::exchange(only, {}), false);
  return only;
}

// What waits, in turn; of descriptors, what they bring.
Item PortState::next_waiting() {
  constexpr int kMostSources = 64;
  for (int i = 0; i < kMostSources && backlog.load(std::memory_order_relaxed) != 0 && !closed;
       ++i) {
    Item item = take_waiting();
    if (item.source) {
      const std::uint64_t since = ticks();
      listen_again(*item.source);
      serve(item.source, since);
    } else if (item.late) {
      serve_what_came_before(std::move(item));
    } else {
      return item;
    }
  }
  // What came after something else may be queued, untold, and others are to take it.
  const std::lock_guard guard(lock);
  tell_queued();
  return {};
}

// Nobody has waited while a thread slept; one that was only kept from the processor has not been
// away for so long.
void PortState::has_slept(std::uint64_t since) noexcept {
  if (ticks() - since > 10 * kTicksPerTurn) waiting.settle();
}

bool PortState::is_over(Deadline deadline, const Sleeping& how, Outcome& outcome) const noexcept {
  if (!how.restartable && SignalCount::now() != how.since) {
    outcome = Outcome::interrupted;
    return true;
  }
  if (deadline.is_never() || monotonic_ns() < deadline.at()) return false;
  outcome = deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
  return true;
}

Item PortState::alone(Item item) noexcept {
  waiting.serve_only(*item.account);
  return item;
}

}  // namespace farcall::call
