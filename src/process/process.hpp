// SPDX-License-Identifier: Apache-2.0
//
// What a forked child must not keep of its parent. A child opens sessions of its own; were it to
// hold its parent's sockets, nobody would notice the parent's death. A child that comes by a system
// call of the program's own, and never uses the library, does hold them until it executes a
// program: who waits long for an answer watches the server's process as well (see
// Drain::watch_process), but a server does not watch the processes of all its clients, which would
// cost it a descriptor for each session.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "farcall/memory.hpp"

namespace farcall::process {

namespace detail {
// A page of its own, which the kernel empties in every copy of the process: so children notice what
// they are that no handler of pthread_atfork(3) has told, made by _Fork(3) or clone(2).
struct alignas(65'536) WipedInChildren {
  std::atomic<std::uint64_t> generation;
};
extern WipedInChildren wiped;
extern std::atomic<std::uint64_t> credentials;
extern std::atomic<bool> credentials_told;
void compare_credentials() noexcept;
std::uint64_t begin_generation() noexcept;
}  // namespace detail

// Counts the forks that lie between this process and the one that loaded the library. What was
// made in another generation belongs to another process: it is left alone, not even destroyed.
// Functions for programs ask before they take a lock: a child that notices only now what it is does
// then what others do when they are forked.
inline std::uint64_t generation() noexcept {
  const std::uint64_t now = detail::wiped.generation.load(std::memory_order_relaxed);
  return now != 0 ? now : detail::begin_generation();
}

// While one exists no other thread's fork begins, and none is under way when one is made: for the
// time between making a descriptor and its being private, when a child would keep it and hide this
// process's death. For what is short and waits for nobody; made before any lock is taken. A fork
// waits no longer than a tenth of a second all the same: it may be that of a signal handler.
class NoFork {
 public:
  NoFork() noexcept;
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;

 private:
  bool counted_;
};

// As fork(2), for a signal handler that has interrupted another fork of its thread: of what
// pthread_atfork(3) has been given only what the library needs itself is run. `bare`: _Fork(3).
pid_t fork_in_fork(pid_t (*bare)()) noexcept;

// A descriptor of this process alone: closed in forked children at once, and left alone by
// destructors that run there; also where the program has closed it and has the number for a file of
// its own, as far as that has another inode.
class PrivateFd {
 public:
  PrivateFd() noexcept = default;
  explicit PrivateFd(UniqueFd fd) noexcept;
  // What a peer has sent, any file: which one is not asked, as its server may say now this and now
  // that, and it is closed in any case.
  static PrivateFd of_peer(UniqueFd fd) noexcept;
  // From now on it is one: it holds what peers have sent and nobody takes any more.
  void become_peers() noexcept;
  PrivateFd(PrivateFd&& other) noexcept = default;
  PrivateFd& operator=(PrivateFd&& other) noexcept;
  ~PrivateFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  // Whether it is open, and of this process.
  [[nodiscard]] bool is_here() const noexcept { return fd_ && generation_ == generation(); }
  void reset() noexcept;
  // It becomes an ordinary descriptor.
  [[nodiscard]] UniqueFd release() noexcept;
  // It stays open, and private, until the process ends or somebody closes that number.
  [[nodiscard]] int keep() noexcept { return fd_.release(); }

 private:
  PrivateFd(UniqueFd fd, bool of_peer) noexcept;
  void leave_number() noexcept;

  UniqueFd fd_;
  std::uint64_t generation_ = 0;
  std::uint64_t inode_ = 0;  // or not known
};

// Whether that number is a private descriptor's, which may just be closed.
bool is_private(int fd) noexcept;
// The same, but nobody is closing it; not the library's own close() either.
bool is_kept(int fd) noexcept;
// Whether the number was that of a private descriptor that has not been closed here.
bool is_marked(int fd) noexcept;
// Whether a private descriptor has the number, and a file that a peer has sent; where that cannot
// be told, too. Not known of the highest numbers.
bool is_of_peer(int fd) noexcept;
// Whether the number, which a private descriptor has, is the program's by now: it has put a file of
// its own there. Not known of the highest numbers.
bool is_lost(int fd) noexcept;
// The number is the program's from now on.
void give_up_number(int fd) noexcept;

// Keeps an object of another generation from being destroyed.
template <class T>
void leak_in_child(T& object) noexcept {
  static_cast<void>(new (std::nothrow) T(std::move(object)));
}

// Registers functions to be called around every fork of this process: before it, and afterwards
// in the parent and in the child; each may be null. What is above calls, which it may use, comes
// first before the fork and last after it. In the child no private descriptor or mapping is left
// when they run, and nothing ran before where the child noticed by itself that it is one. For
// initialisers: few, and once.
enum class ForkOrder : std::uint8_t { call, above_call };
void around_fork(ForkOrder order, void (*before)(), void (*in_parent)(),
                 void (*in_child)()) noexcept;
// In a child: makes a lock free that was taken before the fork, or that somebody held who is not
// here.
inline void free_in_child(std::mutex& lock) noexcept {
  (void)lock.try_lock();
  lock.unlock();
}

// One object that a process makes when it first needs it, and that its children go on with. Nobody
// waits for who is making it, as with a static of a function: that thread may not exist in a forked
// child. So it can be made in vain, and its constructor does nothing that another would notice. It
// outlives main(), as threads do.
template <class T>
class MadeOnce {
 public:
  T& get() {
    // acquire: pairs with the release of who made it.
    T* now = made_.load(std::memory_order_acquire);
    if (now == nullptr) [[unlikely]] {
      auto fresh = std::make_unique<T>();
      if (made_.compare_exchange_strong(now, fresh.get(), std::memory_order_acq_rel))
        now = fresh.release();
    }
    return *now;
  }
  // Null where nobody has.
  [[nodiscard]] T* made() const noexcept { return made_.load(std::memory_order_acquire); }
  // In a forked child that is to make its own.
  void abandon() noexcept { made_.store(nullptr, std::memory_order_relaxed); }

 private:
  std::atomic<T*> made_{nullptr};
};

// Starts a thread of the library's own: detached, not cancelled, without signals, which are for the
// program's threads, and with a stack of the usual size, of which the program's thread-local
// storage may take any part. Returns 0 or an errno value.
int start_thread(const char* name, void (*run)(void* argument), void* argument) noexcept;

// Keeps the calling thread from being cancelled inside the library. Expensive: two locked
// instructions.
class NoCancel {
 public:
  NoCancel() noexcept;
  ~NoCancel();
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;
  // Whether it could be cancelled before.
  [[nodiscard]] bool was_cancellable() const noexcept;

 private:
  int before_ = 0;
};

// Whether any signal that the calling thread does not block has a handler that SignalCount may not
// know of. If not, and it has counted none, a system call that was interrupted was so because the
// process had been stopped and continued, or traced, or by a signal of the C library's own.
bool catches_uncounted_signals() noexcept;

// Credentials that were recorded before count no more.
void forget_credentials() noexcept;
// Changes with every forget_credentials().
inline std::uint64_t credentials_epoch() noexcept {
  return detail::credentials.load(std::memory_order_relaxed);
}
// From now on all who change them say so, system calls of the program's own apart.
void tell_of_changed_credentials() noexcept;
inline bool are_changed_credentials_told() noexcept {
  return detail::credentials_told.load(std::memory_order_relaxed);
}
// Before they matter: forgets those of another effective user or group than the process has now.
// Two system calls, where nobody else tells of changes.
inline void notice_changed_credentials() noexcept {
  if (!are_changed_credentials_told()) [[unlikely]]
    detail::compare_credentials();
}

}  // namespace farcall::process

// Calls are made of this throughout.
namespace farcall::call {
using namespace farcall::process;
}
