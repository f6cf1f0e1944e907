// SPDX-License-Identifier: Apache-2.0
//
// How threads that serve doors are made, and when.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "door/server.hpp"
#include "farcall/doors.h"

namespace farcall::door {
namespace {

// A thread that has been asked for has this long to arrive before another one is.
constexpr std::int64_t kStarting = 100'000'000;
// When one has been called that is to serve those who wait, beside the one that has to be there,
// so long nobody asks for another.
constexpr std::int64_t kPressed = 1'000'000;

// A thread that is cancelled or ends is unwound: nothing from here on may be noexcept.
void join_pool_when_created(void*) {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  ::door_return(nullptr, 0, nullptr, 0);
  // It could not. The next call asks for another one.
  (void)guarded([] {
    const auto pool = engine().shared_pool();
    pool->lacks_thread.store(true, std::memory_order_relaxed);
    pool->starting_until.store(0, std::memory_order_relaxed);
    return 0;
  });
}

// What a thread for the shared pool comes to that is waited for.
struct FirstThread {
  std::mutex lock;
  std::condition_variable changed;
  std::optional<int> error;
};

// Tells who waits whether it is one of the pool's now. The thread must not keep its parameter alive
// for ever: door_return() does not come back.
bool join_pool_first(void* argument) {
  const std::unique_ptr<std::shared_ptr<FirstThread>> owned(
      static_cast<std::shared_ptr<FirstThread>*>(argument));
  FirstThread& first = **owned;
  const NoCancel guard;
  const int error = join_pool();
  const std::lock_guard held(first.lock);
  first.error = error;
  first.changed.notify_all();
  return error == 0;
}

// Returns 0 or an errno value.
int make_detached_thread(void* (*run)(void*), void* argument) noexcept {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, run, argument);
  ::pthread_attr_destroy(&attributes);
  return error;
}

// Passed to a thread that the creation function of a door_xcreate() starts.
struct Start {
  std::shared_ptr<OwnDoor> door;
  std::mutex lock;
  std::condition_variable changed;
  int arrived = 0;
  bool failed = false;  // one of them could not join the pool
  bool decided = true;  // at creation the threads wait until all are there
  bool abandoned = false;
};

// A thread of those that are waited for: it has arrived, whether it serves or has ended, as the
// program's set-up may have it do.
class Arrival {
 public:
  explicit Arrival(Start& start) : start_(start) {}
  ~Arrival() {
    if (!arrived_) (void)join(false);
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  // Returns whether it is to serve, once that is decided.
  bool join(bool joined) {
    arrived_ = true;
    if (!joined) start_.door->pool->starting_until.store(0, std::memory_order_relaxed);
    std::unique_lock lock(start_.lock);
    ++start_.arrived;
    start_.failed |= !joined;
    start_.changed.notify_all();
    if (!joined) return false;
    start_.changed.wait(lock, [&] { return start_.decided; });
    return !start_.abandoned;
  }

 private:
  Start& start_;
  bool arrived_ = false;
};

// Returns the type of cancellation that the program wants, and has it deferred until then. Apart,
// as nothing is to be cleaned up in between.
[[gnu::noinline]] int set_up(const OwnDoor::Maker& maker) {
  maker.set_up(maker.cookie);
  int type = PTHREAD_CANCEL_DEFERRED;
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  return type;
}

void* start_bound_thread(void* argument, int& cancel_type) {
  const std::unique_ptr<std::shared_ptr<Start>> owned(
      static_cast<std::shared_ptr<Start>*>(argument));
  const std::shared_ptr<Start> start = *owned;
  const std::shared_ptr<OwnDoor> door = start->door;
  Arrival arrival(*start);
  if (door->maker.set_up != nullptr) {
    cancel_type = set_up(door->maker);
  } else {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
  }
  const NoCancel guard;
  const bool joined = join_pool(door) == 0;
  if (arrival.join(joined)) return start.get();
  if (joined) leave_pool();
  return nullptr;
}

// The thread must not keep its parameters alive for ever: door_return() does not come back.
void* start_and_park(void* argument) {
  int cancel_type = PTHREAD_CANCEL_DEFERRED;
  const bool serves = start_bound_thread(argument, cancel_type) != nullptr;
  ::pthread_setcanceltype(cancel_type, nullptr);
  if (serves) ::door_return(nullptr, 0, nullptr, 0);
  return nullptr;
}

int ask_for_bound_thread(const std::shared_ptr<Start>& start) {
  auto* argument = new (std::nothrow) std::shared_ptr<Start>(start);
  if (argument == nullptr) return -1;
  const OwnDoor::Maker& maker = start->door->maker;
  const int result =
      maker.create(start->door->lasting_info(), start_and_park, argument, maker.cookie);
  // Any other answer leaves it open whether a thread has been made, to which it belongs then.
  if (result == 0 || result == -1) delete argument;
  return result;
}

// Where none can be made the next call asks again.
void make_or_say_so(Pool& pool, const Need& need) noexcept {
  const bool failed = make_default_thread() != 0;
  pool.lacks_thread.store(failed, std::memory_order_relaxed);
  if (!failed) return;
  pool.starting_until.store(0, std::memory_order_relaxed);
  left_alone = need.last;
}

}  // namespace

thread_local constinit bool left_alone = false;

int make_default_thread() noexcept {
  return make_detached_thread(
      [](void* nothing) -> void* {
        join_pool_when_created(nothing);
        return nullptr;
      },
      nullptr);
}

void create_default_thread(door_info_t*) noexcept { (void)make_default_thread(); }

int start_first_thread() {
  const NoCancel guard;
  const auto first = std::make_shared<FirstThread>();
  auto argument = std::make_unique<std::shared_ptr<FirstThread>>(first);
  const int error = make_detached_thread(
      [](void* given) -> void* {
        if (join_pool_first(given)) join_pool_when_created(nullptr);
        return nullptr;
      },
      argument.get());
  if (error != 0) return error;
  (void)argument.release();
  std::unique_lock lock(first->lock);
  // One that needs what the caller holds, such as the lock of the dynamic linker in a library's
  // constructor, comes later.
  constexpr std::chrono::seconds kPatience{1};
  first->changed.wait_for(lock, kPatience, [&] { return first->error.has_value(); });
  return first->error.value_or(0);
}

int start_bound_threads(const std::shared_ptr<OwnDoor>& door, int count) {
  std::shared_ptr<Start> start;
  try {
    start = std::make_shared<Start>();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  start->door = door;
  start->decided = false;
  int error = 0;
  int made = 0;
  for (; made < count && error == 0; ++made) {
    const int result = ask_for_bound_thread(start);
    if (result == 0) error = EINVAL;
    if (result < 0) error = EPIPE;
  }
  if (error != 0) --made;
  std::unique_lock lock(start->lock);
  start->changed.wait(lock, [&] { return start->arrived >= made; });
  if (error == 0 && start->failed) error = EPIPE;
  start->abandoned = error != 0;
  start->decided = true;
  start->changed.notify_all();
  return error;
}

void ask_for_thread(Pool& pool, const std::shared_ptr<OwnDoor>& door, const Need& need) {
  const std::int64_t now = monotonic_ns();
  const bool pressed = need.crowd != 0 && now >= pool.pressed_until.load(std::memory_order_relaxed);
  if (!need.last && !pressed) return;
  const bool by_xcreate = door && door->maker.create != nullptr;
  door_server_func_t* const create_thread = Process::create_thread.load();
  const bool on_its_way = !need.urgent && now < pool.starting_until.load(std::memory_order_relaxed);
  const bool may_make = (!by_xcreate || (door->attributes & DOOR_DEPLETION_CB) != 0) && !on_its_way;
  // Whether a function of the program's own has made one is not known.
  left_alone = need.last && on_its_way && !by_xcreate && create_thread != create_default_thread;
  if (!may_make && !pool.has_reserve()) return;
  // Of those who wait no more can be served at once than there are processors.
  const std::size_t most = (pressed ? need.crowd : 1) + (need.receiving ? 1 : 0);
  const std::size_t idle = pool.idle_threads();
  if (idle >= most) return;
  if (pool.call_reserve()) {
    if (idle != 0) pool.pressed_until.store(now + kPressed, std::memory_order_relaxed);
    return;
  }
  if (!may_make) return;
  pool.starting_until.store(now + kStarting, std::memory_order_relaxed);
  if (by_xcreate) {
    auto start = std::make_shared<Start>();
    start->door = door;
    if (ask_for_bound_thread(start) != 1) pool.starting_until.store(0, std::memory_order_relaxed);
  } else {
    if (door || create_thread != create_default_thread)
      create_thread(door ? door->lasting_info() : nullptr);
    else
      make_or_say_so(pool, need);
  }
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);  // whatever the program has done
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
}

}  // namespace farcall::door
