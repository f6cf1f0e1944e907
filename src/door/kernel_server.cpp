// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_server.hpp"

#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "call/limits.hpp"
#include "door/kernel_door.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

namespace farcall::door::kernel {
namespace {

// What most clients send; more is asked for.
constexpr std::size_t kRoom = std::size_t{16} * 1024;
// Memory for more than that is kept for the next call, up to here.
constexpr std::size_t kKept = std::size_t{1} << 20;

std::uint64_t address(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Nobody can call this thread any more.
[[noreturn]] void wait_for_ever(bool cancellable) {
  if (cancellable) ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  for (;;) ::pause();
}

// The kernel is short of memory, or this user has too much of it.
void pause_briefly() noexcept {
  const timespec time{.tv_sec = 0, .tv_nsec = 10'000'000};
  ::nanosleep(&time, nullptr);
}

struct KernelCall {
  int pool;
  std::uint64_t id;
  bool bare;  // its client takes no result
};

struct Reply {
  const char* data;
  std::size_t size;
  const door_desc_t* descriptors;
  std::size_t count;
};

bool abandoned(int pool, std::uint64_t call) noexcept {
  ::stplr_door_cred arguments{};
  arguments.id = call;
  return ::ioctl(pool, STPLR_DOOR_CRED, &arguments) != 0 && errno == EINVAL;
}

// The user who called, for the accounts; none where the client has left.
std::optional<uid_t> caller_of(const KernelCall& call) noexcept {
  ::stplr_door_cred arguments{};
  arguments.id = call.id;
  if (::ioctl(call.pool, STPLR_DOOR_CRED, &arguments) != 0) return std::nullopt;
  return arguments.euid;
}

// `send` gives what is in `arguments`; it is told whether it may wait for the next call as well.
template <class Send>
int try_to_give(const KernelCall& call, const Reply& reply, bool stays,
                ::stplr_door_return& arguments, Send send) {
  if (call.bare && (reply.size != 0 || reply.count != 0)) return E2BIG;
  if (reply.count > kMostDescriptors) return E2BIG;
  arguments.id = call.id;
  arguments.data = address(reply.data);
  arguments.size = reply.size;
  arguments.count = 0;
  if (reply.count == 0) return send(stays);
  Outgoing outgoing;
  if (const int error = outgoing.add(reply.descriptors, reply.count); error != 0) return error;
  try {
    outgoing.prepare(caller_of(call));
  } catch (const SystemError& error) {
    return error.code().value();
  }
  std::vector<::stplr_door_desc> sent;
  sent.reserve(reply.count);
  for (const int fd : outgoing.descriptors())
    sent.push_back({.fd = fd, .attributes = STPLR_DOOR_DESCRIPTOR, .id = 0});
  arguments.descriptors = address(sent.data());
  arguments.count = static_cast<std::uint32_t>(reply.count);
  // What is to be closed is closed before this waits.
  if (const int error = send(false); error != 0) return error;
  outgoing.release();
  return 0;
}

// Nobody cares any more what is wrong with an answer if the client has gone.
template <class Send>
int give(const KernelCall& call, const Reply& reply, bool stays, ::stplr_door_return& arguments,
         Send send) {
  const int error = try_to_give(call, reply, stays, arguments, send);
  if (error == 0) return 0;
  const bool gone = abandoned(call.pool, call.id);
  if ((gone || error == EINVAL) && release_all(reply.descriptors, reply.count) == EFAULT)
    return EFAULT;
  return gone ? 0 : error;
}

// Gives an answer, and does not wait.
int give_only(int pool, ::stplr_door_return& arguments, std::uint32_t flags = 0) noexcept {
  arguments.flags = STPLR_RETURN_ONLY | flags;
  return ::ioctl(pool, STPLR_DOOR_RETURN, &arguments) < 0 ? errno : 0;
}

// Ends a call with an error; 0 stands for E2BIG, which an older kernel can say, too.
int give_error(int pool, ::stplr_door_return& arguments, std::uint64_t call, int error) noexcept {
  arguments.id = call;
  arguments.size = 0;
  arguments.count = 0;
  arguments.refusal = static_cast<std::uint32_t>(error == E2BIG ? 0 : error);
  const int failed = give_only(pool, arguments, STPLR_RETURN_REFUSE);
  arguments.refusal = 0;
  return failed;
}

// Has the client send a call again, with its memory at hand. An older kernel cannot, and has the
// program do so.
void give_back(int pool, ::stplr_door_return& arguments, std::uint64_t call) noexcept {
  arguments.id = call;
  arguments.size = 0;
  arguments.count = 0;
  if (give_only(pool, arguments, STPLR_RETURN_AGAIN) == EINVAL)
    give_error(pool, arguments, call, EAGAIN);
}

}  // namespace

KernelServer::KernelServer(std::shared_ptr<KernelPool> pool)
    : pool_(std::move(pool)),
      thread_(::gettid()),
      room_(std::make_unique_for_overwrite<std::byte[]>(kRoom)),
      received_(std::make_unique_for_overwrite<::stplr_door_desc[]>(kMostDescriptors)) {
  pool_->add(thread_, *this);
}

KernelServer::~KernelServer() {
  pool_->remove(thread_);
  if (!idle_) return;
  // It was cancelled there, perhaps when a call had just come, which goes with it.
  set_idle(false);
  ReceivedFds received;
  for (const auto& one : std::span(received_.get(), arguments_.received_count))
    received.emplace_back(one.fd);
}

void KernelServer::client_left(std::uint64_t call) noexcept {
  const std::lock_guard guard(lock_);
  left_ = call;
  if (current_ == call) ::pthread_cancel(self_);
}

// The thread has `call` from now on; it may be known already that its client has left.
void KernelServer::begin(std::uint64_t call) noexcept {
  const std::lock_guard guard(lock_);
  current_ = call;
  if (call != 0 && left_ == call) ::pthread_cancel(self_);
}

// From now on nobody cancels it for the sake of that call.
void KernelServer::end() noexcept {
  const std::lock_guard guard(lock_);
  current_ = 0;
}

void KernelServer::set_idle(bool idle) noexcept {
  if (std::exchange(idle_, idle) != idle)
    pool_->idle.fetch_add(idle ? 1 : -1, std::memory_order_relaxed);
}

// Gives the answer that arguments_ says, if any, and waits for a call. Returns 0 or an errno value.
int KernelServer::wait(bool cancellable) {
  arguments_.flags = 0;
  arguments_.room = address(room_.get());
  arguments_.room_size = kRoom;
  arguments_.received = address(received_.get());
  arguments_.received_room = kMostDescriptors;
  arguments_.received_count = 0;
  set_idle(true);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const int error = cancellable ? ioctl_cancellably(pool_->fd(), STPLR_DOOR_RETURN, &arguments_)
                    : ::ioctl(pool_->fd(), STPLR_DOOR_RETURN, &arguments_) < 0 ? errno
                                                                               : 0;
  return error;
}

bool KernelServer::receive(Dispatch& call, bool cancellable) {
  if (!std::exchange(ready_, false)) {
    arguments_.id = 0;
    const int error = wait(cancellable);
    if (error == ENOMEM || error == EDQUOT) pause_briefly();
    if (error == ESRCH || error == EBADF || error == EPERM || error == ENOTTY)
      wait_for_ever(cancellable);
    if (error != 0) return false;
  }
  set_idle(false);
  call_ = arguments_.next_id;
  bare_ = (arguments_.notes & STPLR_NOTE_BARE) != 0;
  const bool is_long = arguments_.length > kRoom;
  if (large_.size() > kKept || (is_long && large_.size() < arguments_.length)) large_.reset();
  ReceivedFds descriptors;
  if (arguments_.received_count != 0) {
    descriptors.reserve(arguments_.received_count);
    for (const auto& one : std::span(received_.get(), arguments_.received_count))
      descriptors.emplace_back(one.fd);
  }
  if (const int error = is_long ? fetch_long() : 0; error != 0) {
    if (error == EAGAIN)
      give_back(pool_->fd(), arguments_, call_);
    else
      give_error(pool_->fd(), arguments_, call_, error);
    return false;
  }
  begin(call_);
  serving = true;
  if (pool_->idle_threads() == 0) ask_for_thread(*pool_, pool_->only_door.lock(), {});
  call.procedure = reinterpret_cast<door_server_procedure_t*>(arguments_.procedure);
  call.cookie = reinterpret_cast<void*>(arguments_.cookie);
  if (is_notice()) {
    call.data = static_cast<char*>(DOOR_UNREF_DATA);
  } else if (arguments_.length != 0) {
    call.data = reinterpret_cast<char*>(is_long ? large_.data() : room_.get());
    call.size = arguments_.length;
  }
  if (!descriptors.empty()) {
    shown_.resize(descriptors.size());
    call.descriptors = shown_.data();
    call.count = static_cast<uint_t>(descriptors.size());
    hand_out(descriptors, shown_.data());
  }
  return true;
}

// Has all of a request in memory of its own. Returns 0, or an errno: E2BIG where it is more than
// this process takes, EFAULT where it cannot be read, EAGAIN where it cannot be read now: the
// client has not touched it yet, is changing its memory, or has been stopped. Nobody waits for that
// here.
int KernelServer::fetch_long() {
  const std::uint64_t size = arguments_.length;
  if (size > call::limits_of_process().request_bytes) return E2BIG;
  if (!large_) large_ = Mapping::anonymous_private(size);
  if (!large_) return E2BIG;
  std::copy_n(room_.get(), kRoom, large_.data());
  ::stplr_access rest{.id = call_,
                      .offset = kRoom,
                      .buffer = {.address = address(large_.data() + kRoom),
                                 .length = static_cast<std::uint32_t>(size - kRoom),
                                 .count = 0}};
  const long got = ::ioctl(pool_->fd(), STPLR_READ, &rest);
  if (got == static_cast<long>(size - kRoom)) return 0;
  if (got >= 0) return EFAULT;
  return errno == EINTR ? EAGAIN : errno;
}

int KernelServer::refuse(int error) noexcept {
  if (is_notice()) return 0;
  end();
  set_idle(true);  // as for an answer
  const int failed = give_error(pool_->fd(), arguments_, call_, error);
  if (failed == 0) return 0;
  set_idle(false);
  begin(call_);
  return failed == EINVAL ? EOPNOTSUPP : failed;
}

int KernelServer::answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                         std::size_t count, bool stays) {
  end();
  // The next client may call before this thread waits for it.
  set_idle(true);
  int error = 0;
  if (!is_notice()) {
    const Reply reply{.data = data, .size = size, .descriptors = descriptors, .count = count};
    const KernelCall call{.pool = pool_->fd(), .id = call_, .bare = bare_};
    error = give(call, reply, stays, arguments_, [this](bool waits) { return send_answer(waits); });
  } else if (count != 0) {
    (void)release_all(descriptors, count);
  }
  if (error == 0) return 0;
  set_idle(false);
  begin(call_);
  return error;
}

// `stays`: waits for the next call as well. While that comes the answer still lies on the stack of
// the procedure, so it is done here.
int KernelServer::send_answer(bool stays) {
  int error = 0;
  do {
    if (stays) {
      error = wait(false);
    } else {
      error = give_only(pool_->fd(), arguments_);
    }
    // Where it has been given, and the wait was interrupted, the kernel has cleared the number.
  } while (error == EINTR && arguments_.id != 0);
  ready_ = stays && error == 0;
  if (error == EINTR) return 0;
  // The wait may have failed where the answer has not.
  return error != 0 && stays && abandoned(pool_->fd(), call_) ? 0 : error;
}

// The room for short requests is the thread's, so those are copied.
int KernelServer::defer(std::unique_ptr<Deferred>& call) {
  if (is_notice()) return EINVAL;
  const std::size_t size = arguments_.length;
  const bool is_long = size > kRoom;
  std::vector<std::byte> short_data;
  if (!is_long) short_data.assign(room_.get(), room_.get() + size);
  auto deferred = std::make_unique<KernelDeferred>(pool_, call_, bare_, std::move(short_data));
  end();
  arguments_.id = call_;
  const int error = give_only(pool_->fd(), arguments_, STPLR_RETURN_DEFER);
  if (error == ESRCH) deferred->client_left();
  if (error != 0 && error != ESRCH) {
    begin(call_);
    return error == EINVAL ? EOPNOTSUPP : ENOMEM;
  }
  if (is_long) deferred->take(std::exchange(large_, Mapping()), size);
  serving = false;
  call_ = 0;  // no longer this thread's to end
  call = std::move(deferred);
  return 0;
}

KernelDeferred::KernelDeferred(std::shared_ptr<KernelPool> pool, std::uint64_t call, bool bare,
                               std::vector<std::byte> data)
    : pool_(std::move(pool)), id_(call), bare_(bare), short_(std::move(data)) {
  show(short_);
  pool_->add(id_, *this);
}

KernelDeferred::~KernelDeferred() { pool_->remove_deferred(id_); }

void KernelDeferred::take(Mapping data, std::size_t size) noexcept {
  long_ = std::move(data);
  show({long_.data(), size});
}

int KernelDeferred::answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                           std::size_t count) {
  const int pool = pool_->fd();
  const Reply reply{.data = data, .size = size, .descriptors = descriptors, .count = count};
  ::stplr_door_return arguments{};
  return give({.pool = pool, .id = id_, .bare = bare_}, reply, false, arguments, [&](bool) {
    int error = EINTR;
    while (error == EINTR) error = give_only(pool, arguments);
    return error;
  });
}

void KernelDeferred::refuse(int error) noexcept {
  ::stplr_door_return arguments{};
  (void)give_error(pool_->fd(), arguments, id_, error);
}

void KernelDeferred::register_watch(void (*gone)(void* cookie), void* cookie) noexcept {
  const std::lock_guard guard(lock_);
  set_watch(gone, cookie);
  if (left_) tell();
}

void KernelDeferred::client_left() noexcept {
  const std::lock_guard guard(lock_);
  left_ = true;
  tell();
}

int KernelServer::identify(CallerIdentity& caller) {
  if (is_notice()) return EINVAL;
  ::stplr_door_cred arguments{};
  std::vector<gid_t> groups(32);
  // They do not change while the call lasts.
  for (;;) {
    arguments.id = call_;
    arguments.groups = address(groups.data());
    arguments.group_room = static_cast<std::uint32_t>(groups.size());
    if (::ioctl(pool_->fd(), STPLR_DOOR_CRED, &arguments) != 0) return errno;
    const bool all = arguments.group_count <= groups.size();
    groups.resize(arguments.group_count);
    if (all) break;
  }
  caller = {.effective = {.pid = arguments.pid, .uid = arguments.euid, .gid = arguments.egid},
            .real_uid = arguments.ruid,
            .real_gid = arguments.rgid,
            .saved_uid = arguments.suid,
            .saved_gid = arguments.sgid,
            .groups = std::move(groups)};
  return 0;
}

// The kernel ends the call with the thread.
void KernelServer::drop() noexcept {
  end();
  serving = false;
}

}  // namespace farcall::door::kernel
