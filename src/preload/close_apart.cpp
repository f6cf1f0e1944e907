// SPDX-License-Identifier: Apache-2.0
#include "preload/close_apart.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "preload/clone.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

// What the thread works with, on a stack of its own: for one at a time.
constexpr std::size_t kStack = 16384;
alignas(16) std::byte stack[kStack];
using Word = std::atomic<std::uint32_t>;
std::atomic<int> last_one{-1};  // the descriptor that is left to it
Word has_only_that{0};          // it has closed its copies of all others
Word is_last{0};                // that is closed here
Word user{0};                   // the process that has the stack; the kernel clears it

constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 10'000'000};

void set(Word& word) noexcept {
  word.store(1, std::memory_order_release);
  kernel(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}
// Whether it has become another than `from`, after a moment at most, or for ever.
bool has_changed(const Word& word, std::uint32_t from, const timespec* longest) noexcept {
  if (word.load(std::memory_order_acquire) == from)
    kernel(SYS_futex, &word, FUTEX_WAIT, from, longest, nullptr, 0);
  return word.load(std::memory_order_acquire) != from;
}

// In a thread without a place in the C library, so it uses nothing of that. It has a table of
// descriptors of its own, and closes the last one when it ends: then nothing lingers, and nobody
// waits but itself.
int close_by_ending(void*) noexcept {
  const int fd = last_one.load(std::memory_order_relaxed);
  if (fd > 0) kernel(SYS_close_range, 0, fd - 1, 0);
  kernel(SYS_close_range, fd + 1, UINT_MAX, 0);
  set(has_only_that);
  while (!has_changed(is_last, 0, nullptr)) continue;
  kernel(SYS_exit, 0);
  return 0;
}

// False: another thread does so, and does not come to an end.
bool take_stack() noexcept {
  const auto own = static_cast<std::uint32_t>(own_pid());
  for (int tries = 0; tries < 10; ++tries) {
    std::uint32_t before = user.load(std::memory_order_acquire);
    // A child forked meanwhile has not got that thread.
    if (before != own && user.compare_exchange_strong(before, own, std::memory_order_acquire))
      return true;
    (void)has_changed(user, own, &kMoment);
  }
  return false;
}

bool start_thread() noexcept {
  return clone_without_handlers(close_by_ending, stack, kThreadApart, &user) > 0;
}

}  // namespace

// What else the program closes next is closed then: the thread has no copies by now. (But for files
// whose own closing takes long.)
void close_apart(int fd) noexcept {
  if (!take_stack()) {
    kernel(SYS_close, fd);
    return;
  }
  last_one.store(fd, std::memory_order_relaxed);
  has_only_that.store(0, std::memory_order_relaxed);
  is_last.store(0, std::memory_order_relaxed);
  const bool begun = start_thread();
  for (int tries = 0; begun && tries < 10 && !has_changed(has_only_that, 0, &kMoment); ++tries)
    continue;
  kernel(SYS_close, fd);
  set(is_last);
  if (!begun) user.store(0, std::memory_order_release);
}

namespace {

// Whether nobody has left anything there, nor can from here on. A message, which may be one of no
// bytes, comes with who sent it where that is wanted, and there is no place for that here; with the
// end nothing comes.
bool is_empty(int guest) noexcept {
  const int on = 1;
  msghdr message{};
  return kernel(SYS_setsockopt, guest, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
         kernel(SYS_shutdown, guest, SHUT_RD) == 0 &&
         kernel(SYS_recvmsg, guest, &message, MSG_PEEK | MSG_DONTWAIT) == 0 &&
         (message.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

void close_connection(int fd) noexcept {
  if (is_empty(fd))
    kernel(SYS_close, fd);
  else
    close_apart(fd);
}

void close_listener(int listener) noexcept {
  if (!is_private(listener)) return;
  constexpr int kMostWaiting = 64;
  const auto next = [&] {
    return static_cast<int>(kernel(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC));
  };
  int guest = next();
  if (guest >= 0) kernel(SYS_shutdown, listener, SHUT_RD);  // nobody else comes
  for (int i = 0; i < kMostWaiting && guest >= 0; ++i) {
    close_connection(guest);
    guest = next();
  }
  forget_private(listener);
  // More than there is a place for.
  if (guest >= 0) {
    close_apart(listener);
    close_connection(guest);
  } else {
    kernel(SYS_close, listener);
  }
}

void close_visitor(int guest) noexcept {
  if (!is_private(guest)) return;
  forget_private(guest);
  close_connection(guest);
}

}  // namespace farcall::preload
