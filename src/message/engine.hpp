// SPDX-License-Identifier: Apache-2.0
//
// What messages are made of: shared memory (on src/call) or the module (on libstplr). Everything
// here throws SystemError with the errno that the caller of the C interface gets.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "farcall/wait.hpp"
#include "message/buffers.hpp"
#include "process/process.hpp"

namespace farcall::message {

class PendingReply;

// What both kinds of numbered objects are: open, and of this process, or refused.
class Numbered {
 public:
  virtual ~Numbered() = default;
  [[nodiscard]] bool usable() const noexcept {
    return open_.load(std::memory_order_acquire) &&
           (inherited_ || generation_ == process::generation());
  }
  [[nodiscard]] bool of_this_process() const noexcept {
    return generation_ == process::generation();
  }
  // Once; true for who did it.
  bool shut() noexcept { return open_.exchange(false, std::memory_order_acq_rel); }

 protected:
  explicit Numbered(bool inherited) noexcept : inherited_(inherited) {}

 private:
  const std::uint64_t generation_ = process::generation();
  const bool inherited_;  // forked children have it too
  std::atomic<bool> open_{true};
};

// Whose pulses nobody has sent, or nobody knows who has: a number that no user and no group has.
inline constexpr unsigned kNoUser = ~0U;

// A client that has gone, or has been answered, is passed over by who receives the next one.
template <class Answer>
void unless_gone(Answer answer) {
  try {
    answer();
  } catch (const SystemError& error) {
    if (error.code().value() != ESRCH) throw;
  }
}

class Channel : public Numbered {
 public:
  // A message (its id, or FARCALL_ONE_WAY) or a pulse (0). Descriptors are taken only into `info`,
  // which may be null. A signal that was caught after `since` interrupts.
  virtual std::int64_t receive(Buffers into, Deadline deadline, farcall_info* info,
                               SignalCount since) = 0;
  // Answers a client of this channel, too, or else any.
  virtual std::int64_t reply_receive(std::int64_t id, int status, Buffers reply, Buffers into,
                                     Deadline deadline, farcall_info* info, SignalCount since);
  // What poll() waits for.
  virtual int descriptor() = 0;
  // The descriptor of a new connection.
  virtual UniqueFd connect() = 0;
  // A pulse of this process's own. Never waits.
  virtual void post(int priority, int code, std::int64_t value) = 0;
  // Clients that wait get ESRCH. Called once, by whoever shut() it.
  virtual void close() noexcept = 0;

 protected:
  explicit Channel(bool inherited) noexcept : Numbered(inherited) {}
};

struct Sending {
  Buffers message;
  Buffers room;
  std::span<const int> descriptors;
  bool one_way = false;
  bool keep_waiting = false;  // whatever signals come
  SignalCount since;          // else one that was caught after this interrupts
  std::size_t replied = 0;    // out
};

class Connection : public Numbered {
 public:
  Connection() noexcept : Numbered(true) {}
  // The server's status.
  virtual int send(Sending& sending, Deadline deadline) = 0;
  // `priority` is at most the thread's own (EINVAL), or 0, which is that. Returns 0 or an errno:
  // where a handler may learn of it no memory is taken for that.
  virtual int pulse(int priority, int code, std::int64_t value) = 0;
  virtual void watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) = 0;
  virtual int descriptor() = 0;
  virtual void close() noexcept = 0;
};

class Engine {
 public:
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // `name` may be empty.
  virtual std::shared_ptr<Channel> create(std::string_view name, unsigned flags, mode_t mode) = 0;
  // A signal that was caught after `since` interrupts.
  virtual std::shared_ptr<Connection> open(std::string_view name, Deadline deadline,
                                           SignalCount since) = 0;
  // Takes the descriptor over if it is a connection of this engine, else returns null.
  virtual std::shared_ptr<Connection> adopt(UniqueFd& descriptor) = 0;

 protected:
  ~Engine() = default;  // threads may send until the very end
};

Engine& shared_engine();
// Null where the module is not there or may not be used.
Engine* kernel_engine();
// The one that FARCALL_ENGINE chooses. Throws: EINVAL for a word that is none of the three, ENODEV
// where it says kernel and there is none.
Engine& chosen_engine();
// All that may serve a name, the most wanted first.
std::span<Engine* const> engines();

}  // namespace farcall::message
