// SPDX-License-Identifier: Apache-2.0
#include "bridge/exporter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace farcall::bridge {
namespace {

// A local call that takes less is made by the reader; the second is for when processors are scarce.
constexpr std::int64_t kQuickNs = 50'000;
constexpr std::int64_t kCrowdedQuickNs = 1'000'000;
constexpr unsigned kAtOnce = 16;  // calls, before the reader looks after others again

std::int64_t since_ns(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

// Bytes that a call costs beside its data: its session, its places in queues, and what libnats has
// of it. The reply subject is there several times.
std::uint64_t cost_of(const Msg& message) noexcept {
  constexpr std::uint64_t kSession = 2048;
  return kSession + message.data().size() + 4 * message.reply().size();
}

}  // namespace

ExportedName::ExportedName(const Name& exported, Sessions& sessions, Ticker& ticker,
                           unsigned workers)
    : name(exported),
      sessions_(sessions),
      waiting_(sessions.memory().most() / 2),
      in_pieces_(sessions.memory().most()),
      ticker_(ticker),
      most_workers_(workers),
      local_(exported.local == Local::door ? local_door(exported.path)
                                           : local_channel(exported.path)) {}

ExportedName::~ExportedName() { join(); }

void ExportedName::join() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  stop_listening();
  changed_.notify_all();
  for (;;) {
    std::list<std::thread> all;
    {
      const std::lock_guard guard(lock_);
      all.swap(threads_);
    }
    if (all.empty()) return;
    for (std::thread& thread : all) thread.join();
  }
}

// What has come already is still taken.
void ExportedName::stop_listening() {
  if (!serves_.exchange(false)) return;
  const std::lock_guard guard(subscription_lock_);
  if (subscription_) ::natsSubscription_Drain(subscription_.get());
}

// One that keeps who asks waiting is asked less often: the thread that asks is that of all names.
bool ExportedName::has_server() {
  const Clock::time_point begin = Clock::now();
  if (!serves_ && begin < ask_again_) return false;
  const bool there = local_->present();
  const Clock::time_point end = Clock::now();
  if (!there) ask_again_ = end + 4 * (end - begin);
  return there;
}

void ExportedName::take_early(Msg message) {
  const Inside taking(taking_);
  if (const auto session = admit(std::move(message))) serve_soon(session);
}

void ExportedName::look_for_server() {
  const bool there = !stop_ && has_server();
  if (serves_ && sessions_.connection().link_number() != subscribed_on_) {
    const std::lock_guard guard(subscription_lock_);
    subscription_ = nullptr;
    serves_ = false;
  }
  if (there == serves_) return;
  if (!there) return stop_listening();
  if (!forget_drained()) return;
  // Who reads may have the first call before this has come back.
  const std::lock_guard guard(subscription_lock_);
  Subscription fresh = sessions_.connection().subscribe_queue(name.subject, subscribed_on_);
  subscription_ = std::shared_ptr<natsSubscription>(fresh.release(), natsSubscription_Destroy);
  serves_ = true;
}

// Whether nothing can come any more by the subscription that was given up.
bool ExportedName::forget_drained() {
  std::shared_ptr<natsSubscription> old;
  {
    const std::lock_guard guard(subscription_lock_);
    old = subscription_;
  }
  if (!old) return taking_ == 0;
  int left = 0;
  if (::natsSubscription_IsValid(old.get())) {
    if (::natsSubscription_GetPending(old.get(), &left, nullptr) == NATS_OK && left != 0)
      return false;
    const Inside taking(taking_);
    // It is libnats's way: who waits for a message hears that there are none any more.
    Msg message = next(1);
    if (const auto session = message ? admit(std::move(message)) : nullptr) serve_soon(session);
    if (::natsSubscription_IsValid(old.get())) return false;
  }
  const std::lock_guard guard(subscription_lock_);
  subscription_ = nullptr;
  return taking_ == 0;
}

// If there is one to be had; else it is tried again with the next call. With the lock held.
void ExportedName::add_thread() {
  if (threads_.size() >= most_workers_ || stop_) return;
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    return;
  }
}

// The next that has been taken in, or nothing.
Msg ExportedName::next(std::int64_t wait_ms, bool* more) {
  std::shared_ptr<natsSubscription> subscription;
  {
    const std::lock_guard guard(subscription_lock_);
    subscription = subscription_;
  }
  natsMsg* message = nullptr;
  natsStatus status = NATS_NO_RESPONDERS;  // what anybody may publish: it is none
  while (subscription && status == NATS_NO_RESPONDERS)
    status = ::natsSubscription_NextMsg(&message, subscription.get(), wait_ms);
  if (status != NATS_OK) return Msg();
  int left = 0;
  if (more != nullptr)
    *more =
        ::natsSubscription_GetPending(subscription.get(), &left, nullptr) == NATS_OK && left > 0;
  return Msg(message);
}

void ExportedName::run() {
  Worker::block_signals();
  Worker worker;
  std::unique_lock lock(lock_);
  while (!stop_) {
    if (ready_.empty()) {
      ++idle_;
      changed_.wait(lock, [this] { return stop_ || !ready_.empty(); });
      --idle_;
      continue;
    }
    auto session = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    serve(worker, std::move(session));
    lock.lock();
  }
}

// Whether the thread would be scheduled otherwise meanwhile. Who reads does so for all names, and
// not as the client of one would have it.
bool ExportedName::wants_other(const Worker& worker, const Header& header) const noexcept {
  return name.local == Local::channel && header.kind != Kind::pulse &&
         worker.would_change(header.priority);
}

// Answers wait for each other as long as there are more calls.
bool ExportedName::take(Reader& reader, Worker& worker, std::uint64_t& taken) {
  const std::int64_t quick_ns = ticker_.crowded() ? kCrowdedQuickNs : kQuickNs;
  bool leads = true;
  for (unsigned i = 0; leads && i < kAtOnce; ++i) {
    bool more = false;
    std::shared_ptr<Session> session;
    {
      const Inside taking(taking_);
      Msg message = next(0, &more);
      if (!message) break;
      ++taken;
      session = admit(std::move(message));
    }
    if (!session) continue;
    if (usual_ns_ >= quick_ns || wants_other(worker, session->header) ||
        with_leader_.exchange(true)) {
      serve_soon(session);
      continue;
    }
    leads = reader.serve([&] {
      Connection::gather(more);
      serve(worker, std::move(session));
      Connection::gather(false);
      with_leader_ = false;
    });
  }
  sessions_.connection().send();
  return leads;
}

std::shared_ptr<Session> ExportedName::refuse(const std::shared_ptr<Session>& session, int error) {
  statistics.failed(error);
  sessions_.answer(session, {.error = error});
  return nullptr;
}

// A session that is to be served now; or nothing, where it waits for others or its pieces.
std::shared_ptr<Session> ExportedName::admit(Msg message) {
  Header header{.kind = message.reply().empty() ? Kind::one_way : Kind::call};
  header.total = message.data().size();
  header.room = kLongest;
  header.bound_ms = 0;
  bool malformed = false;
  if (message.has_request_header()) {
    const std::optional<Header> told = message.request_header();
    malformed = !told || (told->kind != Kind::call && told->kind != Kind::one_way &&
                          told->kind != Kind::pulse && told->kind != Kind::probe);
    if (told) header = *told;
  }
  if (header.kind == Kind::probe && !malformed) return nullptr;
  if (!message.reply().empty() && !sessions_.may_answer(message.reply())) {
    ++statistics.malformed;
    return nullptr;
  }
  const std::size_t here = message.data().size();
  const std::uint64_t cost = cost_of(message);
  malformed = malformed || header.total < here || (header.total > here && message.reply().empty());
  const bool answers = header.kind == Kind::call || header.total != here;
  const auto session = sessions_.add(*this, std::move(message), header, answers);
  ticker_.wake();
  if (malformed) {
    ++statistics.malformed;
    return refuse(session, EPROTO);
  }
  if (header.total > kLongest) return refuse(session, name.local == Local::door ? E2BIG : EMSGSIZE);
  // Calls that wait for a slow server would else take all the memory there is.
  if (!session->place.take(waiting_, cost) || !session->memory.take(sessions_.memory(), cost) ||
      (header.total != here && !sessions_.hold_pieces(*session, header.total)))
    return refuse(session, ENOBUFS);
  if (header.message) {
    const std::string_view importer = session->first.reply();  // the last word is the message's own
    session->strand = fmt::format("{}:{}:{}", importer.substr(0, importer.rfind('.')),
                                  header.caller.connection, header.caller.tid);
  }
  if (header.total == here) return enter_strand(session) ? session : nullptr;
  if (!begin_assembling(*session)) return refuse(session, ENOBUFS);
  enter_strand(session);  // it keeps its place there
  const std::lock_guard guard(session->lock);
  sessions_.grant(*session, session->window.open());
  return nullptr;
}

// False: there is no memory for the request.
bool ExportedName::begin_assembling(Session& session) {
  const std::span<const std::byte> first = session.first.data();
  const std::lock_guard guard(session.lock);
  try {
    session.request.reserve(session.header.total);
  } catch (const std::bad_alloc&) {
    return false;
  }
  session.request.assign(first.begin(), first.end());
  session.assembling = true;
  return true;
}

// Whether it may be served now: nothing of the same strand is.
bool ExportedName::enter_strand(const std::shared_ptr<Session>& session) {
  if (session->strand.empty()) return true;
  const std::lock_guard guard(lock_);
  const auto [strand, fresh] = strands_.try_emplace(session->strand);
  session->at_head = fresh;
  if (!fresh) strand->second.push_back(session);
  return fresh;
}

void ExportedName::serve_soon(const std::shared_ptr<Session>& session) {
  const std::lock_guard guard(lock_);
  if (!session->at_head) return;  // it will be served in its turn
  if (!std::exchange(session->begun, true)) make_ready(session);
}

// With the lock held.
void ExportedName::make_ready(const std::shared_ptr<Session>& session) {
  ready_.push_back(session);
  if (ready_.size() > idle_) add_thread();
  changed_.notify_one();
}

void ExportedName::pass_over(const std::shared_ptr<Session>& session) {
  {
    const std::lock_guard guard(lock_);
    if (const auto strand = strands_.find(session->strand);
        strand != strands_.end() && !session->at_head) {
      std::erase(strand->second, session);
      return;
    }
    if (std::exchange(session->begun, true)) return;  // who serves it goes on
  }
  make_next_ready(*session);
}

// Somebody else than the caller serves what was behind it.
void ExportedName::make_next_ready(const Session& session) {
  const auto next = next_of_strand(session);
  if (!next) return;
  const std::lock_guard guard(lock_);
  make_ready(next);
}

void ExportedName::withdraw_cancelled() {
  std::vector<std::shared_ptr<Session>> at_head;
  std::vector<std::shared_ptr<Session>> behind;
  const auto take_from = [](std::deque<std::shared_ptr<Session>>& queue, auto& into) {
    const auto first = std::stable_partition(
        queue.begin(), queue.end(), [](const auto& session) { return !session->cancelled; });
    into.insert(into.end(), first, queue.end());
    queue.erase(first, queue.end());
  };
  {
    const std::lock_guard guard(lock_);
    take_from(ready_, at_head);
    for (auto& [name_of_strand, strand] : strands_) take_from(strand, behind);
  }
  for (const auto* const all : {&at_head, &behind})
    for (const auto& session : *all) {
      ++statistics.cancelled;
      refuse(session, session->why_cancelled());
    }
  for (const auto& session : at_head) make_next_ready(*session);
}

void ExportedName::serve(Worker& worker, std::shared_ptr<Session> session) {
  while (session) {
    perform(worker, session);
    session = next_of_strand(*session);
  }
}

// The next of its strand that can be served, by the caller; or nothing.
std::shared_ptr<Session> ExportedName::next_of_strand(const Session& session) {
  if (session.strand.empty()) return nullptr;
  const std::lock_guard guard(lock_);
  const auto strand = strands_.find(session.strand);
  if (strand == strands_.end()) return nullptr;
  if (strand->second.empty()) {
    strands_.erase(strand);
    return nullptr;
  }
  auto next = std::move(strand->second.front());
  strand->second.pop_front();
  next->at_head = true;
  const std::lock_guard state(next->lock);
  if (next->assembling) return nullptr;  // serve_soon() comes when it is whole
  next->begun = true;
  return next;
}

LocalAnswer ExportedName::ask_server(Worker& worker, const Session& session) {
  try {
    if (session.cancelled) return {.error = EINTR};
    switch (session.header.kind) {
      case Kind::pulse: ++statistics.pulses; return {.error = local_->pulse(session.header)};
      case Kind::one_way:
        ++statistics.one_way;
        return {.error = local_->one_way(worker, session.header, session.data())};
      default:
        ++statistics.calls;
        const Inside progress(statistics.in_progress);
        return local_->call(worker, session.header, session.data(), session.cancelled);
    }
  } catch (const std::bad_alloc&) {  // before the server has seen it
    return {.error = ENOBUFS};
  }
}

void ExportedName::perform(Worker& worker, const std::shared_ptr<Session>& session) {
  const auto begin = Clock::now();
  {
    const std::lock_guard guard(session->lock);
    session->worker = &worker;
  }
  LocalAnswer answer = ask_server(worker, *session);
  worker.own_priority();
  {
    const std::lock_guard guard(session->lock);
    session->worker = nullptr;
  }
  worker.settle();
  if (answer.error == EINTR) answer.error = session->why_cancelled();
  if (answer.not_taken) stop_listening();  // until it is looked for again
  const std::int64_t took = since_ns(begin);
  usual_ns_ = (usual_ns_ * 7 + took) / 8;
  if (session->cancelled) ++statistics.cancelled;
  if (answer.error != 0) statistics.failed(answer.error);
  if (answer.error == 0 && session->header.kind == Kind::call) {
    ++statistics.answered;
    statistics.latencies.add(std::chrono::nanoseconds(took));
  }
  sessions_.answer(session, answer);
  worker.shrink();
}

}  // namespace farcall::bridge
