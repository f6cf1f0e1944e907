// SPDX-License-Identifier: Apache-2.0
//
// Which threads of a port receive, and which wait in reserve. Threads that have been made for
// clients whose calls took long stay when these have ended. If all of them went on taking short
// calls, each would soon have a client that waits for it while it waits for a processor.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "call/port.hpp"

namespace farcall::call {

void PortState::join_threads(const std::atomic<bool>& receiving) {
  const std::lock_guard guard(lock);
  // Who comes back from the reserve must find room.
  threads.reserve(threads.size() + reserve.away + 1);
  threads.push_back(&receiving);
  serving.store(threads.size(), std::memory_order_relaxed);
}

void PortState::leave_threads(const std::atomic<bool>& receiving) noexcept {
  {
    const std::lock_guard guard(lock);
    std::erase(threads, &receiving);
    serving.store(threads.size(), std::memory_order_relaxed);
  }
  call_reserve();
}

std::size_t PortState::receiving_threads() const noexcept {
  return static_cast<std::size_t>(
      std::ranges::count_if(threads, [](const std::atomic<bool>* receiving) {
        return receiving->load(std::memory_order_relaxed);
      }));
}

void PortState::ring_reserve(int most) noexcept {
  // release: pairs with the lock, under which who is about to sleep looks first.
  reserve.bell.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &reserve.bell, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}

bool PortState::call_reserve() noexcept {
  if (reserve.waiting.load(std::memory_order_relaxed) == 0) return false;
  {
    const std::lock_guard guard(lock);
    const std::size_t waiting_now = reserve.waiting.load(std::memory_order_relaxed);
    if (waiting_now == 0) return false;
    reserve.waiting.store(waiting_now - 1, std::memory_order_relaxed);
    ++reserve.called;
  }
  ring_reserve(1);
  return true;
}

void PortState::wait_in_reserve(std::atomic<bool>& receiving) noexcept {
  // One more than can run: of those that receive one may be about to serve.
  const std::size_t enough = processors + 1;
  if (serving.load(std::memory_order_relaxed) <= enough) [[likely]]
    return;
  const NoCancel guard;
  std::unique_lock held(lock);
  if (closed || receiving_threads() <= enough) return;
  // It can be called before it is missed.
  ++reserve.away;
  reserve.waiting.store(reserve.waiting.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
  std::erase(threads, &receiving);
  serving.store(threads.size(), std::memory_order_relaxed);
  stop_receiving(receiving);
  held.unlock();
  asymmetric_fence_heavy();  // as in Port::idle_threads(): others may begin to serve just now
  held.lock();
  if (receiving_threads() != 0) {
    while (reserve.called == 0 && !closed) {
      const std::uint32_t rung = reserve.bell.load(std::memory_order_relaxed);
      held.unlock();
      ::syscall(SYS_futex, &reserve.bell, FUTEX_WAIT_PRIVATE, rung, nullptr, nullptr, 0);
      held.lock();
    }
  }
  if (reserve.called != 0)
    --reserve.called;
  else
    reserve.waiting.store(reserve.waiting.load(std::memory_order_relaxed) - 1,
                          std::memory_order_relaxed);
  --reserve.away;
  receiving.store(true, std::memory_order_relaxed);
  threads.push_back(&receiving);
  serving.store(threads.size(), std::memory_order_relaxed);
}

}  // namespace farcall::call
