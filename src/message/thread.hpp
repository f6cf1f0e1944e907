// SPDX-License-Identifier: Apache-2.0
//
// What one thread keeps between its calls: the channel and the connection that it last used, the
// timeout of its next call, its share of the channels that it receives from.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "message/engine.hpp"
#include "message/table.hpp"
#include "process/per_thread.hpp"

namespace farcall::message {

struct Receiver;
class SharedChannel;

template <class T>
struct Recent {
  bool used = false;  // and so left as it is by a signal handler that comes meanwhile
  int number = 0;
  std::shared_ptr<T> object;
  std::shared_ptr<T> before;  // which nobody has freed yet who may
};

// What the calling thread uses until this goes: the one that it has used last, as a rule.
template <class T>
class Found {
 public:
  // Throws SystemError: EBADF.
  Found(Recent<T>& recent, const Table<T>& table, int number);
  ~Found() { leave(); }
  Found(const Found&) = delete;
  Found& operator=(const Found&) = delete;

  [[nodiscard]] const std::shared_ptr<T>& object() const noexcept {
    return recent_ != nullptr ? recent_->object : own_;
  }
  T* operator->() const noexcept { return object().get(); }

 private:
  void leave() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (recent_ != nullptr) recent_->used = false;
  }

  Recent<T>* recent_;  // null: it is in use further down
  std::shared_ptr<T> own_;
};

class Thread {
 public:
  // The calling thread's, until it ends; see process/per_thread.hpp. Throws std::bad_alloc.
  static Thread& here() { return process::PerThreadInPlace<Thread>::get(); }
  // Null where it has none.
  static Thread* made() noexcept { return process::PerThreadInPlace<Thread>::made(); }
  // Null where that would take memory.
  static Thread* without_memory() noexcept {
    return process::PerThreadInPlace<Thread>::get_in_place();
  }
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread();

  // Throw SystemError: EBADF.
  Found<Channel> channel(int number);
  Found<Connection> connection(int number);
  void forget_recent() noexcept;
  Recent<Connection>& recent_connection() noexcept { return connection_; }

  void set_timeout(std::int64_t nanoseconds) noexcept {
    timed_ = nanoseconds >= 0;
    timeout_ = nanoseconds;
    timed_since_ = SignalCount::now();
  }
  // Until when one call waits, and since when signals count for it: `now`, or since it was bounded.
  struct Bound {
    Deadline deadline;
    SignalCount since;
  };
  Bound take_bound(SignalCount now) noexcept;

  // Its own part of a channel, if it has one already.
  Receiver* find(const SharedChannel& channel) noexcept;
  void keep(const std::shared_ptr<SharedChannel>& channel, Receiver& receiver);

 private:
  struct Share {
    std::uint64_t serial;
    std::weak_ptr<SharedChannel> owner;
    Receiver* receiver;
    std::uint64_t generation;
  };

  Recent<Channel> channel_;
  Recent<Connection> connection_;
  bool timed_ = false;
  std::int64_t timeout_ = 0;
  SignalCount timed_since_ = SignalCount::now();
  std::vector<Share> shares_;
};

// farcall_pulse(): 0, or an errno. Handlers call it that have interrupted malloc(3): it allocates
// and frees nothing by itself.
int send_pulse(int connection, int priority, int code, std::int64_t value);

Table<Channel>& channels();
Table<Connection>& connections();

}  // namespace farcall::message
