// SPDX-License-Identifier: Apache-2.0
#include "door/server.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>

#include "door/kernel_door.hpp"
#include "door/pages.hpp"
#include "farcall/error.hpp"
#include "process/per_thread.hpp"

// The C library's, behind pthread_cleanup_push() in C; <pthread.h> hides them from C++.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void __pthread_register_cancel(__pthread_unwind_buf_t*);
void __pthread_unregister_cancel(__pthread_unwind_buf_t*);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace farcall::door {
namespace {

// A thread that has been asked for has this long to arrive before another one is.
constexpr std::int64_t kStarting = 100'000'000;

// What a thread is that serves, or has ever served. Lives until the thread ends.
class ServingThread final : public ClientDeathObserver {
 public:
  void client_gone(const Endpoint& endpoint) noexcept override {
    const auto owner = endpoint.owner();
    if (!owner) return;
    const auto& door = static_cast<const Door&>(*owner);
    if ((door.attributes & DOOR_NO_CANCEL) == 0) ::pthread_cancel(self_);
  }

  void left() noexcept override {
    if (serving != nullptr) return;
    door_endpoint_ = nullptr;
    door_ = nullptr;
  }

  // Answers the call that is being served. Returns 0 or an errno value; the client then waits on.
  int answer(const char* data, std::size_t size, const door_desc_t* descriptors,
             std::size_t count) {
    const int error = try_to_answer(data, size, descriptors, count);
    return error == 0 ? 0 : drop_answer(error, descriptors, count);
  }
  // Somebody else is to serve the next client meanwhile.
  void busy(const Endpoint& endpoint) override {
    if (const auto owner = endpoint.owner()) make_spare(static_cast<Door&>(*owner));
  }
  [[noreturn]] void park(int cancel_state);

  std::shared_ptr<Door> bound;
  Door* serving = nullptr;  // null between calls
  Incoming incoming;

 private:
  int try_to_answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                    std::size_t count);
  int reply(const char* data, std::size_t size, Outgoing* outgoing);
  int drop_answer(int error, const door_desc_t* descriptors, std::size_t count);
  [[noreturn]] void serve();
  void serve_one();
  int refusal() noexcept;
  [[gnu::noinline, noreturn]] void end_thread();
  void join_pool();
  void make_spare(Door& door);

  const pthread_t self_ = ::pthread_self();
  // Of the last call. Mostly the next comes through the same, and a look is cheaper than to count.
  std::shared_ptr<Door> door_;
  const Endpoint* door_endpoint_ = nullptr;
  std::shared_ptr<Pool> pool_;    // that thread_ serves
  const Door* joined_ = nullptr;  // whose pool that is; null: the shared one
  std::unique_ptr<ServerThread> thread_;
  std::vector<door_desc_t> received_;
  int cancel_state_ = PTHREAD_CANCEL_ENABLE;
  bool parked_before_ = false;
  jmp_buf base_;
  __pthread_unwind_buf_t handlers_;  // knows the clean-up handlers that stand below base_
};

ServingThread& here() { return process::PerThread<ServingThread>::get(); }

// In a forked child the thread that forked may be in the middle of a call of the parent's. That is
// not its own to answer.
void leave_parents_calls() noexcept { process::PerThread<ServingThread>::leave(); }

[[maybe_unused]] const bool kRegistered = [] {
  process::around_fork(process::Room::door, nullptr, nullptr, leave_parents_calls);
  return true;
}();

// A thread that is cancelled or ends is unwound: nothing from here on may be noexcept.
void join_pool_when_created(void*) {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  ::door_return(nullptr, 0, nullptr, 0);
}

// Passed to a thread that the creation function of a door_xcreate() starts.
struct Start {
  std::shared_ptr<Door> door;
  std::mutex lock;
  std::condition_variable changed;
  int bound = 0;
  bool decided = true;  // at creation the threads wait until all are there
  bool abandoned = false;
};

void* start_bound_thread(void* argument) {
  const std::unique_ptr<std::shared_ptr<Start>> owned(
      static_cast<std::shared_ptr<Start>*>(argument));
  const std::shared_ptr<Start> start = *owned;
  const std::shared_ptr<Door> door = start->door;
  if (door->maker.set_up != nullptr) {
    door->maker.set_up(door->maker.cookie);
  } else {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
  }
  {
    const NoCancel guard;
    here().bound = door;
    std::unique_lock lock(start->lock);
    ++start->bound;
    start->changed.notify_all();
    start->changed.wait(lock, [&] { return start->decided; });
    if (start->abandoned) {
      here().bound = nullptr;
      return nullptr;
    }
  }
  return start.get();
}

// The thread must not keep its parameters alive for ever: door_return() does not come back.
void* start_and_park(void* argument) {
  if (start_bound_thread(argument) != nullptr) ::door_return(nullptr, 0, nullptr, 0);
  return nullptr;
}

int ask_for_bound_thread(const std::shared_ptr<Start>& start) {
  auto* argument = new (std::nothrow) std::shared_ptr<Start>(start);
  if (argument == nullptr) return -1;
  const Door::Maker& maker = start->door->maker;
  const int result =
      maker.create(start->door->lasting_info(), start_and_park, argument, maker.cookie);
  if (result != 1) delete argument;
  return result;
}

}  // namespace

void create_default_thread(door_info_t*) noexcept {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  ::pthread_create(
      &thread, &attributes,
      [](void* nothing) -> void* {
        join_pool_when_created(nothing);
        return nullptr;
      },
      nullptr);
  ::pthread_attr_destroy(&attributes);
}

int start_bound_threads(const std::shared_ptr<Door>& door, int count) {
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
  start->changed.wait(lock, [&] { return start->bound >= made; });
  start->abandoned = error != 0;
  start->decided = true;
  start->changed.notify_all();
  return error;
}

std::shared_ptr<Door> bound_door() noexcept {
  const ServingThread* self = process::PerThread<ServingThread>::made();
  return self != nullptr ? self->bound : nullptr;
}

Incoming* call_in_progress() noexcept {
  ServingThread* self = process::PerThread<ServingThread>::made();
  return self != nullptr && self->serving != nullptr && !self->incoming.notice() ? &self->incoming
                                                                                 : nullptr;
}

void hand_out(ReceivedFds& descriptors, door_desc_t* into) {
  for (UniqueFd& descriptor : descriptors) {
    const int fd = descriptor.release();
    ::fcntl(fd, F_SETFD, 0);
    *into = {};
    into->d_attributes = DOOR_DESCRIPTOR;
    into->d_data.d_desc.d_descriptor = fd;
    if (const auto handle = Process::here().find(fd)) {
      const auto door = handle->local.lock();
      into->d_attributes |= door ? door->info().di_attributes : handle->name.attributes;
      into->d_data.d_desc.d_id = handle->name.id;
    } else if (const auto by_kernel = kernel::info(fd)) {
      into->d_attributes |= by_kernel->shown.di_attributes;
      into->d_data.d_desc.d_id = by_kernel->shown.di_uniquifier;
    }
    ++into;
  }
}

int Outgoing::add(const door_desc_t* descriptors, std::size_t count) {
  if (count == 0) return 0;
  if (count > SIZE_MAX / sizeof *descriptors || !readable(descriptors, count * sizeof *descriptors))
    return EFAULT;
  int error = 0;
  for (const door_desc_t& descriptor : std::span(descriptors, count)) {
    const int fd = descriptor.d_data.d_desc.d_descriptor;
    if ((descriptor.d_attributes & DOOR_DESCRIPTOR) == 0 || ::fcntl(fd, F_GETFD) < 0) {
      error = EINVAL;
      continue;
    }
    sent_.push_back(fd);
    if ((descriptor.d_attributes & DOOR_RELEASE) != 0) release_.push_back(fd);
  }
  return error;
}

void Outgoing::prepare() {
  for (int& fd : sent_) {
    if (!known(fd) && !read_name(fd)) continue;
    const auto handle = Process::here().find(fd);
    const auto door = handle ? handle->local.lock() : nullptr;
    if (!door) continue;
    branches_.push_back(door->branch());
    fd = branches_.back().get();
  }
}

void Outgoing::release() noexcept {
  branches_.clear();
  for (const int fd : release_) (void)closing(fd, [fd] { return real::close(fd); });
}

static int release_all(const door_desc_t* descriptors, std::size_t count) {
  Outgoing outgoing;
  const int error = outgoing.add(descriptors, count);
  if (error != EFAULT) outgoing.release();
  return error;
}

int ServingThread::try_to_answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                                 std::size_t count) {
  if (incoming.notice()) {
    if (count != 0) (void)release_all(descriptors, count);
    return 0;
  }
  if ((incoming.word() & kNoArguments) != 0 && (size != 0 || count != 0)) return E2BIG;
  if (count > kMostDescriptors) return E2BIG;
  if (!readable(data, size)) return EFAULT;
  if (count == 0) [[likely]]
    return reply(data, size, nullptr);
  Outgoing outgoing;
  if (const int error = outgoing.add(descriptors, count); error != 0) return error;
  return reply(data, size, &outgoing);
}

// Nobody cares any more what is wrong with an answer if the client has gone.
int ServingThread::drop_answer(int error, const door_desc_t* descriptors, std::size_t count) {
  const bool gone = incoming.abandoned();
  if ((gone || error == EINVAL) && release_all(descriptors, count) == EFAULT) return EFAULT;
  return gone ? 0 : error;
}

// `outgoing`: the descriptors, or null where there are none.
int ServingThread::reply(const char* data, std::size_t size, Outgoing* outgoing) {
  try {
    if (outgoing != nullptr) outgoing->prepare();
    // A client that has gone takes nothing, and wants nothing more.
    thread_->reply(incoming, std::as_bytes(std::span(data, size)),
                   outgoing != nullptr ? outgoing->descriptors() : std::span<const int>());
  } catch (const SystemError& error) {
    const int code = error.code().value();
    return code == EBADF ? EINVAL : code;
  }
  if (outgoing != nullptr) outgoing->release();
  return 0;
}

void ServingThread::park(int cancel_state) {
  serving = nullptr;
  cancel_state_ = cancel_state;
  if (parked_before_) ::longjmp(base_, 1);
  parked_before_ = true;
  serve();
}

// The frame that every later door_return() of this thread comes back to. What procedures have put
// on the stack above it is forgotten without further ado, as Solaris does; the clean-up handlers of
// C are on the stack, too, and a list of them leads there.
void ServingThread::serve() {
  ::__pthread_register_cancel(&handlers_);
  (void)::_setjmp(base_);
  ::__pthread_unregister_cancel(&handlers_);
  for (;;) serve_one();
}

void ServingThread::join_pool() {
  if (pool_ && joined_ == bound.get()) [[likely]]
    return;
  auto pool = bound ? bound->pool : Process::here().shared_pool();
  joined_ = bound.get();
  if (pool == pool_) return;
  thread_ = std::make_unique<ServerThread>(pool->port, Process::here().mode, this);
  thread_->set_restartable(true);
  pool_ = std::move(pool);
  pool_->starting_until.store(0, std::memory_order_relaxed);
}

// Called when this thread is about to serve: if nobody else of the pool is left to serve the next
// client, the program is asked for one more.
void ServingThread::make_spare(Door& door) {
  if (pool_->port.has_sleeping_thread() && !incoming.crowded()) [[likely]]
    return;
  const bool by_xcreate = door.maker.create != nullptr;
  if (by_xcreate && (door.attributes & DOOR_DEPLETION_CB) == 0) return;
  const std::int64_t now = monotonic_ns();
  if (now < pool_->starting_until.load(std::memory_order_relaxed)) return;
  if (!incoming.crowded() && pool_->port.has_idle_thread()) return;
  pool_->starting_until.store(now + kStarting, std::memory_order_relaxed);
  if (by_xcreate) {
    auto start = std::make_shared<Start>();
    start->door = door.shared_from_this();
    if (ask_for_bound_thread(start) != 1) pool_->starting_until.store(0, std::memory_order_relaxed);
  } else {
    const bool is_private = (door.attributes & DOOR_PRIVATE) != 0;
    Process::here().create_thread.load()(is_private ? door.lasting_info() : nullptr);
  }
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);  // whatever the program has done
}

// Which errno a request is to fail with that should not have been made; or 0.
[[gnu::always_inline]] inline int ServingThread::refusal() noexcept {
  if (incoming.word() == 0) [[likely]]
    return 0;
  const std::span<const std::byte> data = incoming.data();
  if ((incoming.word() & kBadArguments) == 0)
    return data.empty() && incoming.descriptors().empty() ? 0 : EINVAL;  // it says it has none
  std::uint64_t bytes = 0;
  if (data.size() == sizeof bytes) std::memcpy(&bytes, data.data(), sizeof bytes);
  return bytes > kMostRequestBytes ? E2BIG : EFAULT;
}

[[gnu::hot]] void ServingThread::serve_one() {
  if (cancel_state_ == PTHREAD_CANCEL_ENABLE) {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    ::pthread_testcancel();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  }
  join_pool();
  thread_->set_cancellable(cancel_state_ == PTHREAD_CANCEL_ENABLE);
  if (thread_->receive(incoming, Deadline::never()) != Outcome::ok) return;
  // Nothing in this function may be in need of a destructor while the procedure runs.
  if (incoming.endpoint() != door_endpoint_) [[unlikely]] {
    door_ = std::static_pointer_cast<Door>(incoming.endpoint()->owner());
    door_endpoint_ = door_ ? incoming.endpoint() : nullptr;
  }
  if (!door_) {  // nobody can call it any more
    incoming.refuse(EBADF);
    return;
  }
  Door& door = *door_;
  serving = &door;
  const std::size_t count = incoming.descriptors().size();
  if (const int error = refusal(); error != 0) [[unlikely]] {
    incoming.refuse(error);
    serving = nullptr;
    return;
  }
  if (!incoming.notice()) {
    if (const int error = door.admit(incoming.data().size(), count); error != 0) [[unlikely]] {
      incoming.refuse(error);
      serving = nullptr;
      return;
    }
  }
  make_spare(door);
  char* data = nullptr;
  std::size_t size = 0;
  if (incoming.notice()) {
    data = static_cast<char*>(DOOR_UNREF_DATA);
  } else if (!incoming.data().empty()) {
    data = reinterpret_cast<char*>(incoming.data().data());
    size = incoming.data().size();
  }
  door_desc_t* descriptors = nullptr;
  if (count != 0) {
    received_.resize(count);
    descriptors = received_.data();
    hand_out(incoming.descriptors(), descriptors);
    incoming.descriptors().clear();
  }
  if (cancel_state_ == PTHREAD_CANCEL_ENABLE) ::pthread_setcancelstate(cancel_state_, nullptr);
  door.procedure(door.cookie, data, size, descriptors, static_cast<uint_t>(count));
  end_thread();
}

// The procedure has come back without door_return(): the client gets EINTR. Apart, because what is
// left of the call takes as much stack here as some programs give to a whole thread.
void ServingThread::end_thread() {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  serving = nullptr;
  incoming = Incoming();
  ::pthread_exit(nullptr);
}

}  // namespace farcall::door

using namespace farcall::door;  // NOLINT(google-build-using-namespace): what follows is C's

extern "C" {

int door_return(char* data_ptr, size_t data_size, door_desc_t* desc_ptr, uint_t desc_num) {
  int state = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  const int error = guarded([&] {
    ServingThread& self = here();
    return self.serving != nullptr ? self.answer(data_ptr, data_size, desc_ptr, desc_num) : 0;
  });
  if (error != 0) {
    ::pthread_setcancelstate(state, nullptr);
    return error < 0 ? -1 : fail(error);
  }
  here().park(state);
}

door_server_func_t* door_server_create(door_server_func_t* create_thread) {
  if (create_thread == nullptr) create_thread = create_default_thread;
  return Process::here().create_thread.exchange(create_thread);
}

int door_bind(int d) {
  const NoCancel guard;
  return guarded([&] {
    const auto handle = Process::here().find(d);
    if (!handle) return fail(EBADF);
    const auto door = handle->local.lock();
    if (!door || (door->attributes & DOOR_PRIVATE) == 0) return fail(EINVAL);
    here().bound = door;
    return 0;
  });
}

int door_unbind(void) {
  if (!bound_door()) return fail(EBADF);
  const NoCancel guard;
  here().bound = nullptr;
  return 0;
}

}  // extern "C"
