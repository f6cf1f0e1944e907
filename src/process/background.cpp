// SPDX-License-Identifier: Apache-2.0
#include "process/background.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "farcall/error.hpp"
#include "process/per_process.hpp"

namespace farcall::process {
namespace {

struct Task {
  uid_t user;
  PrivateFd fd;  // to be closed
  Charge charge;
  std::function<void()> work;
};

class Pool {
 public:
  // False: there is no thread, and nothing has been taken.
  bool add(Task& task) {
    bool asleep = false;
    {
      const std::lock_guard guard(lock_);
      if (idle_ + awake_ == 0 && !add_thread() && threads_ == 0) return false;
      waiting_.push_back(std::move(task));
      asleep = awake_ == 0;
    }
    if (asleep) changed_.notify_one();
    return true;
  }
  std::size_t waiting(uid_t user) {
    const std::lock_guard guard(lock_);
    return static_cast<std::size_t>(
        std::ranges::count_if(waiting_, [user](const Task& task) { return task.user == user; }));
  }

 private:
  bool add_thread();
  std::deque<Task>::iterator first_due() {
    const std::size_t most = busy_ < kBackgroundThreads / 2 ? kThreadsPerUser : 1;
    return std::ranges::find_if(waiting_, [this, most](const Task& task) {
      const auto running = running_.find(task.user);
      return running == running_.end() || running->second < most;
    });
  }
  void serve() {
    std::unique_lock guard(lock_);
    --awake_;
    for (int pauses = 0;;) {
      const auto next = first_due();
      if (next == waiting_.end()) {
        if (++pauses < kPauses) {
          // Work comes in bursts, and who brings it is spared the waking of others.
          ++awake_;
          guard.unlock();
          std::this_thread::sleep_for(kPause);
          guard.lock();
          --awake_;
          continue;
        }
        // One that waits is enough: several in turns would all stay for little work.
        if (idle_ != 0) break;
        ++idle_;
        const bool woken = changed_.wait_for(guard, kIdle) == std::cv_status::no_timeout;
        --idle_;
        if (woken || !waiting_.empty()) continue;
        break;
      }
      pauses = 0;
      const uid_t user = next->user;
      ++running_[user];
      ++busy_;
      {
        Task mine = std::move(*next);
        waiting_.erase(next);
        // What this one takes may last.
        if (awake_ == 0 && first_due() != waiting_.end()) {
          if (idle_ != 0)
            changed_.notify_one();
          else
            (void)add_thread();
        }
        guard.unlock();
        perform(mine);
      }
      guard.lock();
      --busy_;
      if (--running_[user] == 0) running_.erase(user);
      // What had to wait for this user's turn is seen by this thread, in the next round.
    }
    --threads_;
  }
  static void perform(Task& task) noexcept {
    if (task.fd) {
      // Who sent a socket that lingers mostly has no hand on it any more.
      const linger none{.l_onoff = 0, .l_linger = 0};
      ::setsockopt(task.fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
      task.fd.reset();
    }
    try {
      if (task.work) task.work();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who asked gets no answer
    }
  }

  static constexpr auto kIdle = std::chrono::seconds(2);
  static constexpr auto kPause = std::chrono::milliseconds(1);
  static constexpr int kPauses = 8;

  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  std::unordered_map<uid_t, std::size_t> running_;
  std::size_t busy_ = 0;  // all of those
  std::size_t threads_ = 0;
  std::size_t idle_ = 0;   // asleep, until they are told
  std::size_t awake_ = 0;  // about to look again
};

// With the lock held.
bool Pool::add_thread() {
  if (threads_ == kBackgroundThreads) return false;
  const int error = start_thread(
      "farcall-close", [](void* pool) { static_cast<Pool*>(pool)->serve(); }, this);
  if (error != 0) return false;
  ++threads_;
  ++awake_;
  return true;
}

// What waits in a parent is closed in its forked child by the fork.
Pool& pool() { return PerProcess<Pool>::here(); }

}  // namespace

void close_later(uid_t user, PrivateFd&& fd, Charge held) noexcept {
  if (!fd.is_here()) return;  // a forked child starts no thread for what is not its own
  Task task{.user = user, .fd = std::move(fd), .charge = std::move(held), .work = {}};
  if ((user == 0 || user == ::geteuid()) && behind(user)) return;
  try {
    (void)pool().add(task);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is closed here
  }
}

void close_later(uid_t user, UniqueFd fd) noexcept { close_later(user, PrivateFd(std::move(fd))); }

void close_later(uid_t user, std::vector<UniqueFd>&& fds) noexcept {
  for (UniqueFd& fd : fds) close_later(user, std::move(fd));
  fds.clear();
}

void hang_up_later(uid_t user, PrivateFd&& socket) noexcept {
  if (!socket.is_here()) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  close_later(user, std::move(socket));
}

bool behind(uid_t user) noexcept {
  constexpr std::size_t kMostWaiting = 256;
  return pool().waiting(user) >= kMostWaiting;
}

void run_later(uid_t user, std::function<void()> work) {
  if (behind(user)) throw SystemError(EAGAIN, "too much to do");
  catch_up(user, std::move(work));
}

void catch_up(uid_t user, std::function<void()> work) {
  Task task{.user = user, .fd = {}, .charge = {}, .work = std::move(work)};
  if (!pool().add(task)) throw SystemError(EAGAIN, "no thread");
}

}  // namespace farcall::process
