// SPDX-License-Identifier: Apache-2.0
#include "bridge/exporter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace farcall::bridge {
namespace {

// A local call that takes less is made by the thread that waits for the cluster: to wake another
// one would take longer.
constexpr std::int64_t kQuickNs = 50'000;
constexpr std::int64_t kWaitMs = 200;  // for the cluster; then it is looked whether to stop

std::int64_t since_ns(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

}  // namespace

ExportedName::ExportedName(const Name& exported, Sessions& sessions, Ticker& ticker,
                           unsigned workers)
    : name(exported),
      sessions_(sessions),
      ticker_(ticker),
      most_workers_(workers),
      local_(exported.local == Local::door ? local_door(exported.path)
                                           : local_channel(exported.path)) {
  const std::lock_guard guard(lock_);
  add_thread();
}

ExportedName::~ExportedName() {
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

void ExportedName::look_for_server() {
  const bool there = !stop_ && local_->present();
  if (there == serves_) return;
  if (!there) return stop_listening();
  {
    const std::lock_guard guard(subscription_lock_);
    if (subscription_) return;  // the last one is not empty yet
  }
  Subscription fresh = sessions_.connection().subscribe_queue(name.subject);
  {
    const std::lock_guard guard(subscription_lock_);
    subscription_ = std::shared_ptr<natsSubscription>(fresh.release(), natsSubscription_Destroy);
  }
  serves_ = true;
  changed_.notify_all();
}

// With the lock held.
void ExportedName::add_thread() {
  if (threads_.size() >= most_workers_ || stop_) return;
  threads_.emplace_back([this] { run(); });
}

Msg ExportedName::next() {
  std::shared_ptr<natsSubscription> subscription;
  {
    const std::lock_guard guard(subscription_lock_);
    subscription = subscription_;
  }
  if (!subscription) {
    std::unique_lock lock(lock_);
    changed_.wait_for(lock, std::chrono::milliseconds(kWaitMs),
                      [this] { return stop_ || serves_ || !ready_.empty(); });
    return Msg();
  }
  natsMsg* message = nullptr;
  if (::natsSubscription_NextMsg(&message, subscription.get(), kWaitMs) == NATS_OK)
    return Msg(message);
  if (::natsSubscription_IsValid(subscription.get())) return Msg();
  const std::lock_guard guard(subscription_lock_);
  if (subscription_ == subscription) subscription_ = nullptr;
  return Msg();
}

void ExportedName::run() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Worker worker;
  std::unique_lock lock(lock_);
  while (!stop_) {
    if (!ready_.empty()) {
      auto session = std::move(ready_.front());
      ready_.pop_front();
      lock.unlock();
      serve(worker, std::move(session));
      lock.lock();
    } else if (!led_) {
      led_ = true;
      lead(worker, lock);
    } else {
      ++idle_;
      changed_.wait(lock, [this] { return stop_ || !led_ || !ready_.empty(); });
      --idle_;
    }
  }
}

// One more thread has something to do. With the lock held.
void ExportedName::call_thread() {
  if (idle_ == 0) add_thread();
  changed_.notify_one();
}

// As the one who waits for the cluster. Comes back when somebody else does, or is to.
void ExportedName::lead(Worker& worker, std::unique_lock<std::mutex>& lock) {
  while (!stop_ && ready_.empty()) {
    lock.unlock();
    Msg message = next();
    auto session = message ? admit(std::move(message)) : nullptr;
    const bool quick = usual_ns_ < kQuickNs;
    const std::uint64_t turn = ++turn_;
    if (session && quick) {
      leader_busy_ = true;
      serve(worker, std::move(session));
      leader_busy_ = false;
    }
    lock.lock();
    if (turn_ != turn) return;  // the ticker has found it slow: led_ is somebody else's
    if (!session) continue;
    led_ = false;
    call_thread();
    lock.unlock();
    serve(worker, std::move(session));
    lock.lock();
    return;
  }
  led_ = false;
  call_thread();
}

bool ExportedName::tick() {
  const bool busy = leader_busy_;
  const std::uint64_t turn = turn_;
  const bool stuck = busy && looked_busy_ && turn == looked_turn_;
  looked_busy_ = busy;
  looked_turn_ = turn;
  if (!stuck) return busy;
  const std::lock_guard guard(lock_);
  if (!leader_busy_ || turn_ != turn) return true;
  ++turn_;
  leader_busy_ = false;
  looked_busy_ = false;
  led_ = false;
  call_thread();
  return true;
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
  bool malformed = false;
  if (message.has_request_header()) {
    const std::optional<Header> told = message.request_header();
    malformed = !told || (told->kind != Kind::call && told->kind != Kind::one_way &&
                          told->kind != Kind::pulse && told->kind != Kind::probe);
    if (told) header = *told;
  }
  if (header.kind == Kind::probe && !malformed) return nullptr;
  const std::size_t here = message.data().size();
  malformed = malformed || header.total < here || (header.total > here && message.reply().empty());
  const auto session = sessions_.add(std::move(message), header);
  session->owner = this;
  if (header.kind != Kind::call && header.total == here) session->reply_to.clear();
  ticker_.wake();
  if (malformed) {
    ++statistics.malformed;
    return refuse(session, EPROTO);
  }
  if (header.total > kLongest) return refuse(session, name.local == Local::door ? E2BIG : EMSGSIZE);
  if (header.message) {
    const std::string_view importer = session->first.reply();  // the last word is the message's own
    session->strand = fmt::format("{}:{}:{}", importer.substr(0, importer.rfind('.')),
                                  header.caller.connection, header.caller.tid);
  }
  if (header.total == here) return enter_strand(session) ? session : nullptr;
  {
    const std::lock_guard guard(session->lock);
    if (!sessions_.reserve(*session, header.total)) return refuse(session, ENOBUFS);
    session->request.reserve(header.total);
    const std::span<const std::byte> first = session->first.data();
    session->request.assign(first.begin(), first.end());
    session->assembling = true;
  }
  enter_strand(session);  // it keeps its place there
  const std::lock_guard guard(session->lock);
  sessions_.grant(*session, kWindow);
  return nullptr;
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
  ready_.push_back(session);
  call_thread();
}

void ExportedName::pass_over(const std::shared_ptr<Session>& session) {
  {
    const std::lock_guard guard(lock_);
    if (const auto strand = strands_.find(session->strand);
        strand != strands_.end() && !session->at_head) {
      std::erase(strand->second, session);
      return;
    }
  }
  if (const auto next = next_of_strand(*session)) serve_soon(next);
}

void ExportedName::serve(Worker& worker, std::shared_ptr<Session> session) {
  while (session) {
    perform(worker, session);
    session = next_of_strand(*session);
  }
}

// The next of its strand that can be served, or nothing.
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
  return next->assembling ? nullptr : next;  // serve_soon() comes when it is whole
}

void ExportedName::perform(Worker& worker, const std::shared_ptr<Session>& session) {
  const Kind kind = session->header.kind;
  const auto begin = Clock::now();
  LocalAnswer answer;
  {
    const std::lock_guard guard(session->lock);
    session->worker = &worker;
  }
  if (session->cancelled) {
    answer.error = EINTR;
  } else if (kind == Kind::pulse) {
    ++statistics.pulses;
    answer.error = local_->pulse(session->header);
  } else if (kind == Kind::one_way) {
    ++statistics.one_way;
    answer.error = local_->one_way(worker, session->header, session->data());
  } else {
    ++statistics.calls;
    ++statistics.in_progress;
    answer = local_->call(worker, session->header, session->data(), session->cancelled);
    --statistics.in_progress;
  }
  {
    const std::lock_guard guard(session->lock);
    session->worker = nullptr;
  }
  worker.settle();
  if (session->timed_out && answer.error == EINTR) answer.error = ETIMEDOUT;
  if (answer.not_taken) stop_listening();  // until it is looked for again
  const std::int64_t took = since_ns(begin);
  usual_ns_ = (usual_ns_ * 7 + took) / 8;
  if (session->cancelled) ++statistics.cancelled;
  if (answer.error != 0) statistics.failed(answer.error);
  if (answer.error == 0 && kind == Kind::call) {
    ++statistics.answered;
    statistics.latencies.add(std::chrono::nanoseconds(took));
  }
  sessions_.answer(session, answer);
  worker.shrink();
}

}  // namespace farcall::bridge
