// SPDX-License-Identifier: Apache-2.0
#include "process/exit_close.hpp"

#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace farcall::process {
namespace {

enum class Stage : int { begun, refused, taken, closed };

struct Batch {
  std::vector<int> numbers;

  void reach(Stage next) {
    {
      const std::lock_guard guard(lock_);
      stage_ = next;
    }
    changed_.notify_one();
  }
  Stage await_beyond(Stage before) {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return stage_ > before; });
    return stage_;
  }

 private:
  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  Stage stage_ = Stage::begun;
};

int open_process() noexcept { return static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)); }
int take(int process, int number) noexcept {
  return static_cast<int>(::syscall(SYS_pidfd_getfd, process, number, 0));
}

// While the table is still everybody's: whether what is to be done afterwards can be done.
bool can_take() noexcept {
  const int process = open_process();
  if (process < 0) return false;
  const int copy = take(process, process);
  if (copy >= 0) ::syscall(SYS_close, copy);
  ::syscall(SYS_close, process);
  return copy >= 0;
}

// On a thread that ends afterwards.
void take_and_end(Batch& batch) noexcept {
  constexpr unsigned kFirst = 3;
  // A table of its own, without any of the others in it but the standard streams.
  if (!can_take() || ::syscall(SYS_close_range, kFirst, ~0U, CLOSE_RANGE_UNSHARE) != 0)
    return batch.reach(Stage::refused);
  const int process = open_process();
  bool all = process >= 0;
  for (const int number : batch.numbers) all = take(process, number) >= 0 && all;
  batch.reach(all ? Stage::taken : Stage::refused);
  ::syscall(SYS_close_range, 0U, kFirst - 1, 0U);
  if (all) (void)batch.await_beyond(Stage::taken);
}

}  // namespace

bool close_by_exit(std::list<PrivateFd>& sockets) noexcept {
  try {
    auto batch = std::make_shared<Batch>();
    for (const PrivateFd& socket : sockets) batch->numbers.push_back(socket.get());
    auto theirs = std::make_unique<std::shared_ptr<Batch>>(batch);
    const auto run = [](void* given) {
      const std::unique_ptr<std::shared_ptr<Batch>> mine(
          static_cast<std::shared_ptr<Batch>*>(given));
      take_and_end(**mine);
    };
    if (start_thread("farcall-exit", run, theirs.get()) != 0) return false;
    (void)theirs.release();
    const bool taken = batch->await_beyond(Stage::begun) == Stage::taken;
    if (!taken) return false;
    sockets.clear();
    batch->reach(Stage::closed);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace farcall::process
