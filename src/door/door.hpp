// SPDX-License-Identifier: Apache-2.0
//
// Doors over shared memory: those of this process, and all that it knows of others.
#pragma once

#include <door.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "call/limits.hpp"
#include "door/engine.hpp"
#include "door/name.hpp"
#include "door/real.hpp"
#include "farcall/call.hpp"
#include "farcall/wait.hpp"
#include "process/per_thread.hpp"
#include "process/process.hpp"
#include "process/reactor.hpp"
#include "wait/held_signals.hpp"

namespace farcall::door {

// What a door tells its clients, in its endpoint's terms.
enum Term : std::size_t { kDataMin, kDataMax, kDescMax, kProcedure, kCookie };

// In the word of a request: the client has passed no arguments, and takes no result.
inline constexpr std::int32_t kNoArguments = 1;
// ... or arguments that it cannot pass. The data is their size, 8 bytes. It waits for a thread as
// others do, and learns there whether they would have been refused anyway.
inline constexpr std::int32_t kBadArguments = 2;
// Descriptors sent to a door's socket: see attach.cpp.
inline constexpr std::uint8_t kPurposeAttach = kFirstOwnPurpose;

class SharedPool final : public Pool, public std::enable_shared_from_this<SharedPool> {
 public:
  explicit SharedPool(WaitMode mode) : port(limits(), mode) {}
  std::unique_ptr<Server> enter() override;
  [[nodiscard]] std::size_t idle_threads() const noexcept override { return port.idle_threads(); }
  bool call_reserve() noexcept override { return port.call_reserve(); }
  [[nodiscard]] bool has_reserve() const noexcept override { return port.has_reserve(); }

  Port port;

 private:
  // Every call of a door wants an answer.
  static PortLimits limits() noexcept {
    PortLimits all = call::limits_of_process();
    all.one_way = false;
    return all;
  }
};

class Attachment;

class Door final : public OwnDoor, public EndpointOwner, public std::enable_shared_from_this<Door> {
 public:
  Door(const Order& order, const std::shared_ptr<SharedPool>& threads);
  // Makes the endpoint, and the first descriptor. Throws SystemError.
  UniqueFd open();
  // A descriptor for somebody else, counted apart from those that exist. `user`: who has asked for
  // it; `mode`: the permissions of the file by which it was opened, where there is one. Throws
  // SystemError. A signal handler may be forking: no lock is taken that its thread may hold
  // already, unless clients have to be told that there is a reference again.
  UniqueFd branch(std::optional<uid_t> user = {}, std::optional<mode_t> mode = {});

  [[nodiscard]] door_info_t info() const noexcept override;
  // The errno that a request is to be refused with, or 0.
  [[nodiscard]] int admit(std::size_t bytes, std::size_t descriptors) const noexcept override {
    if (bytes < data_min_.load(std::memory_order_relaxed) ||
        bytes > data_max_.load(std::memory_order_relaxed))
      return ENOBUFS;
    return descriptors == 0 ? 0 : admit_descriptors(descriptors);
  }
  [[nodiscard]] std::uint64_t param(int which) const noexcept;
  // Returns 0 or an errno value.
  int set_param(int which, std::uint64_t value);
  void revoke() noexcept;
  [[nodiscard]] bool revoked() const noexcept { return endpoint_->closed(); }
  // What one user may have this process hold.
  [[nodiscard]] std::size_t descriptors_per_user() const noexcept {
    return endpoint_->limits().descriptors_per_user;
  }
  // Counts who refers to the door, and tells it when one is left, or was. `own`: how many
  // descriptors this process has of it.
  void check_references(std::size_t own) noexcept;
  // A thread has come to do that; it keeps the door itself.
  void notice_taken() noexcept;
  // Somebody more refers to the door.
  void referenced();
  [[nodiscard]] bool counts_references() const noexcept {
    return (attributes & (DOOR_UNREF | DOOR_UNREF_MULTI)) != 0;
  }
  // Of a door that counts references: a call in progress, until whose end it is not told.
  class ActiveCall {
   public:
    ActiveCall() noexcept = default;
    explicit ActiveCall(std::shared_ptr<Door> door) noexcept : door_(std::move(door)) {
      door_->active_.fetch_add(1, std::memory_order_seq_cst);
    }
    ActiveCall(ActiveCall&& other) noexcept = default;
    ActiveCall& operator=(ActiveCall&& other) noexcept {
      end();
      door_ = std::move(other.door_);
      return *this;
    }
    ~ActiveCall() { end(); }
    void end() noexcept {
      if (door_) [[unlikely]]
        std::exchange(door_, nullptr)->call_ended();
    }

   private:
    std::shared_ptr<Door> door_;
  };
  // The socket that door_create() returned.
  [[nodiscard]] std::uint64_t primary() const noexcept { return primary_; }

  // Calls have no priority.
  std::uint8_t bounded(std::uint8_t, const Credentials&, std::uint32_t) noexcept override {
    return 0;
  }
  void branch_closed(std::uint64_t socket) noexcept override;
  bool received(std::uint8_t purpose, ReceivedFds& descriptors,
                const Credentials& sender) noexcept override;

  [[nodiscard]] std::vector<std::shared_ptr<Attachment>> attachments() const {
    const QuietGuard guard(lock_);
    return attachments_;
  }
  // The path that who looks at the door's traffic sees.
  void set_label(std::string_view path) {
    endpoint_->set_label(observe::Label(observe::Kind::door, path));
  }
  void add_attachment(std::shared_ptr<Attachment> attachment);
  void remove_attachment(const Attachment& attachment) noexcept;

  const std::uint64_t id = random_id();

 private:
  [[nodiscard]] Terms terms() const noexcept;
  // Clients are told what terms() says now.
  void publish();
  void post_notice();
  // A notification that comes once is no attribute any more once it has come.
  [[nodiscard]] unsigned shown_attributes() const noexcept;
  [[nodiscard]] int admit_descriptors(std::size_t count) const noexcept;
  void call_ended() noexcept;
  // Whether it is to wait with what it would be told, for the end of the last call.
  bool is_active() noexcept;

  Port& port_;  // of the pool
  std::shared_ptr<Endpoint> endpoint_;
  std::uint64_t primary_ = 0;  // cookie of the socket that door_create() returned
  std::atomic<std::uint64_t> data_min_{0};
  std::atomic<std::uint64_t> data_max_{SIZE_MAX};
  std::atomic<std::uint64_t> desc_max_;
  std::atomic<bool> told_{false};      // of a single reference left
  std::atomic<bool> is_unref_{false};  // changes with lock_ held
  std::atomic<std::size_t> active_{0};
  std::atomic<bool> waits_{false};  // for the last call to end
  // Held while parameters are looked at and set, and while clients are told: of two who do so at
  // once the later has the last word.
  std::mutex terms_lock_;
  mutable std::mutex lock_;  // protects all below
  std::vector<std::shared_ptr<Attachment>> attachments_;
  bool was_referenced_ = false;
  std::size_t notices_ = 0;           // posted, and not taken yet
  std::shared_ptr<Door> until_told_;  // this one, while there are any that keep it
};

// A door that this process has a descriptor of, its own or another's.
struct Handle final : AnyDoor {
  Handle(const Name& called, std::uint64_t socket, const std::shared_ptr<Door>& served);
  int info(int d, door_info_t& info) override;
  int param(int d, int which, std::uint64_t& value) override;
  int set_param(int d, int which, std::uint64_t value) override;
  int revoke(int d) override;
  int attach(int d, int file, const struct stat& status) override;
  std::shared_ptr<OwnDoor> to_bind(int d) override;
  void describe(int d, door_desc_t& descriptor) override;
  [[nodiscard]] bool is_revoked(int d) const noexcept;

  const Name name;
  const std::uint64_t cookie;
  const std::weak_ptr<Door> local;  // where this process serves it
  const bool is_local;
  Client client;
  // What the server has last said of the door; it can no longer be asked once the door is revoked.
  std::mutex terms_lock;
  std::optional<Terms> last_terms;  // protected by terms_lock
};

// What a thread has looked up lately; each number has one place.
struct Recent {
  int fd = -1;
  std::uint64_t epoch = 0;
  std::uint64_t verified = 0;  // ticks()
  std::shared_ptr<Handle> handle;
  std::atomic<bool> in_use{false};

  // A number can come to stand for something else unseen, by a system call of the program's own, or
  // by a close() that is not ours. So the kernel is asked: each time where closes are not seen,
  // else every now and then. The clock is a fifth of what the question costs.
  [[nodiscard]] bool holds() noexcept {
#if defined(__x86_64__)
    constexpr std::uint64_t kGood = 40'000;  // ticks, about 20 us
#else
    constexpr std::uint64_t kGood = 20'000;
#endif
    return (real::sees_all() && ticks() - verified < kGood) || verify();
  }
  // Also has sessions opened anew where this process acts for another user than it did, and may
  // have changed that unseen.
  bool verify() noexcept;

  // Between these two nobody else has the place: a signal handler may look for doors, too. False:
  // it is the handler that asks.
  bool claim() noexcept {
    if (in_use.load(std::memory_order_relaxed)) return false;
    in_use.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return true;
  }
  void release() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    in_use.store(false, std::memory_order_relaxed);
  }
};
inline constexpr std::size_t kRecent = 8;
using RecentOnes = std::array<Recent, kRecent>;
// Changes whenever what a number refers to may have changed.
extern std::atomic<std::uint64_t> epoch;

// A handle for the time of a call. Where the thread has looked it up lately its place is claimed,
// which is cheaper than to count it.
class Borrowed {
 public:
  explicit Borrowed(std::shared_ptr<Handle> counted) noexcept
      : handle_(counted.get()), counted_(std::move(counted)) {}
  explicit Borrowed(Recent& claimed) noexcept : handle_(claimed.handle.get()), place_(&claimed) {}
  ~Borrowed() {
    if (place_ != nullptr)
      place_->release();
    else
      let_go();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  Handle& operator*() const noexcept { return *handle_; }
  Handle* operator->() const noexcept { return handle_; }

 private:
  void let_go() noexcept;

  Handle* handle_;
  Recent* place_ = nullptr;
  std::shared_ptr<Handle> counted_;
};
// The door that `fd` refers to, if any.
Borrowed look_up(int fd);

// What a descriptor was that is being closed: what it was known for, and the door of this process
// that it leads to in fact.
struct Closed {
  std::shared_ptr<Handle> handle;
  std::shared_ptr<Door> door;
};

// All of one process. A child has its own, and leaves its parent's alone.
class Process {
 public:
  static Process& here();
  // Null where nobody has asked for it: handlers that close and duplicate make nothing.
  static Process* made() noexcept;

  // The door that `fd` refers to; null where it is none.
  std::shared_ptr<Handle> find(int fd);
  std::shared_ptr<SharedPool> shared_pool();
  // Whether this is the first time that it is asked; or the first since that was in vain.
  bool first_shared_door();
  void forget_first_shared_door();

  // A socket leads to a door of this process, which lives as long as one does.
  void add_branch(std::uint64_t socket, const std::shared_ptr<Door>& door);
  void remove_branch(std::uint64_t socket) noexcept;
  // `fd` is about to be closed. Returns what it was known for.
  std::shared_ptr<Handle> forget(int fd) noexcept;
  // The same, and all that has to be known after the close.
  Closed closes(int fd) noexcept;
  // It was not closed after all.
  void stays(int fd) noexcept;
  // `copy` is a new descriptor. Returns the door of this process that it leads to, if any. Throws
  // std::bad_alloc.
  std::shared_ptr<Door> copied(int copy);
  // Those of this process for which references are counted.
  std::vector<std::shared_ptr<Door>> counting();

  const WaitMode mode;
  static std::atomic<door_server_func_t*> create_thread;  // a child keeps its parent's
  std::mutex starting;  // held while the first thread of the shared pool is made

 private:
  Process();
  // What leads to a door: a socket (SO_COOKIE), its descriptors here that have been looked up, and
  // the door where it is one of this process.
  struct Entry {
    std::shared_ptr<Handle> handle;  // as long as there are descriptors
    std::vector<int> descriptors;
    std::shared_ptr<Door> served;
    bool ended = false;  // as a branch: `served` is here for the descriptors alone
  };
  std::shared_ptr<Handle> find_anew(int fd);

  // Protects all below. Handlers close and duplicate doors: none runs on the thread that holds it.
  std::mutex lock_;
  std::unordered_map<std::uint64_t, Entry> doors_;
  std::shared_ptr<SharedPool> shared_pool_;
  bool shared_door_made_ = false;
};

inline Borrowed borrow(int fd) {
  if (RecentOnes* const recent = process::PerThread<RecentOnes>::made(); recent != nullptr)
      [[likely]] {
    Recent& place = (*recent)[static_cast<std::size_t>(fd) % kRecent];
    if (place.claim()) [[likely]] {
      if (place.fd == fd && place.epoch == epoch.load(std::memory_order_acquire) && place.holds())
          [[likely]]
        return Borrowed(place);
      place.release();
    }
  }
  return look_up(fd);
}

// Whether a descriptor has been seen to be a door's. Lock-free, for close(2) and its relatives.
bool known(int fd) noexcept;
void set_known(int fd, bool is_known) noexcept;
// False in a vfork child: it shares this memory, but has descriptors of its own. What it does to
// them is nothing that the memory should know of.
bool descriptors_are_ours() noexcept;
// `fd` is closed by `close`, which may be any function that does. Keeps what is known true. No
// handler runs meanwhile but while it is closed: close() and dup() are for handlers as well.
template <class Close>
auto closing(int fd, Close close);
void after_close(const Closed& closed) noexcept;

using process::NoCancel;

template <class Close>
auto closing(int fd, Close close) {
  if (!known(fd)) [[likely]]
    return close();
  if (!descriptors_are_ours()) return close();
  Closed closed;
  {
    const NoCancel guard;
    const HeldSignals held;
    if (Process* const process = Process::made())
      closed = process->closes(fd);
    else
      set_known(fd, false);
  }
  const auto result = close();
  const int error = errno;
  // Who has looked it up again in between must not believe that any more.
  epoch.fetch_add(1, std::memory_order_acq_rel);
  const NoCancel guard;
  const HeldSignals held;
  // As where something else cannot be duplicated onto it.
  if (Process* const process = result < 0 ? Process::made() : nullptr) process->stays(fd);
  after_close(closed);
  closed = {};
  errno = error;
  return result;
}

// Translates what is thrown into errno, and -1 for who calls from C.
template <class Body>
int guarded(Body body);
int set_errno_from_exception() noexcept;

template <class Body>
int guarded(Body body) {
  (void)process::generation();
  try {
    return body();
  } catch (const std::exception&) {
    return set_errno_from_exception();
  }
}

// Sets errno and returns -1.
int fail(int error) noexcept;

}  // namespace farcall::door
