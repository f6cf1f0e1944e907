// SPDX-License-Identifier: Apache-2.0
//
// What doors are made of: shared memory (on src/call) or the module (/dev/door, see door(4)).
//
//   Engine ──> OwnDoor    a door that this process serves
//     │           │
//     └──────> Pool ──> Server    a thread's place among those that wait for calls
//
//   AnyDoor     a door of whichever process and engine, behind a descriptor
//
// A program's new doors are of one engine. What it has descriptors of may be of both.
#pragma once

#include <door.h>
#include <pthread.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>

#include "farcall/call.hpp"
#include "farcall/doors.h"
#include "process/process.hpp"

namespace farcall::door {

class Pool;

// A door of this process.
class OwnDoor {
 public:
  // How door_xcreate() makes threads.
  struct Maker {
    door_xcreate_server_func_t* create = nullptr;
    door_xcreate_thrsetup_func_t* set_up = nullptr;
    void* cookie = nullptr;
  };
  // What the program has said of it.
  struct Order {
    door_server_procedure_t* procedure;
    void* cookie;
    unsigned attributes;
    Maker maker = {};
  };

  OwnDoor(const Order& order, std::shared_ptr<Pool> threads) noexcept
      : procedure(order.procedure),
        cookie(order.cookie),
        attributes(order.attributes),
        maker(order.maker),
        pool(std::move(threads)) {}
  virtual ~OwnDoor() = default;
  OwnDoor(const OwnDoor&) = delete;
  OwnDoor& operator=(const OwnDoor&) = delete;

  [[nodiscard]] virtual door_info_t info() const noexcept = 0;
  // The same, for functions that make threads; programs hand it on to those threads, so it lives
  // as long as the door.
  [[nodiscard]] door_info_t* lasting_info() noexcept { return &lasting_info_; }
  [[nodiscard]] bool is_private() const noexcept { return (attributes & DOOR_PRIVATE) != 0; }

  const std::uint64_t generation = process::generation();
  door_server_procedure_t* const procedure;
  void* const cookie;
  const unsigned attributes;
  const Maker maker;
  const std::shared_ptr<Pool> pool;

 protected:
  door_info_t lasting_info_{};
};

// What a procedure is called with.
struct Dispatch {
  door_server_procedure_t* procedure;
  void* cookie;
  char* data = nullptr;
  std::size_t size = 0;
  door_desc_t* descriptors = nullptr;
  uint_t count = 0;
};

// A call that is answered later, by whatever thread.
class Deferred : public door_deferred_t {
 public:
  Deferred() : door_deferred_t{} {}
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  virtual ~Deferred() = default;
  // As those of a Server.
  virtual int answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                     std::size_t count) = 0;
  virtual void refuse(int error) noexcept = 0;
  // Whom its client's death is told, as door_deferred_watch() says. Waits until nobody is being
  // told any more; by who is being told nothing has to be waited for, or registered.
  void watch(void (*gone)(void* cookie), void* cookie) noexcept {
    if (::pthread_equal(teller_.load(std::memory_order_relaxed), ::pthread_self()) == 0)
      register_watch(gone, cookie);
    else if (gone != nullptr)
      gone(cookie);
  }

  const std::uint64_t generation = process::generation();

 protected:
  virtual void register_watch(void (*gone)(void* cookie), void* cookie) noexcept = 0;
  // Not while it is being told.
  void set_watch(void (*gone)(void* cookie), void* cookie) noexcept {
    cookie_ = cookie;
    gone_ = gone;
  }
  [[nodiscard]] bool watched() const noexcept { return gone_ != nullptr; }
  // Once for each watch. By one thread at a time.
  void tell() noexcept {
    const auto gone = gone_.exchange(nullptr);
    if (gone == nullptr) return;
    teller_.store(::pthread_self(), std::memory_order_relaxed);
    gone(cookie_);
    teller_.store(pthread_t{}, std::memory_order_relaxed);
  }

 private:
  std::atomic<void (*)(void* cookie)> gone_{nullptr};
  void* cookie_ = nullptr;
  std::atomic<pthread_t> teller_{};  // while it tells
};

// One thread's place in a pool. Only that thread uses it.
class Server {
 public:
  virtual ~Server() = default;
  // Waits for a call. False: there is none to serve, this time. Whatever the thread's state,
  // `cancellable` says whether the wait is a cancellation point. Throws std::bad_alloc.
  virtual bool receive(Dispatch& call, bool cancellable) = 0;
  // Answers the call that is being served. Returns 0 or an errno value; the client then waits on.
  // `stays`: the thread will receive here next, not to be cancelled, so that may begin.
  virtual int answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                     std::size_t count, bool stays) = 0;
  // Ends that call with an error instead. Returns 0, or EOPNOTSUPP where the engine cannot.
  virtual int refuse(int error) noexcept = 0;
  // Takes it away from the thread. Returns 0 or an errno value. Throws std::bad_alloc.
  virtual int defer(std::unique_ptr<Deferred>&) { return EOPNOTSUPP; }
  // The client of that call. Returns 0, or EINVAL where it has gone, or where this is a notice.
  virtual int identify(CallerIdentity& caller) = 0;
  // The thread ends without an answer: the client's call fails.
  virtual void drop() noexcept = 0;

  bool serving = false;  // between a call and its answer
};

// Server threads and the doors that they serve.
class Pool {
 public:
  virtual ~Pool() = default;
  // The calling thread becomes one of them.
  virtual std::unique_ptr<Server> enter() = 0;
  // The threads that are waiting here, or about to.
  [[nodiscard]] virtual std::size_t idle_threads() const noexcept = 0;

  // Threads that wait for the pool to need them. call_reserve(): one of them is to receive; false
  // if there is none.
  virtual bool call_reserve() noexcept { return false; }
  [[nodiscard]] virtual bool has_reserve() const noexcept { return false; }

  // For those that are to serve those who wait, beside the one that suffices: when to ask again.
  std::atomic<std::int64_t> pressed_until{0};
  // The same, for threads that wait for doors while nobody else waits here.
  std::atomic<std::int64_t> urgent_until{0};
  // A thread has been asked for; until then it may be on its way. Nanoseconds, monotonic.
  std::atomic<std::int64_t> starting_until{0};
  // The last thread that was asked for could not be made.
  std::atomic<bool> lacks_thread{false};
};

// A door behind a descriptor. Numbers that are returned are 0 or an errno value.
class AnyDoor {
 public:
  virtual ~AnyDoor() = default;
  virtual int info(int d, door_info_t& info) = 0;
  // `which` is a parameter that there is.
  virtual int param(int d, int which, std::uint64_t& value) = 0;
  virtual int set_param(int d, int which, std::uint64_t value) = 0;
  // The descriptor stays.
  virtual int revoke(int d) = 0;
  // `file` was opened with O_PATH.
  virtual int attach(int d, int file, const struct stat& status) = 0;
  // The door, if this process serves it and it is private.
  virtual std::shared_ptr<OwnDoor> to_bind(int d) = 0;
  // What is told of it where it is passed.
  virtual void describe(int d, door_desc_t& descriptor) = 0;
};
// What `d` leads to; null where it is no door's.
std::shared_ptr<AnyDoor> door_behind(int d);

class Engine {
 public:
  // Makes a door and returns its descriptor. `door` is set where it is private. Throws SystemError.
  virtual int create(const OwnDoor::Order& order, std::shared_ptr<OwnDoor>& door) = 0;
  // That of all doors that are not private. Throws SystemError.
  virtual std::shared_ptr<Pool> shared_pool() = 0;

 protected:
  ~Engine() = default;
};

Engine& shared_engine() noexcept;
// Throws SystemError where the module is not there, or not for this process.
Engine& kernel_engine();
// That of this process's new doors, as FARCALL_ENGINE says. What it says wrongly, or asks for in
// vain, is told on stderr once, and thrown as SystemError: EINVAL, ENODEV, EACCES.
Engine& engine();

}  // namespace farcall::door
