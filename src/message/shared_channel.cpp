// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "call/limits.hpp"
#include "message/shared.hpp"
#include "message/thread.hpp"
#include "process/background.hpp"
#include "socket/acceptor.hpp"
#include "socket/answers.hpp"
#include "socket/peer.hpp"

namespace farcall::message {
namespace {

std::atomic<std::uint64_t> next_serial{1};

PortLimits limits() noexcept {
  PortLimits all = call::limits_of_process();
  all.request_bytes = std::min<std::size_t>(all.request_bytes, FARCALL_MESSAGE_MAX);
  all.by_priority = true;
  return all;
}

}  // namespace

// The calling thread is at work with its part of the channel, and perhaps receives.
class SharedChannel::AtWork {
 public:
  AtWork(SharedChannel& channel, Receiver& receiver, bool receives) noexcept
      : channel_(channel), receiver_(receiver), receives_(receives) {
    if (receives_) receiver_.waiting.store(true, std::memory_order_relaxed);
    alone_ = begin_alone();
    if (alone_) [[likely]]
      return;
    receiver_.wait_and_hold();
    if (receives_) channel_.receiving_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~AtWork() {
    if (receives_) {
      receiver_.waiting.store(false, std::memory_order_relaxed);
      if (alone_)
        channel_.alone_receiving_.store(false, std::memory_order_relaxed);
      else
        channel_.receiving_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (alone_)
      receiver_.be_alone(false);
    else
      receiver_.let_go();
  }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  SharedChannel& channel_;
  Receiver& receiver_;
  // Only the first receiver ever finds that the channel is not crowded.
  bool begin_alone() noexcept {
    if (channel_.crowded_.load(std::memory_order_acquire)) return false;
    if (receives_) channel_.alone_receiving_.store(true, std::memory_order_relaxed);
    receiver_.be_alone(true);
    if (!channel_.crowded_.load(std::memory_order_acquire)) [[likely]]
      return true;
    receiver_.be_alone(false);
    if (receives_) channel_.alone_receiving_.store(false, std::memory_order_relaxed);
    return false;
  }

  const bool receives_;
  bool alone_;
};

// Whoever connects to a name gets what it has to give.
class SharedChannel::Listener final : public process::Watch,
                                      public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::weak_ptr<SharedChannel> channel, UniqueFd socket, bool for_status)
      : channel_(std::move(channel)), acceptor_(std::move(socket)), for_status_(for_status) {}

  void start() { acceptor_.start(shared_from_this()); }
  void stop() noexcept { acceptor_.close(); }
  void on_readable(std::uint32_t) noexcept override {
    const auto channel = channel_.lock();
    if (!channel) return;
    (void)acceptor_.accept_waiting([&](const UniqueFd& client, const Credentials& who, bool full) {
      if (full) {
        message::answer(client.get(), EAGAIN, {});
      } else if (for_status_) {
        if (process::is_own(who.uid)) tell_status(client.get(), *channel);
      } else if (!has_number_here(who) ||
                 !may_connect(who, groups_of(client.get()), channel->permissions_)) {
        message::answer(client.get(), EACCES, {});
      } else {
        greet(client.get(), *channel, who.uid);
      }
    });
  }

 private:
  static std::vector<gid_t> groups_of(int client) noexcept {
    try {
      return groups_of_peer(client).value_or(std::vector<gid_t>());
    } catch (const std::bad_alloc&) {
      return {};
    }
  }
  static void greet(int client, SharedChannel& channel, uid_t user) {
    UniqueFd connection;
    int error = 0;
    try {
      connection = channel.connect(user);
    } catch (const SystemError& failure) {
      error = failure.code().value();
      if (error == EMFILE || error == ENFILE) error = EAGAIN;  // not the client's lack
      if (error == EBADF) error = ENOENT;
    }
    message::answer(client, error, std::move(connection));
  }

  const std::weak_ptr<SharedChannel> channel_;
  process::Acceptor acceptor_;
  const bool for_status_;
};

WaitMode wait_mode() {
  struct Asked {
    WaitMode mode = wait_mode_from_environment();
  };
  static constinit process::MadeOnce<const Asked> asked;
  return asked.get().mode;
}

SharedChannel::SharedChannel(unsigned flags, mode_t mode)
    : Channel(false),
      serial(next_serial.fetch_add(1, std::memory_order_relaxed)),
      flags_(flags),
      permissions_{.owner = ::geteuid(), .group = ::getegid(), .mode = mode},
      port_(limits(), wait_mode()),
      notices_(port_.open_endpoint({}, {})) {}

SharedChannel::~SharedChannel() {
  if (!of_this_process()) {
    // Its parts know whose they are, but for who would tell them all to close.
    for (auto& listener : listeners_) process::leak_in_child(listener);
    for (auto& pending : all_pending_) process::leak_in_child(pending);
    for (auto& receiver : receivers_) process::leak_in_child(receiver);
    for (auto& [number, link] : links_) process::leak_in_child(link);
    return;
  }
  if (shut()) close();
  // A thread that was just receiving has given out one more, and another may be answering it.
  for (const auto& pending : all_pending_) (void)pending->take_id();
}

void SharedChannel::attach(const std::string& full_name) {
  std::shared_ptr<Listener> endpoint;
  std::shared_ptr<Listener> status;
  {
    const process::NoFork guard;  // a child that had one would have the name
    endpoint =
        std::make_shared<Listener>(weak_from_this(), listen_at(kOpenPrefix, full_name), false);
    status =
        std::make_shared<Listener>(weak_from_this(), listen_at(kStatusPrefix, full_name), true);
  }
  full_name_ = full_name;  // before anybody comes
  endpoint->start();
  listeners_.push_back(std::move(endpoint));
  status->start();
  listeners_.push_back(std::move(status));
}

void SharedChannel::give_up_sessions() noexcept {
  waited_for_.store(true, std::memory_order_seq_cst);
  crowded_.store(true, std::memory_order_seq_cst);
  asymmetric_fence_heavy();
  release_sessions_of_others(nullptr);
}

int SharedChannel::descriptor() {
  // From now on sessions are given back before poll() is called.
  give_up_sessions();
  return port_.poll_descriptor();
}

void SharedChannel::post(int priority, int code, std::int64_t value) {
  queue({.code = code, .value = value, .priority = priority, .link = nullptr});
}

Receiver& SharedChannel::receiver(SharedPendingReply* answering) {
  Thread& thread = Thread::here();
  if (Receiver* known = thread.find(*this)) [[likely]]
    return *known;
  const auto self = weak_from_this().lock();
  if (!self) throw SystemError(ESRCH, "the channel has gone");
  // Who answers may be the last who has to do with the channel, which waits for it in the end.
  if (answering != nullptr) answering->let_go_after_use(self);
  auto fresh = std::make_unique<Receiver>(port_, own_thread(), wait_mode());
  Receiver& made = *fresh;
  {
    const std::lock_guard guard(lock_);
    receivers_.push_back(std::move(fresh));
    receiver_count_.store(receivers_.size(), std::memory_order_seq_cst);
    if (receivers_.size() > 1) {
      // Whoever has set it before may not have come to its fence yet.
      crowded_.store(true, std::memory_order_seq_cst);
      asymmetric_fence_heavy();
    }
  }
  thread.keep(self, made);
  return made;
}

void SharedChannel::forget(Receiver& receiver) noexcept {
  std::unique_ptr<Receiver> last;  // destroyed without the lock
  receiver.wait_and_hold();
  const std::lock_guard guard(lock_);
  const auto found =
      std::ranges::find_if(receivers_, [&](const auto& other) { return other.get() == &receiver; });
  if (found == receivers_.end()) return;
  if (receiver.spare != nullptr) free_pending_.push_back(receiver.spare);
  of_ended_.add(receiver.counts);
  last = std::move(*found);
  receivers_.erase(found);
  receiver_count_.store(receivers_.size(), std::memory_order_seq_cst);
}

SharedPendingReply& SharedChannel::pending_for(Receiver& receiver) {
  if (receiver.spare != nullptr) [[likely]]
    return *receiver.spare;
  const std::lock_guard guard(lock_);
  if (free_pending_.empty()) {
    all_pending_.push_back(std::make_unique<SharedPendingReply>(*this));
    receiver.spare = all_pending_.back().get();
  } else {
    receiver.spare = free_pending_.back();
    free_pending_.pop_back();
  }
  return *receiver.spare;
}

void SharedChannel::give_back(SharedPendingReply& pending) noexcept {
  Thread* const thread = Thread::made();
  Receiver* self = thread != nullptr ? thread->find(*this) : nullptr;
  if (self != nullptr && self->spare == nullptr) {
    self->spare = &pending;
    return;
  }
  try {
    pending.incoming = Incoming();  // with the memory that it keeps
    const std::lock_guard guard(lock_);
    free_pending_.push_back(&pending);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): used no more
  }
}

// A thread that has answered and not come back looks at a session that nobody else watches.
void SharedChannel::release_sessions_of_others(const Receiver* self) noexcept {
  const std::lock_guard guard(lock_);
  for (const auto& other : receivers_) {
    if (other.get() == self || !other->hold()) continue;
    other->thread.leave();
    other->let_go();
  }
}

bool SharedChannel::others_wait() const noexcept {
  return waited_for_.load(std::memory_order_seq_cst) ||
         receiving_.load(std::memory_order_seq_cst) > 0 ||
         (crowded_.load(std::memory_order_acquire) &&
          alone_receiving_.load(std::memory_order_acquire));
}

std::int64_t SharedChannel::receive(Buffers into, Deadline deadline, farcall_info* info,
                                    SignalCount since) {
  ::pthread_testcancel();  // who always finds something may never come to sleep
  Receiver& self = receiver();
  disinherit();
  bool one_way = false;
  std::int64_t id = 0;
  {
    const AtWork at_work(*this, self, true);
    if (receiver_count_.load(std::memory_order_seq_cst) > 1) release_sessions_of_others(&self);
    for (;;) {
      SharedPendingReply& pending = pending_for(self);
      const Outcome outcome = self.thread.receive(pending.incoming, deadline, since);
      if (outcome == Outcome::ok && pending.incoming.notice()) {
        if (!take_pulse(pending.incoming.caller().uid, info)) continue;
        Receiver::count(self.counts.pulses);
        return 0;
      }
      if (outcome == Outcome::ok) {
        one_way = !pending.incoming.wants_reply();
        id = take_message(self, pending, into, info);
        if (!one_way) {
          pending.received_by = &self;
          self.spare = nullptr;
        }
        break;
      }
      if (outcome == Outcome::interrupted) throw SystemError(EINTR, "receive");
      if (outcome == Outcome::finished) throw SystemError(EBADF, "the channel has been closed");
      throw SystemError(ETIMEDOUT, "receive");
    }
  }
  Receiver::count(self.counts.messages);
  if (one_way && others_wait() && self.hold()) {
    self.thread.leave();
    self.let_go();
  }
  return id;
}

std::int64_t SharedChannel::take_message(Receiver& self, SharedPendingReply& pending, Buffers into,
                                         farcall_info* info) {
  Incoming& incoming = pending.incoming;
  const std::span<const std::byte> data = incoming.data();
  const std::size_t received = scatter(data, into);
  pending.room = static_cast<std::size_t>(std::clamp(incoming.word(), 0, FARCALL_MESSAGE_MAX));
  const pid_t process = incoming.caller().pid;
  const auto thread = static_cast<pid_t>(incoming.origin() & kThreadMask);
  if (incoming.endpoint() != self.last_endpoint) [[unlikely]] {
    self.last_link = std::static_pointer_cast<Link>(incoming.endpoint()->owner());
    self.last_endpoint = self.last_link ? incoming.endpoint() : nullptr;
  }
  Link* const link = self.last_link.get();
  std::uint8_t priority = incoming.priority();
  if (priority > kNormalPriority) [[unlikely]]
    priority = link != nullptr ? link->bounded_priority(priority, incoming.caller(), thread)
                               : kNormalPriority;
  if (info != nullptr) {
    *info = {};
    info->connection = link != nullptr ? link->number : 0;
    info->pid = process;
    info->tid = link != nullptr && link->is_thread(thread, process) ? thread : 0;
    info->uid = incoming.caller().uid;
    info->gid = incoming.caller().gid;
    info->priority = priority;
    info->length = data.size();
    info->received = received;
    info->room = pending.room;
    for (UniqueFd& fd : incoming.descriptors()) {
      if (info->descriptor_count == FARCALL_DESCRIPTORS) break;
      info->descriptors[info->descriptor_count++] = fd.release();
    }
  }
  incoming.descriptors().clear();  // the rest: by threads that serve nobody
  if (!incoming.wants_reply()) return FARCALL_ONE_WAY;
  pending.connection.store(link != nullptr ? link->number : 0, std::memory_order_release);
  pending.origin.store(incoming.origin(), std::memory_order_release);
  if ((flags_ & FARCALL_UNBLOCK) != 0)
    pending.number.store(incoming.number(), std::memory_order_release);
  pending.process.store(process, std::memory_order_release);
  pending.user.store(incoming.caller().uid, std::memory_order_release);
  pending.priority.store(priority, std::memory_order_relaxed);
  if ((flags_ & FARCALL_INHERIT) != 0) pending.lent = inherit(priority, process, thread);
  return pending.give_id();
}

bool SharedChannel::answer(SharedPendingReply& pending, std::span<const std::byte> data,
                           std::int64_t status, bool coming_back) {
  Receiver& self = receiver(&pending);
  Outcome outcome = Outcome::peer_gone;
  {
    // A short answer passes no point of cancellation.
    std::optional<process::NoCancel> guard;
    if (data.size() > kInlineBytes) guard.emplace();
    const AtWork at_work(*this, self, false);
    outcome = self.thread.reply(pending.incoming, data, {}, status);
  }
  Receiver::count(self.counts.replies);
  // Where others wait they get the client's next message; this thread may have other plans.
  if (!coming_back && (pending.received_by != &self || others_wait()) && self.hold()) {
    self.thread.leave();
    self.let_go();
  }
  return outcome == Outcome::ok;
}

void SharedChannel::close() noexcept {
  for (const auto& listener : listeners_) listener->stop();
  std::vector<std::shared_ptr<Link>> links;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [number, link] : links_) links.push_back(link);
    links_.clear();
  }
  // First of all: a client whose socket for pulses ends looks whether its connection has.
  port_.close();
  for (const auto& link : links) link->end();
  // A session that a thread keeps is closed by who gives it up; those at work see the port closed.
  give_up_sessions();
  std::vector<SharedPendingReply*> waiting;
  {
    const std::lock_guard guard(lock_);
    for (const auto& pending : all_pending_) waiting.push_back(pending.get());
  }
  // Those that had been received are not answered any more.
  for (SharedPendingReply* pending : waiting)
    if (pending->take_id()) {
      pending->incoming = Incoming();
      pending->give_back();
    }
  const std::lock_guard guard(pulses_lock_);
  for (auto& [user, his] : pulses_of_) his.pulses.clear();
}

}  // namespace farcall::message
