// SPDX-License-Identifier: Apache-2.0
//
// What one thread keeps between its calls: the channel and the connection that it last used, the
// timeout of its next call, its share of the channels that it receives from.
#pragma once

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
  int number = 0;
  std::shared_ptr<T> object;
};

class Thread {
 public:
  // The calling thread's, until it ends; see process/per_thread.hpp. Throws std::bad_alloc.
  static Thread& here() { return process::PerThread<Thread>::get(); }
  // Null where it has none.
  static Thread* made() noexcept { return process::PerThread<Thread>::made(); }
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread();

  // Throw SystemError: EBADF.
  const std::shared_ptr<Channel>& channel(int number);
  const std::shared_ptr<Connection>& connection(int number);
  void forget_recent() noexcept;

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

Table<Channel>& channels();
Table<Connection>& connections();

}  // namespace farcall::message
