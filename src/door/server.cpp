// SPDX-License-Identifier: Apache-2.0
#include "door/server.hpp"

#include <pthread.h>
#include <setjmp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "farcall/doors.h"
#include "farcall/error.hpp"
#include "process/per_thread.hpp"

// The C library's, behind pthread_cleanup_push() in C; <pthread.h> hides them from C++.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void __pthread_register_cancel(__pthread_unwind_buf_t*);
void __pthread_unregister_cancel(__pthread_unwind_buf_t*);
// longjmp(3), by the name that ThreadSanitizer knows, or its record of each thread's calls would
// grow; but never the one of _FORTIFY_SOURCE, which ends a process that comes from another stack,
// such as a coroutine's.
[[noreturn]] void farcall_door_jump(__jmp_buf_tag*, int) noexcept __asm__("longjmp");
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace farcall::door {
namespace {

// When a thread that calls a door has asked for another to serve in its place, so long none of
// them asks again.
constexpr std::int64_t kUrgent = 1'000'000;

// How a thread may be cancelled, as pthread_setcancelstate(3) and pthread_setcanceltype(3) say.
struct Cancellation {
  int state = PTHREAD_CANCEL_ENABLE;
  int type = PTHREAD_CANCEL_DEFERRED;
};

// From the one to the other no cancellation comes. Where its type is asynchronous one may come
// between any two instructions of who calls these: that must have nothing to clean up, and not be
// noexcept, or it could not be unwound.
inline Cancellation hold_cancellation() {
  Cancellation before;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.state);
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before.type);
  return before;
}
inline void restore(Cancellation before) {
  ::pthread_setcancelstate(before.state, nullptr);
  if (before.type != PTHREAD_CANCEL_DEFERRED) ::pthread_setcanceltype(before.type, nullptr);
}

bool is_on_own_stack(std::uintptr_t address) noexcept {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return false;
  void* lowest = nullptr;
  std::size_t size = 0;
  (void)::pthread_attr_getstack(&attributes, &lowest, &size);
  (void)::pthread_attr_destroy(&attributes);
  return address - reinterpret_cast<std::uintptr_t>(lowest) < size;
}

// What a thread is that serves, or has ever served. Lives until the thread ends.
class ServingThread {
 public:
  [[nodiscard]] bool serves() const noexcept { return server_ && server_->serving; }
  [[nodiscard]] Server* server() const noexcept { return server_.get(); }
  // Whether it is in the pool where it is to wait. That one is kept, so no other has its address.
  [[nodiscard]] bool in_place() const noexcept {
    return pool_ && (bound ? bound->pool == pool_ : in_shared_);
  }
  // Answers the call that is being served. Returns 0 or an errno value; the client then waits on.
  int answer(const char* data, std::size_t size, const door_desc_t* descriptors, std::size_t count,
             Cancellation cancellation) {
    const bool stays = cancellation.state == PTHREAD_CANCEL_DISABLE && in_place();
    return server_->answer(data, size, descriptors, count, stays);
  }
  // It serves no call, and is to wait for one; descriptors that it should pass go to nobody.
  // Returns 0 or an errno value. Throws SystemError.
  int begin(const door_desc_t* descriptors, std::size_t count);
  // Where it is to wait. Throws SystemError.
  void join_pool();
  // For good: it is bound to nothing, either.
  void leave_pool() noexcept;
  [[noreturn]] void park(Cancellation cancellation);
  // It is in a procedure, and nobody else may be there to serve the next call. False: somebody has
  // asked for another thread only just now.
  bool ask_for_another();

  std::shared_ptr<OwnDoor> bound;

 private:
  [[gnu::noinline, noreturn]] void serve();
  void serve_one();
  bool receive(Dispatch& call);
  [[gnu::noinline, noreturn]] void end_thread();

  std::shared_ptr<Pool> pool_;  // that server_ is in
  bool in_shared_ = false;      // that is the shared one
  std::unique_ptr<Server> server_;
  Cancellation cancellation_;  // of procedures, and where it waits
  jmp_buf base_;
  std::uintptr_t base_frame_ = 0;
  __pthread_unwind_buf_t handlers_;  // knows the clean-up handlers that stand below base_
};

ServingThread& here() { return process::PerThread<ServingThread>::get(); }

// The thread was bound to a door in the parent, which the child does not serve. Until it is bound
// no more, or to another, it can wait for no calls.
thread_local constinit bool bound_in_parent = false;

// In a forked child the thread that forked may be in the middle of a call of the parent's. That is
// not its own to answer.
void leave_parents_calls() noexcept {
  if (bound_door()) bound_in_parent = true;
  process::PerThread<ServingThread>::leave();
}

[[maybe_unused]] const bool kRegistered = [] {
  process::around_fork(process::ForkOrder::above_call, nullptr, nullptr, leave_parents_calls);
  return true;
}();

}  // namespace

int join_pool(std::shared_ptr<OwnDoor> door) {
  const int result = guarded([&] {
    ServingThread& self = here();
    self.bound = std::move(door);
    self.join_pool();
    return 0;
  });
  if (result == 0) return 0;
  const int error = errno;
  if (ServingThread* const self = process::PerThread<ServingThread>::made()) self->leave_pool();
  return error;
}

void leave_pool() noexcept { here().leave_pool(); }

std::shared_ptr<OwnDoor> bound_door() noexcept {
  const ServingThread* self = process::PerThread<ServingThread>::made();
  return self != nullptr ? self->bound : nullptr;
}

Server* call_in_progress() noexcept {
  const ServingThread* self = process::PerThread<ServingThread>::made();
  return self != nullptr && self->serves() ? self->server() : nullptr;
}

void ask_before_waiting() {
  ServingThread* const self = process::PerThread<ServingThread>::made();
  left_alone = self != nullptr && !self->ask_for_another();
}

// A thread that is bound elsewhere by now does not know whose pool it has left alone.
bool ServingThread::ask_for_another() {
  if (!in_place() || pool_->idle_threads() != 0) return true;
  const std::int64_t now = monotonic_ns();
  if (now < pool_->urgent_until.load(std::memory_order_relaxed)) return false;
  pool_->urgent_until.store(now + kUrgent, std::memory_order_relaxed);
  const NoCancel guard;
  ask_for_thread(*pool_, bound, {.urgent = true});
  return true;
}

void ServingThread::park(Cancellation cancellation) {
  server_->serving = false;
  cancellation_ = cancellation;
  // A procedure may have gone back to the function that its thread began with, by longjmp(), which
  // then answers: the frame below which calls were served has gone, and others have been where it
  // was.
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (base_frame_ != 0 && (frame < base_frame_ || !is_on_own_stack(frame)))
    farcall_door_jump(base_, 1);
  serve();
}

// The frame that every later door_return() of this thread comes back to. What procedures have put
// on the stack above it is forgotten without further ado, as Solaris does; the clean-up handlers of
// C are on the stack, too, and a list of them leads there.
void ServingThread::serve() {
  base_frame_ = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  ::__pthread_register_cancel(&handlers_);
  (void)::_setjmp(base_);
  // From here on nothing is looked at that lies in this frame: park() does not see that it has gone
  // where who has jumped answers from further down.
  ::__pthread_unregister_cancel(&here().handlers_);
  for (;;) here().serve_one();
}

void ServingThread::join_pool() {
  if (in_place()) [[likely]]
    return;
  auto pool = bound ? bound->pool : engine().shared_pool();
  if (pool != pool_) {
    // Nowhere, until it is let in: if that fails it may try again.
    server_ = nullptr;
    pool_ = nullptr;
    server_ = pool->enter();
    pool_ = std::move(pool);
  }
  in_shared_ = !bound;
  pool_->starting_until.store(0, std::memory_order_relaxed);
  pool_->lacks_thread.store(false, std::memory_order_relaxed);
}

int ServingThread::begin(const door_desc_t* descriptors, std::size_t count) {
  if (bound_in_parent) return EINVAL;
  if (count != 0 && release_all(descriptors, count) == EFAULT) return EFAULT;
  join_pool();
  return 0;
}

void ServingThread::leave_pool() noexcept {
  server_ = nullptr;
  pool_ = nullptr;
  bound = nullptr;
}

namespace {

// Apart, for what is said of restore().
[[gnu::noinline]] void run(const Dispatch& call, Cancellation cancellation) {
  restore(cancellation);
  call.procedure(call.cookie, call.data, call.size, call.descriptors, call.count);
  (void)hold_cancellation();
}

}  // namespace

[[gnu::hot]] void ServingThread::serve_one() {
  if (cancellation_.state == PTHREAD_CANCEL_ENABLE) {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    ::pthread_testcancel();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  }
  // Nothing in this function may be in need of a destructor while the procedure runs.
  Dispatch call;
  left_alone = false;
  if (!receive(call)) return;
  run(call, cancellation_);
  end_thread();
}

// A thread that has unbound itself finds no descriptor for a place in the other pool, say, or a
// request that comes no memory. There may be some soon.
inline bool ServingThread::receive(Dispatch& call) {
  try {
    join_pool();
    return server_->receive(call, cancellation_.state == PTHREAD_CANCEL_ENABLE);
  } catch (const SystemError&) {     // NOLINT(bugprone-empty-catch): as below
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): as below
  }
  if (serves()) {
    (void)server_->refuse(ENOMEM);
    server_->serving = false;
  }
  constexpr timespec kAWhile{.tv_sec = 0, .tv_nsec = 10'000'000};
  ::nanosleep(&kAWhile, nullptr);
  return false;
}

// Null where there is none, or it is a parent's, whose child has no client to answer.
Deferred* own_deferred(door_deferred_t* call) noexcept {
  auto* const deferred = static_cast<Deferred*>(call);
  return deferred != nullptr && deferred->generation == process::generation() ? deferred : nullptr;
}

// The procedure has come back without door_return(): the client gets EINTR. Apart, because what is
// left of the call takes as much stack here as some programs give to a whole thread.
void ServingThread::end_thread() {
  // Who would serve the next client must not go, where there is nobody else and can be nobody.
  const bool is_last = pool_->lacks_thread.load(std::memory_order_relaxed) &&
                       pool_->idle_threads() == 0 && make_default_thread() != 0;
  if (is_last && server_->refuse(EINTR) == 0) {
    server_->serving = false;
    farcall_door_jump(base_, 1);
  }
  server_->drop();
  ::pthread_exit(nullptr);
}

namespace {

// door_return() and door_refuse() once cancellation is held.
[[gnu::noinline, gnu::hot]] int return_held(char* data, std::size_t size, door_desc_t* descriptors,
                                            uint_t count, Cancellation before) {
  const int error = guarded([&] {
    ServingThread& self = here();
    if (self.serves()) [[likely]]
      return self.answer(data, size, descriptors, count, before);
    return self.begin(descriptors, count);
  });
  if (error != 0) return error < 0 ? -1 : fail(error);
  here().park(before);
}

[[gnu::noinline]] int refuse_held(int error, Cancellation before) {
  Server* const server = call_in_progress();
  if (error <= 0 || error > EHWPOISON || server == nullptr) return fail(EINVAL);
  if (const int failed = server->refuse(error); failed != 0) return fail(failed);
  here().park(before);
}

}  // namespace

}  // namespace farcall::door

using namespace farcall::door;  // what follows is C's

extern "C" {

int door_return(char* data_ptr, size_t data_size, door_desc_t* desc_ptr, uint_t desc_num) {
  const Cancellation before = hold_cancellation();
  const int result = return_held(data_ptr, data_size, desc_ptr, desc_num, before);
  restore(before);
  return result;
}

int door_refuse(int error) {
  const Cancellation before = hold_cancellation();
  const int result = refuse_held(error, before);
  restore(before);
  return result;
}

int door_defer(door_deferred_t** call) {
  Server* const server = call_in_progress();
  if (call == nullptr || server == nullptr) return fail(EINVAL);
  const NoCancel guard;
  return guarded([&] {
    std::unique_ptr<Deferred> deferred;
    if (const int error = server->defer(deferred); error != 0) return fail(error);
    *call = deferred.release();
    return 0;
  });
}

int door_deferred_return(door_deferred_t* call, char* data_ptr, size_t data_size,
                         door_desc_t* desc_ptr, uint_t desc_num) {
  const NoCancel guard;
  return guarded([&] {
    Deferred* const deferred = own_deferred(call);
    if (deferred == nullptr) return fail(EINVAL);
    const int error = deferred->answer(data_ptr, data_size, desc_ptr, desc_num);
    if (error != 0) return fail(error);
    delete deferred;
    return 0;
  });
}

int door_deferred_refuse(door_deferred_t* call, int error) {
  Deferred* const deferred = own_deferred(call);
  if (deferred == nullptr || error <= 0 || error > EHWPOISON) return fail(EINVAL);
  const NoCancel guard;
  deferred->refuse(error);
  delete deferred;
  return 0;
}

int door_deferred_watch(door_deferred_t* call, void (*gone)(void* cookie), void* cookie) {
  Deferred* const deferred = own_deferred(call);
  if (deferred == nullptr) return fail(EINVAL);
  const NoCancel guard;
  deferred->watch(gone, cookie);
  return 0;
}

door_server_func_t* door_server_create(door_server_func_t* create_thread) {
  if (create_thread == nullptr) create_thread = create_default_thread;
  return Process::create_thread.exchange(create_thread);
}

int door_bind(int d) {
  const NoCancel guard;
  return guarded([&] {
    const auto behind = door_behind(d);
    if (!behind) return fail(EBADF);
    auto door = behind->to_bind(d);
    if (!door) return fail(EINVAL);
    here().bound = std::move(door);
    bound_in_parent = false;
    return 0;
  });
}

int door_unbind(void) {
  (void)farcall::process::generation();  // whether this is a child by now
  if (std::exchange(bound_in_parent, false)) return 0;
  if (!bound_door()) return fail(EBADF);
  const NoCancel guard;
  here().bound = nullptr;
  return 0;
}

}  // extern "C"
