// SPDX-License-Identifier: Apache-2.0
#include "model/checker/system_calls.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "model/checker/explorer.hpp"

namespace farcall::model {
namespace {

Explorer& explorer() { return Explorer::here(); }

long answer(long result) noexcept {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

long futex(const long (&arguments)[6]) {
  const auto* const word = reinterpret_cast<const void*>(arguments[0]);
  switch (arguments[1] & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET:
      return explorer().kernel().futex_wait(word, static_cast<std::uint32_t>(arguments[2]),
                                            arguments[3] != 0);
    case FUTEX_WAKE:
      return explorer().kernel().futex_wake(word, static_cast<unsigned>(arguments[2]));
    default: return -ENOSYS;
  }
}

// Messages of scenarios have one.
std::span<std::byte> only_part(long address) {
  const auto& message = *reinterpret_cast<const msghdr*>(address);
  if (message.msg_iovlen != 1) violation("a message of several parts");
  return {static_cast<std::byte*>(message.msg_iov->iov_base), message.msg_iov->iov_len};
}

bool is_of_scenario(int fd) noexcept { return explorer().running() && Kernel::owns(fd); }

}  // namespace

void lock(std::mutex& real) {
  if (explorer().running())
    explorer().kernel().lock(&real);
  else
    real.lock();
}

void unlock(std::mutex& real) {
  if (explorer().running())
    explorer().kernel().unlock(&real);
  else
    real.unlock();
}

void* copy(void* to, const void* from, std::size_t size) {
  Memory& memory = explorer().memory();
  // Piece by piece, where memory is mapped twice and the end of its first copy is crossed.
  auto* into = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (size != 0) {
    auto* const here = static_cast<std::byte*>(memory.first_copy(into));
    const auto* const there = static_cast<const std::byte*>(memory.first_copy(source));
    const std::size_t piece = std::min({size, memory.room(here), memory.room(there)});
    if (explorer().running() && (memory.is_shared(here) || memory.is_shared(there)))
      memory.copy(explorer().current(), here, there, piece);
    else
      std::memmove(here, there, piece);
    into += piece;
    source += piece;
    size -= piece;
  }
  return to;
}

}  // namespace farcall::model

using farcall::model::explorer;

extern "C" {

long farcall_model_syscall(long number, ...) noexcept {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  // Without it light fences would be full ones, and show nothing.
  if (number == SYS_membarrier && arguments[0] == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    return 0;
  if (!explorer().running())
    return ::syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                     arguments[5]);
  auto& kernel = explorer().kernel();
  const auto fd = static_cast<int>(arguments[0]);
  auto* const bytes = reinterpret_cast<std::byte*>(arguments[1]);
  const auto size = static_cast<std::size_t>(arguments[2]);
  using farcall::model::answer;
  using farcall::model::only_part;
  switch (number) {
    case SYS_futex: return answer(farcall::model::futex(arguments));
    case SYS_membarrier:
    case SYS_clock_nanosleep:  // by which a long time passes for all
      kernel.fence_all();
      return 0;
    case SYS_sendto: return answer(kernel.send(fd, {bytes, size}));
    case SYS_recvfrom:
      return answer(kernel.receive(fd, {bytes, size}, (arguments[3] & MSG_PEEK) != 0));
    case SYS_sendmsg: return answer(kernel.send(fd, only_part(arguments[1])));
    case SYS_recvmsg:
      return answer(kernel.receive(fd, only_part(arguments[1]), (arguments[2] & MSG_PEEK) != 0));
    case SYS_ioctl: *reinterpret_cast<int*>(arguments[2]) = kernel.queued(fd); return 0;
    // Of descriptors that are the real kernel's.
    case SYS_read:
    case SYS_write: return ::syscall(number, arguments[0], arguments[1], arguments[2]);
    // Nothing has come there: the sockets are the model's.
    case SYS_epoll_pwait2: return 0;
    default: farcall::model::violation("a system call that the model does not know");
  }
}

int farcall_model_poll(pollfd* entries, nfds_t count, int timeout) {
  if (count != 1 || !farcall::model::is_of_scenario(entries->fd))
    return ::poll(entries, count, timeout);
  return explorer().kernel().poll(*entries, timeout != 0, timeout > 0);
}

int farcall_model_ppoll(pollfd* entries, nfds_t count, const timespec* timeout,
                        const sigset_t* mask) {
  if (count != 1 || !farcall::model::is_of_scenario(entries->fd))
    return ::ppoll(entries, count, timeout, mask);
  return explorer().kernel().poll(*entries, true, timeout != nullptr);
}

int farcall_model_sched_yield() noexcept { return explorer().running() ? 0 : ::sched_yield(); }

// Each thread has a processor of its own. What is made before the threads run is made on no other's
// either: where the checker itself runs must change nothing, and it may be moved at any time.
int farcall_model_sched_getcpu() noexcept {
  static std::atomic<int> next{1000};
  if (explorer().running()) return static_cast<int>(explorer().current());
  return explorer().making() ? next.fetch_add(1, std::memory_order_relaxed) : ::sched_getcpu();
}

int farcall_model_clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (!explorer().running()) return ::clock_gettime(clock, now);
  *now = {.tv_sec = 1, .tv_nsec = 0};
  return 0;
}

int farcall_model_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  return explorer().running() ? 0 : ::pthread_sigmask(how, set, before);
}

int farcall_model_setcancelstate(int state, int* before) {
  return explorer().running() ? 0 : ::pthread_setcancelstate(state, before);
}

unsigned long long farcall_model_ticks() noexcept { return 0; }

}  // extern "C"
