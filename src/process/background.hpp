// SPDX-License-Identifier: Apache-2.0
//
// Work that lasts as long as somebody else likes. The last close of a socket may wait for its peer
// (SO_LINGER), every close and look at a file of FUSE for the process behind it. What came from
// another process is therefore closed and looked at here, by threads that serve nobody; of a
// socket's close not even these wait (see exit_close.hpp).
//
// Such threads are made when there is work and gone when there is none. One user's work takes at
// most kThreadsPerUser of them, and only one where half of them are at work, so that a few users
// whose work never ends leave some for the others. A few are for the process's own user, for root,
// and for what no user's work may hold up, however many others there are.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::process {

inline constexpr std::size_t kBackgroundThreads = 64;
inline constexpr std::size_t kThreadsForOthers = 60;  // of those
inline constexpr std::size_t kThreadsPerUser = 2;

// Descriptors that other users have sent, that nobody is charged for, and that wait to be closed or
// are being closed. Of this process's own user and root nothing is counted. Given back when it
// goes.
class Uncharged {
 public:
  Uncharged() noexcept = default;
  Uncharged(uid_t user, std::size_t count) noexcept;
  Uncharged(Uncharged&& other) noexcept
      : all_(other.all_), count_(std::exchange(other.count_, 0)) {}
  Uncharged& operator=(Uncharged&& other) noexcept {
    std::swap(all_, other.all_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Uncharged() {
    if (count_ != 0) all_->fetch_sub(count_, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  std::atomic<std::size_t>* all_ = nullptr;
  std::size_t count_ = 0;
};

// The descriptors of a packet of somebody else's that a thread is about to take, until these are
// charged for, or wait to be closed. Of all others together there are never more than half of the
// table of both.
class InHand {
 public:
  InHand() noexcept = default;
  InHand(const InHand&) = delete;
  InHand& operator=(const InHand&) = delete;
  ~InHand() { put_back(); }

  // Of `user`, and no more than that many. busy: there is room as soon as others have dealt with
  // theirs, which needs nobody's help; full: when somebody's have been closed.
  enum class Room : std::uint8_t { given, busy, full };
  Room take(uid_t user, std::size_t count) noexcept;

 private:
  void put_back() noexcept;

  std::atomic<std::size_t>* all_ = nullptr;
  std::size_t count_ = 0;
};

// Closes what `user` has sent, and gives up the charge for it then. What this process's own user,
// or root, sends faster than it is closed is closed here, and so is all for which there is no
// memory or no thread.
void close_later(uid_t user, PrivateFd&& fd, Charge held = {}) noexcept;
void close_later(uid_t user, UniqueFd fd) noexcept;
void close_later(uid_t user, std::vector<UniqueFd>&& fds) noexcept;
// Closes a socket that was accepted, of `user`, who is not let in. Whatever is in it, that does not
// last, so it waits for others of its kind alone, not for what its user has left here; that of the
// process's own user as close_later(). False: as turned_away_wait().
bool close_turned_away(uid_t user, PrivateFd&& client) noexcept;
// Whether so many of these wait that nobody is to be accepted for a moment.
bool turned_away_wait() noexcept;
// Tells the other side of a unix socket, that user's, at once that this one is gone. Packets that
// nobody has taken, or that come at the last moment, may hold anything; they go as above.
void hang_up_later(uid_t user, PrivateFd&& socket) noexcept;
// Does `work` for `user`; what it throws is dropped. Throws SystemError: EAGAIN, where that user
// has too much waiting or there is no thread.
void run_later(uid_t user, std::function<void()> work);
// Does `work`, which waits for a moment of its own choice and for nobody, whatever users have left
// here. Throws SystemError: there is no thread.
void run_in_a_moment(std::function<void()> work);
// Whether more of that user waits to be closed or done than is right: 256 descriptors, those that
// are being closed among them, and pieces of work, or less where many users have some, or the table
// of descriptors is small. Who is told so takes nothing more from the user until catch_up() calls
// `work`, when all that waits now is done.
bool behind(uid_t user) noexcept;
// The same, of one whose things are not closed here meanwhile: neither this process's own nor root.
bool is_flooding(uid_t user) noexcept;
// How long a thread that serves waits until what somebody has sent is closed: 5 ms in which nothing
// of it is, and longer only where our threads have not come to it, on a busy machine.
class CatchingUp {
 public:
  explicit CatchingUp(uid_t user) noexcept : user_(user) {}
  // Waits for 1 ms, 100 times at most. False: it has waited long enough.
  bool wait() noexcept;

 private:
  uid_t user_;
  int waits_ = 0;
  int in_vain_ = 0;
};
// The same as is_flooding(), when such a user has had time to catch up.
bool goes_on_flooding(uid_t user) noexcept;
void catch_up(uid_t user, std::function<void()> work);

}  // namespace farcall::process
