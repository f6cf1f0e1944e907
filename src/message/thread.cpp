// SPDX-License-Identifier: Apache-2.0
#include "message/thread.hpp"

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
  const auto hold = [] {
    channel_table->lock.lock();
    connection_table->lock.lock();
  };
  const auto let_go = [] {
    connection_table->lock.unlock();
    channel_table->lock.unlock();
  };
  const auto in_child = [] {
    process::free_in_child(connection_table->lock);
    process::free_in_child(channel_table->lock);
  };
  process::around_fork(process::ForkOrder::above_call, hold, let_go, in_child);
  return true;
}();

// A channel of the parent's is not destroyed by a child, should this be the last who refers to it.
template <class T>
void forget(Recent<T>& recent) noexcept {
  if constexpr (std::is_same_v<T, Channel>)
    if (recent.object && !recent.object->of_this_process()) process::leak_in_child(recent.object);
  recent = {};
}

template <class T>
const std::shared_ptr<T>& look_up(Recent<T>& recent, const Table<T>& table, int number) {
  if (recent.number != number || number == 0) [[unlikely]] {
    forget(recent);
    recent.object = table.find(number);
    recent.number = number;
  }
  if (!recent.object->usable()) [[unlikely]] {
    forget(recent);
    throw SystemError(EBADF, "no such channel or connection");
  }
  return recent.object;
}

}  // namespace

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

const std::shared_ptr<Channel>& Thread::channel(int number) {
  return look_up(channel_, channels(), number);
}

const std::shared_ptr<Connection>& Thread::connection(int number) {
  return look_up(connection_, connections(), number);
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
