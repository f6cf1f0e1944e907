// SPDX-License-Identifier: Apache-2.0
//
// An imported door: its server procedure publishes the request and defers the answer, which is
// given by who hears of it.
#include <door.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "bridge/importer.hpp"
#include "bridge/inside.hpp"
#include "farcall/door.hpp"
#include "farcall/doors.h"

namespace farcall::bridge {
namespace {

std::atomic<unsigned> calls_in_progress{0};
std::atomic<unsigned> most{4096};  // of them, and of threads

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
    // Nobody is left without an answer, whatever was to be said.
    if (::door_deferred_refuse(call, error) != 0) ::door_deferred_refuse(call, EPROTO);
  }

  Imported& name_;
  const ImportContext context_;
  std::mutex lock_;  // protects the next
  door_deferred_t* call_;
};

// Those that serve doors. One does as long as it need not wait; where it does, for a cluster that
// is away or takes little, there are others.
class DoorThreads {
 public:
  // Around what may wait.
  class Busy {
   public:
    Busy() { ++busy; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() {
      ++passed;
      --busy;
    }
  };
  // Sees to it that there are so many more than wait.
  static void make(unsigned spare) {
    for (unsigned now = all; now < waiting + spare && now < most; now = all)
      if (all.compare_exchange_strong(now, now + 1) && !start()) return;
  }
  // To be called often: whether any is busy, and has others made if none of them has come on since.
  static bool look() {
    const unsigned now = busy;
    const std::uint64_t count = passed;
    const bool stuck = now != 0 && count == looked;
    looked = count;
    waiting = stuck ? now : 0;
    if (stuck) make(std::max(1U, now));
    return now != 0;
  }
  // The calling thread is one too many, and is not counted any more.
  static bool dismiss() {
    constexpr unsigned kSpare = 2;
    for (unsigned now = all; now > waiting + kSpare;)
      if (all.compare_exchange_weak(now, now - 1)) return dismissed = true;
    return false;
  }

 private:
  class Counted {
   public:
    Counted() = default;
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() {
      if (dismissed) return;
      --all;
      make(1);
    }
  };
  // Cancellation is enabled between calls, so that one that came too late for its call ends the
  // thread there and not in somebody else's call.
  static void* serve(void*) {
    const Counted counted;
    ::door_return(nullptr, 0, nullptr, 0);
    return nullptr;
  }
  static bool start() {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    ::pthread_attr_setstacksize(&attributes, std::size_t{256} << 10);
    pthread_t thread;
    const bool started = ::pthread_create(&thread, &attributes, &serve, nullptr) == 0;
    if (!started) --all;
    ::pthread_attr_destroy(&attributes);
    return started;
  }

  static inline std::atomic<unsigned> all{0};
  static inline std::atomic<unsigned> busy{0};
  static inline std::atomic<unsigned> waiting{0};  // as look() has found
  static inline std::atomic<std::uint64_t> passed{0};
  static inline std::uint64_t looked = 0;  // look()'s
  static inline thread_local bool dismissed = false;
};

// The file that a door is attached to. It stays the same one whatever its path names later, or is
// said to name by whoever else may write there.
class DoorFile {
 public:
  explicit DoorFile(const std::string& path)
      : fd_(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)) {
    if (fd_ >= 0) (void)::fstatat(fd_, "", &before_, AT_EMPTY_PATH);
    own_ = (S_ISREG(before_.st_mode) || has_door()) && before_.st_uid == ::geteuid();
    if (S_ISLNK(before_.st_mode)) (void)::stat(path.c_str(), &before_);
  }
  DoorFile(const DoorFile&) = delete;
  DoorFile& operator=(const DoorFile&) = delete;
  ~DoorFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] bool is_there() const noexcept { return fd_ >= 0; }
  [[nodiscard]] bool has_door() const noexcept { return S_ISDOOR(before_.st_mode); }
  // 0, or why it has not been given that mode.
  int give(mode_t mode) {
    if ((before_.st_mode & kMode) == mode) return 0;
    if (!own_) return EPERM;
    if (!change(mode)) return errno;
    changed_ = true;
    return 0;
  }
  void restore() {
    if (changed_) (void)change(before_.st_mode & kMode);
  }

 private:
  static constexpr mode_t kMode = 07777;
  [[nodiscard]] bool change(mode_t mode) const {
    return ::chmod(fmt::format("/proc/self/fd/{}", fd_).c_str(), mode) == 0;
  }

  const int fd_;
  struct stat before_ {};
  bool own_ = false;
  bool changed_ = false;
};

class ImportedDoor final : public ImportedServer {
 public:
  ImportedDoor(Imported& name, ImportContext context) : name_(name), context_(context) {
    fd_ = ::door_create(&ImportedDoor::serve, listed_.cookie(), DOOR_REFUSE_DESC);
    if (fd_ < 0) throw BridgeError(fmt::format("cannot make a door: {}", ::strerrorname_np(errno)));
    const Door door = Door::adopt(::dup(fd_));
    // The file's mode is the door's: one that is there may let in others. Nobody of them is to get
    // in before it is changed, and where there will be no door it stays as it was.
    DoorFile file(name.name.path);
    const int refused = file.is_there() && !file.has_door() ? file.give(name.name.mode) : 0;
    try {
      attached_.emplace(door, name.name.path, name.name.mode);
      if (refused != 0) throw DoorError(refused, "set the mode of the file");
      if (!file.is_there()) (void)DoorFile(name.name.path).give(name.name.mode);
    } catch (const DoorError& error) {
      attached_.reset();
      file.restore();
      ::door_revoke(fd_);
      throw BridgeError(fmt::format("cannot import {} as door {}: {}", name.name.subject,
                                    name.name.path, error.what()));
    }
  }
  ~ImportedDoor() override { close(); }
  void close() override {
    if (!attached_) return;
    attached_.reset();
    ::door_revoke(fd_);
  }

 private:
  // Doors by number, which is their cookie: a thread that has been given a call may begin with it
  // however late, when its door is no more.
  class Listed {
   public:
    explicit Listed(ImportedDoor& door) : door_(door) {
      const std::lock_guard guard(all().lock);
      all().doors.emplace(number_ = ++all().last, &door);
    }
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;
    // Nobody is in it any more, nor ever will be.
    ~Listed() {
      {
        const std::lock_guard guard(all().lock);
        all().doors.erase(number_);
      }
      while (door_.inside_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    [[nodiscard]] void* cookie() const noexcept { return reinterpret_cast<void*>(number_); }
    static int call(void* cookie, std::size_t size) {
      std::unique_lock lock(all().lock);
      const auto found = all().doors.find(reinterpret_cast<std::uintptr_t>(cookie));
      if (found == all().doors.end()) return ECONNREFUSED;
      ImportedDoor& door = *found->second;
      const Inside inside(door.inside_);
      lock.unlock();
      return door.call(size);
    }

   private:
    struct All {
      std::mutex lock;  // protects what follows
      std::unordered_map<std::uintptr_t, ImportedDoor*> doors;
      std::uintptr_t last = 0;
    };
    // Never destroyed: door threads outlive even the end of main().
    static All& all() {
      static All& it = *new All;
      return it;
    }

    ImportedDoor& door_;
    std::uintptr_t number_ = 0;
  };

  static void serve(void* cookie, char* data, std::size_t size, door_desc_t* descriptors,
                    uint_t count);
  // What has a destructor is gone when they return. 0, or the errno that the call fails with.
  int call(std::size_t size);
  int identify(Header& header) const;
  static int defer(door_deferred_t*& call);

  Imported& name_;
  const ImportContext context_;
  int fd_ = -1;
  std::optional<AttachedDoor> attached_;
  std::atomic<unsigned> inside_{0};  // threads in call()
  const Listed listed_{*this};       // last: until nobody uses the others
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

// One more in progress: 0, or why there is not.
int ImportedDoor::defer(door_deferred_t*& call) {
  int error = 0;
  if (++calls_in_progress > most)
    error = EAGAIN;
  else if (::door_defer(&call) != 0)
    error = errno;
  if (error != 0) --calls_in_progress;
  return error;
}

int ImportedDoor::call(std::size_t size) {
  Header header{.kind = Kind::call};
  door_deferred_t* deferred = nullptr;
  int error = identify(header);
  if (error == 0 && size > kLongest) error = E2BIG;
  if (error == 0) error = defer(deferred);
  if (error != 0) {
    if (error != EINTR) name_.statistics.failed(error);
    return error;
  }
  const auto call = std::make_shared<DoorCall>(name_, header, deferred, context_);
  {
    const DoorThreads::Busy busy;
    context_.ticker.wake();
    context_.calls.start(call);
  }
  context_.ticker.wake();
  call->watch();
  return 0;
}

// Cancellation is enabled only where the call is over: it is for the thread between two calls.
void ImportedDoor::serve(void* cookie, char*, std::size_t size, door_desc_t*, uint_t) {
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  const int error = Listed::call(cookie, size);
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  if (error != 0) ::door_refuse(error);
  // Where it cannot be refused the client gets EINTR, and no answer that would look like one.
  if (error != 0 || DoorThreads::dismiss()) ::pthread_exit(nullptr);
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
  ::door_server_create([](door_info_t*) { DoorThreads::make(1); });
}

bool look_after_door_threads() noexcept { return DoorThreads::look(); }

std::unique_ptr<ImportedServer> import_door(Imported& name, ImportContext context) {
  return std::make_unique<ImportedDoor>(name, context);
}

}  // namespace farcall::bridge
