// SPDX-License-Identifier: Apache-2.0
//
// An imported door: its server procedure publishes the request and waits for the answer.
#include <door.h>
#include <fmt/format.h>
#include <pthread.h>
#include <semaphore.h>
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

class DoorCall final : public OutgoingCall {
 public:
  DoorCall(Imported& to, const Header& about, std::span<const std::byte> data)
      : OutgoingCall(to, about, data.size()), data_(data) {
    ::sem_init(&over_, 0, 0);
  }
  DoorCall(const DoorCall&) = delete;
  DoorCall& operator=(const DoorCall&) = delete;
  ~DoorCall() override { ::sem_destroy(&over_); }

  // A point of cancellation, and none of the rest is: that is how a server hears that its client
  // has gone.
  Answer& wait() {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    while (::sem_wait(&over_) != 0) continue;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    return answer_;
  }

 protected:
  std::span<const std::byte> request(std::uint64_t offset, std::size_t size) override {
    return data_.subspan(offset, size);
  }
  void finished(Answer& answer) noexcept override {
    answer_ = std::move(answer);
    ::sem_post(&over_);
  }

 private:
  const std::span<const std::byte> data_;
  Answer answer_;
  sem_t over_;
};

// A thread that is cancelled while it waits comes by here.
class GiveUp {
 public:
  GiveUp(Calls& calls, DoorCall& call) : calls_(calls), call_(call) {}
  GiveUp(const GiveUp&) = delete;
  GiveUp& operator=(const GiveUp&) = delete;
  ~GiveUp() { calls_.give_up(call_); }

 private:
  Calls& calls_;
  DoorCall& call_;
};

std::atomic<unsigned> threads{0};
std::atomic<unsigned> most_threads{4096};

class CountedThread {
 public:
  CountedThread() = default;
  CountedThread(const CountedThread&) = delete;
  CountedThread& operator=(const CountedThread&) = delete;
  ~CountedThread() { --threads; }
};

// Cancellation is enabled between calls, so that one that came too late for its call ends the
// thread there and not in somebody else's call.
void* serve_doors(void*) {
  const CountedThread counted;
  ::door_return(nullptr, 0, nullptr, 0);
  return nullptr;
}

void create_door_thread(door_info_t*) {
  if (threads.fetch_add(1) >= most_threads) {
    --threads;
    return;
  }
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
  int call(std::span<const std::byte> data, Answer& answer);

  Imported& name_;
  const ImportContext context_;
  int fd_ = -1;
  std::optional<AttachedDoor> attached_;
  std::atomic<unsigned> inside_{0};  // threads in call()
};

// All that has a destructor is gone when it returns, or when the thread is cancelled in it.
int ImportedDoor::call(std::span<const std::byte> data, Answer& answer) {
  const Inside inside(inside_);
  door_cred_t client;
  if (::door_cred(&client) != 0) return EINTR;
  if (!may_call(name_, client.dc_euid)) return EACCES;
  if (data.size() > kLongest) return E2BIG;
  Header header{.kind = Kind::call};
  header.caller = {.pid = client.dc_pid,
                   .uid = std::int64_t{client.dc_euid},
                   .gid = std::int64_t{client.dc_egid}};
  const auto call = std::make_shared<DoorCall>(name_, header, data);
  context_.calls.start(call);
  context_.ticker.wake();
  const GiveUp guard(context_.calls, *call);
  answer = std::move(call->wait());
  if (answer.error != 0 && answer.error != EINTR) name_.statistics.last_error = answer.error;
  return answer.error;
}

void ImportedDoor::serve(void* cookie, char* data, std::size_t size, door_desc_t*, uint_t) {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  // door_return() does not come back, so the answer is the thread's, until its next call.
  static thread_local Answer answer;
  auto& self = *static_cast<ImportedDoor*>(cookie);
  int error = self.call(std::as_bytes(std::span(data, data == nullptr ? 0 : size)), answer);
  if (error == 0) {
    const std::span<const std::byte> reply = answer.data();
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    ::door_return(reinterpret_cast<char*>(const_cast<std::byte*>(reply.data())), reply.size(),
                  nullptr, 0);
    error = errno;
  } else {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  }
  ::door_refuse(error);
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

void limit_door_threads(unsigned most) noexcept {
  most_threads = most;
  ::door_server_create(&create_door_thread);
}

std::unique_ptr<ImportedServer> import_door(Imported& name, ImportContext context) {
  return std::make_unique<ImportedDoor>(name, context);
}

}  // namespace farcall::bridge
