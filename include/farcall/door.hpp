// SPDX-License-Identifier: Apache-2.0
//
// Doors with owners: door.h for C++20. A header and libfarcall-doors, no more.
//
//   const Door door = Door::create([](DoorRequest& request, DoorReply& reply) {
//     reply.write(request.text());                       // in some thread of the pool
//   });
//   const AttachedDoor name(door, "/run/echo");          // until it goes out of scope
//
//   const Door echo = Door::open("/run/echo");           // in another process
//   std::cout << echo.call("hello").text();
//
// What the system refuses is thrown as DoorError.
#pragma once

#include <cxxabi.h>
#include <door.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "farcall/door/request.hpp"

namespace farcall {

namespace door_detail {

// What doors call, by the number that is their cookie: a call may arrive in the moment in which
// its door goes, so a pointer would not do.
class Procedures {
 public:
  // Never destroyed, because threads that serve outlive static objects; and not made under a guard,
  // which would stay locked in a child that is forked meanwhile.
  static Procedures& all() {
    static constinit std::atomic<Procedures*> made{nullptr};
    Procedures* now = made.load(std::memory_order_acquire);
    if (now != nullptr) return *now;
    auto fresh = std::make_unique<Procedures>();
    if (!made.compare_exchange_strong(now, fresh.get(), std::memory_order_acq_rel)) return *now;
    return *fresh.release();
  }

  std::uintptr_t add(DoorProcedure procedure) {
    auto shared = std::make_shared<DoorProcedure>(std::move(procedure));
    const std::lock_guard guard(lock_);
    by_number_.emplace(++last_, std::move(shared));
    return last_;
  }
  void remove(std::uintptr_t number) {
    std::shared_ptr<DoorProcedure> gone;  // destroyed without the lock
    const std::lock_guard guard(lock_);
    if (const auto found = by_number_.find(number); found != by_number_.end()) {
      gone = std::move(found->second);
      by_number_.erase(found);
    }
  }
  // Around a fork.
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  std::shared_ptr<DoorProcedure> find(std::uintptr_t number) {
    const std::lock_guard guard(lock_);
    const auto found = by_number_.find(number);
    return found == by_number_.end() ? nullptr : found->second;
  }

 private:
  std::mutex lock_;  // protects all
  std::unordered_map<std::uintptr_t, std::shared_ptr<DoorProcedure>> by_number_;
  std::uintptr_t last_ = 0;
};

// Children find the lock free.
inline const int kLockedByForks =
    ::pthread_atfork([] { Procedures::all().lock(); }, [] { Procedures::all().unlock(); },
                     [] { Procedures::all().unlock(); });

// Fills `memory`; whether there is an answer. All that has a destructor is gone when it returns.
inline bool answer(std::uintptr_t number, char* data, std::size_t size,
                   const door_desc_t* descriptors, uint_t count, ReplyMemory& memory) {
  std::vector<DoorDescriptor> received;
  try {
    received = own(descriptors, count);
  } catch (const std::bad_alloc&) {
    return false;
  }
  const auto procedure = Procedures::all().find(number);
  if (procedure == nullptr) return false;
  const bool unreferenced = data == DOOR_UNREF_DATA;
  DoorRequest request(
      unreferenced ? std::span<std::byte>()
                   : std::span(reinterpret_cast<std::byte*>(data), data == nullptr ? 0 : size),
      std::move(received), unreferenced);
  DoorReply reply(memory);
  try {
    (*procedure)(request, reply);
    return true;
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is cancelled
  } catch (...) {
    return false;
  }
}

inline void serve(void* cookie, char* data, std::size_t size, door_desc_t* descriptors,
                  uint_t count) {
  ReplyMemory& memory = ReplyMemory::of_this_thread();
  // Those with DOOR_RELEASE were closed when the last reply was sent.
  memory.descriptors.clear();
  memory.clear();
  if (answer(reinterpret_cast<std::uintptr_t>(cookie), data, size, descriptors, count, memory)) {
    ::door_return(reinterpret_cast<char*>(memory.bytes.data()), memory.bytes.size(),
                  memory.descriptors.data(), static_cast<uint_t>(memory.descriptors.size()));
    // A client that left no room for an answer wants to know no more than that there is one.
    const bool unwanted = errno == E2BIG;
    memory.clear();
    if (unwanted) ::door_return(nullptr, 0, nullptr, 0);
  }
  memory.clear();
}

inline int create_thread(door_info_t* /*info*/, void* (*start)(void*), void* argument,
                         void* /*cookie*/) {
  pthread_t thread{};
  if (::pthread_create(&thread, nullptr, start, argument) != 0) return -1;
  ::pthread_detach(thread);
  return 1;
}

// What to do about a call that failed.
inline std::string advice(int errno_value) {
  switch (errno_value) {
    case EBADF: return "door_call (the door is revoked or its server has ended; open it again)";
    case ENOBUFS: return "door_call (the request is longer or shorter than the door takes)";
    case ENOTSUP: return "door_call (the door takes no descriptors)";
    case ENFILE: return "door_call (more descriptors than the door takes)";
    case EMFILE: return "door_call (the server can have no more open files)";
    case EINTR: return "door_call (a signal came, or the server gave no answer)";
    case EAGAIN: return "door_call (a signal came before a server thread was free; call again)";
    default: return "door_call";
  }
}

// What stands in the way of a name.
inline std::string attach_advice(int errno_value) {
  switch (errno_value) {
    case EBUSY: return " (another door is attached there; detach it or end its server)";
    case EPERM: return " (only the owner of the file and root may)";
    case EACCES: return " (the file is not writable)";
    case EINVAL: return " (only regular files can have one)";
    default: return "";
  }
}

}  // namespace door_detail

// The answer to a call, with all that came along.
class DoorResult {
 public:
  DoorResult(const DoorResult&) = delete;
  DoorResult& operator=(const DoorResult&) = delete;
  DoorResult(DoorResult&& other) noexcept { take(other); }
  DoorResult& operator=(DoorResult&& other) noexcept {
    if (this != &other) {
      unmap();
      take(other);
    }
    return *this;
  }
  ~DoorResult() { unmap(); }

  // Valid as long as this result stays where it is (and the caller's room, if that was given).
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return {elsewhere_ != nullptr ? elsewhere_ : own_.data(), size_};
  }
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data().data()), size_};
  }
  [[nodiscard]] std::vector<DoorDescriptor>& descriptors() noexcept { return descriptors_; }

 private:
  friend class Door;
  // Replies up to here need no memory of their own.
  static constexpr std::size_t kOwnBytes = 512;

  DoorResult() noexcept = default;

  void take(DoorResult& other) noexcept {
    elsewhere_ = std::exchange(other.elsewhere_, nullptr);
    mapped_ = std::exchange(other.mapped_, {});
    size_ = std::exchange(other.size_, 0);
    descriptors_ = std::move(other.descriptors_);
    if (elsewhere_ == nullptr && size_ != 0) ::memcpy(own_.data(), other.own_.data(), size_);
  }
  void unmap() noexcept {
    if (mapped_.data() != nullptr) ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
  }
  void call(int door, std::span<const std::byte> data, std::span<const int> descriptors,
            std::span<std::byte> room) {
    std::vector<door_desc_t> passed(descriptors.size());
    for (std::size_t i = 0; i < passed.size(); ++i) {
      passed[i].d_attributes = DOOR_DESCRIPTOR;
      passed[i].d_data.d_desc.d_descriptor = descriptors[i];
    }
    if (room.empty()) room = own_;
    // Doors do not write to requests.
    door_arg_t arguments{.data_ptr = reinterpret_cast<char*>(const_cast<std::byte*>(data.data())),
                         .data_size = data.size(),
                         .desc_ptr = passed.empty() ? nullptr : passed.data(),
                         .desc_num = static_cast<uint_t>(passed.size()),
                         .rbuf = reinterpret_cast<char*>(room.data()),
                         .rsize = room.size()};
    if (::door_call(door, &arguments) != 0) {
      const int error = errno;
      throw DoorError(error, door_detail::advice(error));
    }
    auto* const at = reinterpret_cast<std::byte*>(arguments.rbuf);
    if (at != room.data()) mapped_ = {at, arguments.rsize};
    if (at != own_.data()) elsewhere_ = at;
    size_ = arguments.data_size;
    descriptors_ = door_detail::own(arguments.desc_ptr, arguments.desc_num);
  }

  const std::byte* elsewhere_ = nullptr;
  std::span<std::byte> mapped_;
  std::size_t size_ = 0;
  std::vector<DoorDescriptor> descriptors_;
  alignas(16) std::array<std::byte, kOwnBytes> own_;
};

struct DoorOptions {
  uint_t attributes = 0;  // DOOR_UNREF and its like
  int threads = 0;        // so many threads for this door alone, and more when they are all busy
};

// Owns a door descriptor. One that this process serves is revoked when its owner goes; a child of
// fork() that destroys its copy only closes it.
class Door {
 public:
  Door() noexcept = default;
  // Throws DoorError.
  static Door create(DoorProcedure procedure, const DoorOptions& options = {}) {
    auto& procedures = door_detail::Procedures::all();
    Door door;
    door.number_ = procedures.add(std::move(procedure));
    door.server_ = ::getpid();
    auto* const cookie = reinterpret_cast<void*>(door.number_);
    door.fd_ = options.threads == 0
                   ? ::door_create(&door_detail::serve, cookie, options.attributes)
                   : ::door_xcreate(&door_detail::serve, cookie, options.attributes,
                                    &door_detail::create_thread, nullptr, nullptr, options.threads);
    if (door.fd_ < 0) {
      const int error = errno;
      procedures.remove(std::exchange(door.number_, 0));
      throw DoorError(error, options.threads == 0 ? "door_create" : "door_xcreate");
    }
    return door;
  }
  // The door that is attached to `path`. Throws DoorError: what open(2) says, EBADF where no door
  // is attached.
  static Door open(const std::string& path, int flags = O_RDONLY) {
    // What is no door may be a FIFO, which would wait for somebody at its other end.
    Door door = adopt(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (door.fd_ < 0) throw DoorError(errno, "open " + path);
    door_info_t info;
    if (::door_info(door.fd_, &info) != 0)
      throw DoorError(EBADF, "open " + path + " (no door is attached; start its server)");
    return door;
  }
  // Takes over a descriptor.
  static Door adopt(int fd) noexcept {
    Door door;
    door.fd_ = fd;
    return door;
  }

  Door(Door&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        server_(other.server_),
        number_(std::exchange(other.number_, 0)) {}
  Door& operator=(Door&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      server_ = other.server_;
      number_ = std::exchange(other.number_, 0);
    }
    return *this;
  }
  ~Door() { close(); }

  // Throws DoorError. Descriptors stay the caller's. A reply goes to `room` if it fits there, which
  // spares large ones memory of their own.
  DoorResult call(std::span<const std::byte> data, std::span<const int> descriptors = {},
                  std::span<std::byte> room = {}) const {
    DoorResult result;
    result.call(fd_, data, descriptors, room);
    return result;
  }
  DoorResult call(std::string_view text, std::span<const int> descriptors = {},
                  std::span<std::byte> room = {}) const {
    return call(std::as_bytes(std::span(text)), descriptors, room);
  }

  // No call is taken any more; those in progress finish. The descriptor is closed. Throws
  // DoorError: EPERM for a door of another process.
  void revoke() {
    if (::door_revoke(fd_) != 0) throw DoorError(errno, "door_revoke");
    fd_ = -1;
    close();
  }
  [[nodiscard]] door_info_t info() const {
    door_info_t info;
    if (::door_info(fd_, &info) != 0) throw DoorError(errno, "door_info");
    return info;
  }
  // DOOR_PARAM_DATA_MAX and its like.
  [[nodiscard]] std::size_t limit(int parameter) const {
    std::size_t value = 0;
    if (::door_getparam(fd_, parameter, &value) != 0) throw DoorError(errno, "door_getparam");
    return value;
  }
  void set_limit(int parameter, std::size_t value) const {
    if (::door_setparam(fd_, parameter, value) != 0) throw DoorError(errno, "door_setparam");
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  // The descriptor is the caller's from now on. A procedure stays for the life of the process.
  [[nodiscard]] int release() noexcept {
    number_ = 0;
    return std::exchange(fd_, -1);
  }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  void close() noexcept {
    const int before = errno;
    const int fd = std::exchange(fd_, -1);
    const std::uintptr_t number = std::exchange(number_, 0);
    const bool serves = number != 0 && server_ == ::getpid();
    if (fd >= 0 && (!serves || ::door_revoke(fd) != 0)) ::close(fd);
    if (serves) door_detail::Procedures::all().remove(number);
    errno = before;
  }

  int fd_ = -1;
  pid_t server_ = 0;           // where there is a
  std::uintptr_t number_ = 0;  // of the procedure
};

// A name for a door: while it lives, open() of the path gives the door.
class AttachedDoor {
 public:
  // Makes the file with this mode where there is none, and then removes it at the end. Throws
  // DoorError: EBUSY where a door is attached already, EPERM for a file of somebody else.
  AttachedDoor(const Door& door, const std::filesystem::path& path, mode_t mode = 0644)
      : path_(path.empty() ? path : std::filesystem::absolute(path)), process_(::getpid()) {
    const DoorDescriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    created_ = static_cast<bool>(file);
    if (!created_ && errno != EEXIST) throw DoorError(errno, "create " + path_.string());
    if (::fattach(door.get(), path_.c_str()) != 0) {
      const int error = errno;
      if (created_) ::unlink(path_.c_str());
      throw DoorError(error,
                      "attach a door to " + path_.string() + door_detail::attach_advice(error));
    }
    struct stat status {};
    if (::stat(path_.c_str(), &status) == 0) {
      device_ = status.st_dev;
      inode_ = status.st_ino;
    }
  }
  AttachedDoor(const AttachedDoor&) = delete;
  AttachedDoor& operator=(const AttachedDoor&) = delete;
  AttachedDoor(AttachedDoor&& other) noexcept
      : path_(std::move(other.path_)),
        process_(std::exchange(other.process_, 0)),
        device_(other.device_),
        inode_(other.inode_),
        created_(other.created_) {}
  AttachedDoor& operator=(AttachedDoor&& other) noexcept {
    if (this != &other) {
      static_cast<void>(give_up());
      path_ = std::move(other.path_);
      process_ = std::exchange(other.process_, 0);
      device_ = other.device_;
      inode_ = other.inode_;
      created_ = other.created_;
    }
    return *this;
  }
  ~AttachedDoor() { static_cast<void>(give_up()); }

  // Before its time. Throws DoorError, where the destructor keeps silent: EINVAL if somebody else
  // has detached it, ENOENT if the file is gone.
  void detach() {
    if (const int error = give_up(); error != 0) throw DoorError(error, "detach " + path_.string());
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  // A child of fork() leaves the name to its parent, and a file that somebody has put in the place
  // of ours is left to them.
  int give_up() noexcept {
    if (std::exchange(process_, 0) != ::getpid()) return 0;
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) return errno;
    if (device_ != status.st_dev || inode_ != status.st_ino) return ENOENT;
    const int error = ::fdetach(path_.c_str()) == 0 ? 0 : errno;
    if (created_) ::unlink(path_.c_str());
    return error;
  }

  std::filesystem::path path_;
  pid_t process_;  // that attached it, or 0
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool created_ = false;
};

}  // namespace farcall
