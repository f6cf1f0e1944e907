// SPDX-License-Identifier: Apache-2.0
//
// An imported door: its server procedure publishes the request and defers the answer, which is
// given by who hears of it.
#include <door.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include "bridge/importer.hpp"
#include "bridge/inside.hpp"
#include "farcall/door.hpp"
#include "farcall/doors.h"

namespace farcall::bridge {
namespace {

std::atomic<unsigned> threads{0};
std::atomic<unsigned> occupied{0};  // of them, those that wait
std::atomic<unsigned> calls_in_progress{0};
std::atomic<unsigned> most{4096};  // of each

class DoorCall final : public OutgoingCall, public std::enable_shared_from_this<DoorCall> {
 public:
  DoorCall(Imported& to, const Header& about, door_deferred_t* call, ImportContext context)
      : OutgoingCall(to, about, call->data_size), name_(to), context_(context), call_(call) {}

  // From now on the client's death ends it.
  void watch() {
    const std::lock_guard guard(lock_);
    if (call_ != nullptr) ::door_deferred_watch(call_, &DoorCall::gone, this);
  }

 protected:
  // Not asked for any more once the call has been taken.
  std::span<const std::byte> request(std::uint64_t offset, std::size_t size) override {
    return std::as_bytes(std::span(call_->data_ptr, call_->data_size)).subspan(offset, size);
  }
  void finished(Answer& answer) noexcept override {
    door_deferred_t* const call = take();
    if (answer.error != 0) return refuse(call, answer.error);
    const std::span<const std::byte> reply = answer.data();
    auto* const data = reinterpret_cast<char*>(const_cast<std::byte*>(reply.data()));
    if (::door_deferred_return(call, data, reply.size(), nullptr, 0) != 0) refuse(call, errno);
  }
  void given_up() noexcept override { refuse(take(), EINTR); }

 private:
  // By a thread of the library of doors, which is not to be kept.
  static void gone(void* self) {
    auto& call = *static_cast<DoorCall*>(self);
    call.context_.calls.give_up_soon(call.shared_from_this());
    call.context_.ticker.wake();
  }
  // Once.
  door_deferred_t* take() noexcept {
    --calls_in_progress;
    const std::lock_guard guard(lock_);
    return std::exchange(call_, nullptr);
  }
  void refuse(door_deferred_t* call, int error) noexcept {
    if (error != EINTR) name_.statistics.last_error = error;
    ::door_deferred_refuse(call, error);
  }

  Imported& name_;
  const ImportContext context_;
  std::mutex lock_;  // protects the next
  door_deferred_t* call_;
};

void make_door_thread();

// One serves all as long as it need not wait; there is always one that does not.
class CountedThread {
 public:
  CountedThread() = default;
  CountedThread(const CountedThread&) = delete;
  CountedThread& operator=(const CountedThread&) = delete;
  ~CountedThread() {
    --threads;
    make_door_thread();
  }
};

class Occupied {
 public:
  Occupied() {
    ++occupied;
    make_door_thread();
  }
  Occupied(const Occupied&) = delete;
  Occupied& operator=(const Occupied&) = delete;
  ~Occupied() { --occupied; }
};

// Cancellation is enabled between calls, so that one that came too late for its call ends the
// thread there and not in somebody else's call.
void* serve_doors(void*) {
  const CountedThread counted;
  ::door_return(nullptr, 0, nullptr, 0);
  return nullptr;
}

// If all that there are wait.
void make_door_thread() {
  unsigned now = threads;
  do {
    if (now > occupied || now >= most) return;
  } while (!threads.compare_exchange_weak(now, now + 1));
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  ::pthread_attr_setstacksize(&attributes, std::size_t{256} << 10);
  pthread_t thread;
  if (::pthread_create(&thread, &attributes, &serve_doors, nullptr) != 0) --threads;
  ::pthread_attr_destroy(&attributes);
}

class ImportedDoor final : public ImportedServer {
 public:
  ImportedDoor(Imported& name, ImportContext context) : name_(name), context_(context) {
    fd_ = ::door_create(&ImportedDoor::serve, this, DOOR_REFUSE_DESC);
    if (fd_ < 0) throw BridgeError(fmt::format("cannot make a door: {}", ::strerrorname_np(errno)));
    const Door door = Door::adopt(::dup(fd_));
    try {
      const bool fresh = ::access(name.name.path.c_str(), F_OK) != 0;
      attached_.emplace(door, name.name.path, name.name.mode);
      if (fresh) ::chmod(name.name.path.c_str(), name.name.mode);
    } catch (const DoorError& error) {
      ::door_revoke(fd_);
      throw BridgeError(fmt::format("cannot import {} as door {}: {}", name.name.subject,
                                    name.name.path, error.what()));
    }
  }
  // A call that had come when the door was closed may not have begun yet.
  ~ImportedDoor() override {
    constexpr std::chrono::milliseconds kBegin{10};
    close();
    do std::this_thread::sleep_for(kBegin);
    while (inside_ != 0);
  }
  void close() override {
    if (!attached_) return;
    attached_.reset();
    ::door_revoke(fd_);
  }

 private:
  static void serve(void* cookie, char* data, std::size_t size, door_desc_t* descriptors,
                    uint_t count);
  // What has a destructor is gone when they return. 0, or the errno that the call fails with.
  int call(std::size_t size);
  int identify(Header& header) const;

  Imported& name_;
  const ImportContext context_;
  int fd_ = -1;
  std::optional<AttachedDoor> attached_;
  std::atomic<unsigned> inside_{0};  // threads in serve()
};

// Who calls, and whether it may.
int ImportedDoor::identify(Header& header) const {
  door_cred_t client;
  if (::door_cred(&client) != 0) return EINTR;
  if (!may_call(name_, client.dc_euid)) return EACCES;
  header.caller = {.pid = client.dc_pid,
                   .uid = std::int64_t{client.dc_euid},
                   .gid = std::int64_t{client.dc_egid}};
  return 0;
}

int ImportedDoor::call(std::size_t size) {
  const Inside inside(inside_);
  Header header{.kind = Kind::call};
  if (const int error = identify(header); error != 0) return error;
  if (size > kLongest) return E2BIG;
  door_deferred_t* deferred = nullptr;
  if (++calls_in_progress > most || ::door_defer(&deferred) != 0) {
    --calls_in_progress;
    return EAGAIN;
  }
  const auto call = std::make_shared<DoorCall>(name_, header, deferred, context_);
  {
    std::optional<Occupied> waits;
    if (context_.calls.waits()) waits.emplace();
    context_.calls.start(call);
  }
  context_.ticker.wake();
  call->watch();
  return 0;
}

// Cancellation is enabled only where the call is over: it is for the thread between two calls.
void ImportedDoor::serve(void* cookie, char*, std::size_t size, door_desc_t*, uint_t) {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  const int error = static_cast<ImportedDoor*>(cookie)->call(size);
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  if (error != 0) ::door_refuse(error);
  ::door_return(nullptr, 0, nullptr, 0);
}

}  // namespace

bool may_call(const Imported& name, uid_t user) noexcept {
  static const uid_t nobody = [] {
    uid_t id = 65534;
    std::ifstream("/proc/sys/kernel/overflowuid") >> id;
    return id;
  }();
  if (!name.name.allowed) return true;
  if (user == nobody || user == 65534) return false;
  const auto& all = *name.name.allowed;
  return std::find(all.begin(), all.end(), user) != all.end();
}

void limit_door_calls(unsigned number) noexcept {
  most = number;
  ::door_server_create([](door_info_t*) { make_door_thread(); });
}

std::unique_ptr<ImportedServer> import_door(Imported& name, ImportContext context) {
  return std::make_unique<ImportedDoor>(name, context);
}

}  // namespace farcall::bridge
