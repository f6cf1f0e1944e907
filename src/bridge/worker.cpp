// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "bridge/local_server.hpp"
#include "farcall/message.h"

namespace farcall::bridge {
namespace {

// Signals that this thread's handler has seen.
thread_local std::atomic<unsigned> seen{0};
// Address space is: from now on nobody keeps any that others may need.
constinit std::atomic<bool> scarce{false};

int cancel_signal() noexcept { return SIGRTMIN + 6; }

constexpr std::size_t kKeptRoom = std::size_t{256} << 10;

}  // namespace

void Worker::install_handler() {
  struct sigaction action {};
  action.sa_handler = [](int) { seen.fetch_add(1); };
  ::sigemptyset(&action.sa_mask);
  ::sigaction(cancel_signal(), &action, nullptr);
}

void Worker::block_signals() noexcept {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

Worker::~Worker() {
  settle();
  hold(nullptr, 0);
  unmap();
}

void Worker::interrupt() noexcept {
  sent_.fetch_add(1);
  if (::pthread_kill(thread_, cancel_signal()) != 0) sent_.fetch_sub(1);
}

void Worker::settle() noexcept {
  while (seen.load() != sent_.load()) ::sched_yield();
}

// Lowering is always permitted, but coming back is not: so it is tried upwards first.
void Worker::take_priority(int priority) noexcept {
  static const bool may = [] {
    const int nice = ::getpriority(PRIO_PROCESS, 0);
    return ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice - 1) == 0 &&
           ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice) == 0;
  }();
  if (!may || priority == 0 || priority == priority_) return;
  sched_param real_time{};
  if (priority > 40) {
    real_time.sched_priority = std::min(priority - 40, 99);
    ::pthread_setschedparam(thread_, SCHED_RR, &real_time);
  } else {
    ::pthread_setschedparam(thread_, SCHED_OTHER, &real_time);
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 20 - priority);
  }
  ::farcall_priority_changed();
  priority_ = priority;
}

// As long as there is memory for it, it has the size that any reply fits in.
std::span<std::byte> Worker::room(std::size_t size) {
  for (const std::size_t bytes : {std::size_t{kLongest}, size}) {
    if (room_size_ >= size) break;
    unmap();
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      scarce = true;
      continue;
    }
    room_ = static_cast<std::byte*>(memory);
    room_size_ = bytes;
  }
  if (room_size_ < size) throw std::bad_alloc();
  return {room_, size};
}

void Worker::unmap() noexcept {
  if (room_ != nullptr) ::munmap(room_, room_size_);
  room_ = nullptr;
  room_size_ = room_used_ = 0;
}

void Worker::hold(void* memory, std::size_t size) noexcept {
  if (held_ != nullptr) ::munmap(held_, held_size_);
  held_ = memory;
  held_size_ = size;
}

void Worker::shrink() noexcept {
  hold(nullptr, 0);
  if (scarce) return unmap();
  // A server may leave gaps in what it writes: nobody finds there what somebody else was answered.
  if (room_used_ > kKeptRoom)
    ::madvise(room_, room_size_, MADV_DONTNEED);
  else
    std::fill_n(room_, room_used_, std::byte{});
  room_used_ = 0;
}

}  // namespace farcall::bridge
