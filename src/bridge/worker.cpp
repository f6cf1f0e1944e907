// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

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

// The calling thread's.
void Worker::Scheduling::apply(pthread_t thread) const noexcept {
  ::pthread_setschedparam(thread, policy, &real_time);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);
  ::farcall_priority_changed();
}

Worker::Worker() : thread_(::pthread_self()), own_priority_(::farcall_priority()) {
  ::pthread_getschedparam(thread_, &own_.policy, &own_.real_time);
  own_.nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
}

// Lowering is always permitted, but coming back is not: so it is tried upwards first.
bool Worker::would_change(int priority) const noexcept {
  static const bool may = [this] {
    const auto thread = static_cast<id_t>(::gettid());
    sched_param higher = own_.real_time;
    ++higher.sched_priority;
    const bool is_real_time = own_.policy == SCHED_RR || own_.policy == SCHED_FIFO;
    if (is_real_time && (::pthread_setschedparam(thread_, own_.policy, &higher) != 0 ||
                         ::pthread_setschedparam(thread_, own_.policy, &own_.real_time) != 0))
      return false;
    return ::setpriority(PRIO_PROCESS, thread, own_.nice - 1) == 0 &&
           ::setpriority(PRIO_PROCESS, thread, own_.nice) == 0;
  }();
  return may && priority != 0 && priority != own_priority_;
}

void Worker::take_priority(int priority) noexcept {
  if (!would_change(priority)) return;
  Scheduling other{.policy = SCHED_OTHER, .real_time = {}, .nice = 20 - priority};
  if (priority > 40) {
    other.policy = SCHED_RR;
    other.real_time.sched_priority = std::min(priority - 40, 99);
    other.nice = own_.nice;
  }
  changed_ = true;
  other.apply(thread_);
}

void Worker::own_priority() noexcept {
  if (std::exchange(changed_, false)) own_.apply(thread_);
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
