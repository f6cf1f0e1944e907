// SPDX-License-Identifier: Apache-2.0
#include "process/background.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/error.hpp"
#include "process/exit_close.hpp"
#include "process/per_process.hpp"
#include "wait/held_signals.hpp"

namespace farcall::process {
namespace {

struct Task {
  Uncharged uncharged;
  std::list<PrivateFd> fds;  // to be closed
  Charge charge;
  std::function<void()> work;

  [[nodiscard]] std::size_t weight() const noexcept { return std::max<std::size_t>(fds.size(), 1); }
};
// One piece of work, or as much to be closed as waits.
using Tasks = std::list<Task>;

// Whose turn it is: a user's, by number, or that of what no user's work may hold up.
using Turn = std::uint64_t;
constexpr Turn kTurnedAway = Turn{1} << 32;  // sockets of those who have not been let in
constexpr Turn kMoments = Turn{2} << 32;     // what waits for a moment only
constexpr auto kNobody = static_cast<uid_t>(-1);
bool is_own_turn(Turn turn) noexcept {
  return turn <= UINT32_MAX && is_own(static_cast<uid_t>(turn));
}

bool is_unix_socket(int fd) noexcept {
  int domain = AF_UNSPEC;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

// What others have left in a unix socket may linger, and be long in closing with it; of others
// alone.
void close_all(Turn turn, Tasks& tasks) noexcept {
  std::list<PrivateFd> nested;
  // Who sent a socket that lingers mostly has no hand on it any more.
  constexpr linger kNone{.l_onoff = 0, .l_linger = 0};
  for (Task& task : tasks) {
    for (auto fd = task.fds.begin(); fd != task.fds.end();) {
      const auto mine = fd++;
      ::setsockopt(mine->get(), SOL_SOCKET, SO_LINGER, &kNone, sizeof kNone);
      if (!is_own_turn(turn) && is_unix_socket(mine->get()))
        nested.splice(nested.end(), task.fds, mine);
      else
        mine->reset();
    }
  }
  if (!nested.empty() && !close_by_exit(nested)) nested.clear();
}

class Pool {
 public:
  // False: there is no thread, and nothing has been taken.
  bool add(Turn turn, Task& task) {
    const HeldSignals quiet;  // telling a thread takes a lock as well
    bool asleep = false;
    {
      const std::lock_guard guard(lock_);
      if (idle_ + awake_ == 0 && !add_thread() && threads_ == 0) return false;
      User& his = users_[turn];
      const std::size_t weight = task.weight();
      const std::size_t uncharged = task.uncharged.count();
      his.waiting.push_back(std::move(task));
      his.weight += weight;
      his.uncharged += uncharged;
      asleep = awake_ == 0;
    }
    if (asleep) changed_.notify_one();
    return true;
  }
  // Whether a user has as much waiting or being closed as one may, a quarter of a small table. Of
  // all others together there may be no more than of eight, so the more there are, the less is each
  // one's.
  bool behind(Turn turn) {
    const QuietGuard guard(lock_);
    const auto his = users_.find(turn);
    if (his == users_.end()) return false;
    const std::size_t share = std::max<std::size_t>(8 * kMostWaiting / users_.size(), 1);
    return his->second.weight >= std::min({kMostWaiting, share, descriptor_table() / 4});
  }
  // Changes when something of a user has been closed or done; nullopt: no thread has come to it.
  std::optional<std::size_t> progress(Turn turn) {
    const QuietGuard guard(lock_);
    const auto his = users_.find(turn);
    if (his == users_.end()) return 0;
    if (his->second.running == 0) return std::nullopt;
    return 1 + his->second.done;
  }
  // Of the descriptors that wait or are being closed.
  std::size_t uncharged(Turn turn) {
    const QuietGuard guard(lock_);
    const auto his = users_.find(turn);
    return his == users_.end() ? 0 : his->second.uncharged;
  }

 private:
  struct User {
    Tasks waiting;
    std::size_t weight = 0;     // of those, and of descriptors that are being closed
    std::size_t uncharged = 0;  // likewise
    std::size_t running = 0;
    std::size_t done = 0;  // how often a thread has come back from it

    Tasks take() noexcept {
      Tasks taken;
      do {
        if (waiting.front().work) weight -= waiting.front().weight();
        taken.splice(taken.end(), waiting, waiting.begin());
      } while (!taken.front().work && !waiting.empty() && !waiting.front().work);
      return taken;
    }
  };

  bool add_thread();
  // One after the other of those who have something to do.
  std::map<Turn, User>::iterator next_due() {
    const std::size_t most = busy_ < kBackgroundThreads / 2 ? kThreadsPerUser : 1;
    const auto due = [this, most](const auto& user) {
      return !user.second.waiting.empty() && user.second.running < most &&
             (busy_ < kThreadsForOthers || user.first > UINT32_MAX || is_own_turn(user.first));
    };
    const auto after = users_.upper_bound(last_);
    const auto found = std::find_if(after, users_.end(), due);
    if (found != users_.end()) return found;
    const auto before = std::find_if(users_.begin(), after, due);
    return before != after ? before : users_.end();
  }
  void serve() {
    std::unique_lock guard(lock_);
    --awake_;
    for (int pauses = 0;;) {
      const auto next = next_due();
      if (next == users_.end()) {
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
        if (woken || next_due() != users_.end()) continue;
        break;
      }
      pauses = 0;
      User& user = next->second;
      last_ = next->first;
      ++user.running;
      ++busy_;
      std::size_t weight = 0;
      std::size_t uncharged = 0;
      {
        Tasks mine = user.take();
        for (const Task& task : mine) {
          uncharged += task.uncharged.count();
          if (!task.work) weight += task.weight();
        }
        // What this one takes may last.
        if (awake_ == 0 && next_due() != users_.end()) {
          if (idle_ != 0)
            changed_.notify_one();
          else
            (void)add_thread();
        }
        guard.unlock();
        perform(next->first, mine);
      }
      guard.lock();
      --busy_;
      user.weight -= weight;
      user.uncharged -= uncharged;
      ++user.done;
      if (--user.running == 0 && user.waiting.empty()) users_.erase(next);
      // What had to wait for this user's turn is seen by this thread, in the next round.
    }
    --threads_;
  }
  static void perform(Turn turn, Tasks& tasks) noexcept {
    close_all(turn, tasks);
    try {
      if (tasks.front().work) tasks.front().work();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who asked gets no answer
    }
  }

  static constexpr std::size_t kMostWaiting = 256;
  static constexpr auto kIdle = std::chrono::seconds(2);
  static constexpr auto kPause = std::chrono::milliseconds(1);
  static constexpr int kPauses = 8;

  // Protects what follows. Taken without signals: a handler that opens a file or looks at one asks
  // whether its owner is behind, and may have interrupted who asks or brings something.
  std::mutex lock_;
  std::condition_variable changed_;
  std::map<Turn, User> users_;  // of whom something waits or runs
  Turn last_ = 0;
  std::size_t busy_ = 0;  // threads at work
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

// A child has none of its parent's.
struct UnchargedOfAll {
  std::atomic<std::size_t> waiting{0};
  std::atomic<std::size_t> in_hand{0};
};
UnchargedOfAll& uncharged() { return PerProcess<UnchargedOfAll>::here(); }

}  // namespace

Uncharged::Uncharged(uid_t user, std::size_t count) noexcept {
  if (count == 0 || is_own(user)) return;
  all_ = &uncharged().waiting;
  count_ = count;
  all_->fetch_add(count, std::memory_order_relaxed);
}

void InHand::put_back() noexcept {
  if (all_ != nullptr) all_->fetch_sub(count_, std::memory_order_relaxed);
  all_ = nullptr;
}

InHand::Room InHand::take(uid_t user, std::size_t count) noexcept {
  const std::size_t table = descriptor_table();
  Pool* const made = PerProcess<Pool>::made();
  const std::size_t his = made != nullptr ? made->uncharged(user) : 0;
  // Something is left for those of whom nothing waits.
  const std::size_t most = table / 2 - (his != 0 ? table / 8 : 0);
  const std::size_t waiting = uncharged().waiting.load(std::memory_order_relaxed);
  if (waiting + count > most || (his != 0 && his + count > table / 4)) return Room::full;
  all_ = &uncharged().in_hand;
  count_ = count;
  if (waiting + count + all_->fetch_add(count, std::memory_order_relaxed) <= most)
    return Room::given;
  put_back();
  return Room::busy;
}

namespace {

void close_all_later(uid_t user, std::list<PrivateFd>&& fds, Charge held) {
  Task task{.uncharged = {}, .fds = std::move(fds), .charge = std::move(held), .work = {}};
  if (!task.charge) task.uncharged = Uncharged(user, task.fds.size());
  // What one who may do as it likes sends faster than it is closed is closed here.
  if (is_own(user) && pool().behind(user)) return;
  (void)pool().add(user, task);
}

}  // namespace

void close_later(uid_t user, PrivateFd&& fd, Charge held) noexcept {
  if (!fd.is_here()) return;  // a forked child starts no thread for what is not its own
  PrivateFd mine = std::move(fd);
  if (!is_own(user)) mine.become_peers();
  try {
    std::list<PrivateFd> one;
    one.push_back(std::move(mine));
    close_all_later(user, std::move(one), std::move(held));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is closed here
  }
}

void close_later(uid_t user, UniqueFd fd) noexcept {
  close_later(user, PrivateFd::of_peer(std::move(fd)));
}

void close_later(uid_t user, std::vector<UniqueFd>&& fds) noexcept {
  std::vector<UniqueFd> mine = std::move(fds);
  try {
    std::list<PrivateFd> all;
    for (UniqueFd& fd : mine)
      if (fd) all.push_back(PrivateFd::of_peer(std::move(fd)));
    if (!all.empty()) close_all_later(user, std::move(all), {});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): they are closed here
  }
}

void hang_up_later(uid_t user, PrivateFd&& socket) noexcept {
  if (!socket.is_here()) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  close_later(user, std::move(socket));
}

bool close_turned_away(uid_t user, PrivateFd&& client) noexcept {
  if (!client.is_here()) return true;
  if (is_own(user)) {
    close_later(user, std::move(client));
    return true;
  }
  try {
    PrivateFd mine = std::move(client);
    mine.become_peers();
    Task task{.uncharged = Uncharged(kNobody, 1), .fds = {}, .charge = {}, .work = {}};
    task.fds.push_back(std::move(mine));
    (void)pool().add(kTurnedAway, task);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is closed here
  }
  return !turned_away_wait();
}

bool turned_away_wait() noexcept {
  Pool* const made = PerProcess<Pool>::made();
  return made != nullptr && made->behind(kTurnedAway);
}

void run_in_a_moment(std::function<void()> work) {
  Task task{.uncharged = {}, .fds = {}, .charge = {}, .work = std::move(work)};
  if (!pool().add(kMoments, task)) throw SystemError(EAGAIN, "no thread");
}

// Who only asks, as open(2) does, makes nothing: it may be in a signal handler.
bool behind(uid_t user) noexcept {
  Pool* const made = PerProcess<Pool>::made();
  return made != nullptr && made->behind(user);
}

// The process's own user is not asked about, nor anybody where nothing has ever been closed here.
bool is_flooding(uid_t user) noexcept {
  return PerProcess<Pool>::made() != nullptr && !is_own(user) && behind(user);
}

bool CatchingUp::wait() noexcept {
  constexpr int kMostInVain = 5;
  constexpr int kMost = 100;
  if (in_vain_ == kMostInVain || ++waits_ > kMost) return false;
  Pool* const made = PerProcess<Pool>::made();
  const std::optional<std::size_t> before = made != nullptr ? made->progress(user_) : 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (before && (made == nullptr || before == made->progress(user_))) ++in_vain_;
  return true;
}

bool goes_on_flooding(uid_t user) noexcept {
  for (CatchingUp catching_up(user); is_flooding(user);)
    if (!catching_up.wait()) return true;
  return false;
}

void run_later(uid_t user, std::function<void()> work) {
  if (behind(user)) throw SystemError(EAGAIN, "too much to do");
  catch_up(user, std::move(work));
}

void catch_up(uid_t user, std::function<void()> work) {
  Task task{.uncharged = {}, .fds = {}, .charge = {}, .work = std::move(work)};
  if (!pool().add(user, task)) throw SystemError(EAGAIN, "no thread");
}

}  // namespace farcall::process
