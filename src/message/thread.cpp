// SPDX-License-Identifier: Apache-2.0
#include "message/thread.hpp"

#include <atomic>
#include <cerrno>
#include <type_traits>

#include "message/shared.hpp"

namespace farcall::message {
namespace {

// Never destroyed: threads may use them until the very end.
Table<Channel>* channel_table;
Table<Connection>* connection_table;

[[maybe_unused]] const bool kRegistered = [] {
  channel_table = new Table<Channel>;
  connection_table = new Table<Connection>;
  // It may be the fork of a handler that has interrupted a look.
  const auto hold = [] {
    channel_table->lock.lock_shared(true);
    connection_table->lock.lock_shared(true);
  };
  const auto let_go = [] {
    const auto own = static_cast<std::uint32_t>(process::generation());
    connection_table->lock.unlock_shared(own);
    channel_table->lock.unlock_shared(own);
  };
  process::around_fork(process::ForkOrder::above_call, hold, let_go, nullptr);
  return true;
}();

// A channel of the parent's is not destroyed by a child, should this be the last who refers to it.
template <class T>
void forget(std::shared_ptr<T>& object) noexcept {
  if constexpr (std::is_same_v<T, Channel>)
    if (object && !object->of_this_process()) process::leak_in_child(object);
  object = nullptr;
}

template <class T>
void forget(Recent<T>& recent) noexcept {
  if (recent.used) return;  // by who has been interrupted
  recent.used = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  recent.number = 0;
  forget(recent.object);
  forget(recent.before);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  recent.used = false;
}

}  // namespace

template <class T>
Found<T>::Found(Recent<T>& recent, const Table<T>& table, int number) : recent_(&recent) {
  if (recent.used) [[unlikely]] {  // in a signal handler
    recent_ = nullptr;
    own_ = table.find(number);
    if (own_->usable()) return;
    forget(own_);
    throw SystemError(EBADF, "no such channel or connection");
  }
  recent.used = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  try {
    if (recent.number != number || number == 0) [[unlikely]] {
      recent.number = 0;
      forget(recent.object);
      forget(recent.before);
      recent.object = table.find(number);
      recent.number = number;
    }
    if (!recent.object->usable()) [[unlikely]]
      throw SystemError(EBADF, "no such channel or connection");
  } catch (...) {
    recent.number = 0;
    forget(recent.object);
    leave();
    throw;
  }
}
template class Found<Channel>;
template class Found<Connection>;

Table<Channel>& channels() { return *channel_table; }
Table<Connection>& connections() { return *connection_table; }

Thread::~Thread() {
  const process::NoCancel guard;
  for (const Share& share : shares_) {
    if (share.generation != process::generation()) continue;
    if (const auto channel = share.owner.lock()) channel->forget(*share.receiver);
  }
  forget(channel_);
}

Found<Channel> Thread::channel(int number) { return {channel_, channels(), number}; }
Found<Connection> Thread::connection(int number) { return {connection_, connections(), number}; }

namespace {

// Uses what the thread remembers, as Found does.
class Using {
 public:
  explicit Using(Recent<Connection>& recent) noexcept : recent_(recent) {
    recent_.used = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Using() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    recent_.used = false;
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

  // Where that destroys nothing: of the one before the table has another reference, or it is kept.
  bool remember(int number) noexcept {
    const Reading guard(connection_table->lock);
    const auto* const found = connection_table->look(number);
    if (found == nullptr) return false;
    const auto* const before = connection_table->look(recent_.number);
    if (recent_.object && (before == nullptr || *before != recent_.object)) {
      if (recent_.before) return false;
      recent_.before = std::move(recent_.object);
    }
    recent_.object = *found;
    recent_.number = number;
    return true;
  }

 private:
  Recent<Connection>& recent_;
};

int pulse_if_usable(Connection& connection, int priority, int code, std::int64_t value) {
  return connection.usable() ? connection.pulse(priority, code, value) : EBADF;
}

}  // namespace

int send_pulse(int connection, int priority, int code, std::int64_t value) {
  Thread* const thread = Thread::without_memory();
  if (thread != nullptr && !thread->recent_connection().used) [[likely]] {
    Recent<Connection>& recent = thread->recent_connection();
    Using guard(recent);
    if ((recent.number == connection && connection != 0) || guard.remember(connection)) [[likely]]
      return pulse_if_usable(*recent.object, priority, code, value);
  }
  // It stays in the table meanwhile: nobody destroys it here.
  const Reading guard(connection_table->lock);
  const auto* const found = connection_table->look(connection);
  return found == nullptr ? EBADF : pulse_if_usable(**found, priority, code, value);
}

void Thread::forget_recent() noexcept {
  forget(channel_);
  forget(connection_);
}

Thread::Bound Thread::take_bound(SignalCount now) noexcept {
  if (!timed_) [[likely]]
    return {.deadline = Deadline::never(), .since = now};
  timed_ = false;
  return {.deadline =
              timeout_ == 0 ? Deadline::now() : Deadline::after(std::chrono::nanoseconds(timeout_)),
          .since = timed_since_};
}

Receiver* Thread::find(const SharedChannel& channel) noexcept {
  for (const Share& share : shares_)
    if (share.serial == channel.serial && share.generation == process::generation())
      return share.receiver;
  return nullptr;
}

void Thread::keep(const std::shared_ptr<SharedChannel>& channel, Receiver& receiver) {
  std::erase_if(shares_, [&](const Share& share) {
    return share.owner.expired() || share.serial == channel->serial;
  });
  shares_.push_back({.serial = channel->serial,
                     .owner = channel,
                     .receiver = &receiver,
                     .generation = process::generation()});
}

}  // namespace farcall::message
