// SPDX-License-Identifier: Apache-2.0
#include "preload/permitted.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

#include "preload/clone.hpp"
#include "preload/fork.hpp"
#include "preload/lock.hpp"
#include "preload/log.hpp"
#include "preload/options.hpp"
#include "preload/real.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

struct SystemCall {
  long number;
  std::array<long, 4> arguments;
};

constexpr long kNone = -1;  // no descriptor

// What programs that use sockets seldom do themselves, each so that nothing comes of it. The first
// one is what takes the child away that tries them.
constexpr SystemCall kCalls[] = {
    {SYS_wait4, {0, 0, WNOHANG, 0}},
    {SYS_socket, {AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG}},
    {SYS_socket, {AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0}},
    {SYS_bind, {kNone}},
    {SYS_listen, {kNone}},
    {SYS_connect, {kNone}},
    {SYS_accept4, {kNone, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK}},
    {SYS_shutdown, {kNone}},
    {SYS_sendto, {kNone}},
    {SYS_recvfrom, {kNone}},
    {SYS_sendmsg, {kNone}},
    {SYS_recvmsg, {kNone}},
    {SYS_getsockopt, {kNone, SOL_SOCKET, SO_COOKIE}},
    {SYS_getsockopt, {kNone, SOL_SOCKET, SO_SNDBUF}},
    {SYS_getsockopt, {kNone, SOL_SOCKET, SO_BUF_LOCK}},
    {SYS_ioctl, {kNone, SIOCOUTQ}},
    {SYS_setsockopt, {kNone, SOL_SOCKET, SO_SNDBUF}},
    {SYS_setsockopt, {kNone, SOL_SOCKET, SO_SNDBUFFORCE}},
    {SYS_setsockopt, {kNone, SOL_SOCKET, SO_BUF_LOCK}},
    {SYS_setsockopt, {kNone, SOL_SOCKET, SO_PASSCRED}},
    {SYS_getsockname, {kNone}},
    {SYS_getpeername, {kNone}},
    {SYS_memfd_create, {0, MFD_CLOEXEC | MFD_ALLOW_SEALING}},
    {SYS_ftruncate, {kNone}},
    {SYS_fcntl, {kNone, F_ADD_SEALS}},
    {SYS_fcntl, {kNone, F_DUPFD_CLOEXEC}},
    {SYS_fstatfs, {kNone}},
    {SYS_newfstatat, {kNone}},
    {SYS_mremap, {0, 0, 0, 0}},
    {SYS_munmap, {0, 0}},
    {SYS_pidfd_open, {kNone}},
    {SYS_pidfd_getfd, {kNone}},
    {SYS_prlimit64, {kNone}},
    {SYS_getresuid, {}},
    {SYS_gettid, {}},
    {SYS_getpid, {}},
    {SYS_getppid, {}},
    {SYS_tgkill, {kNone}},
    {SYS_rt_tgsigqueueinfo, {kNone, kNone, 1}},
    {SYS_pselect6, {kNone}},
    {SYS_tkill, {kNone}},
    {SYS_sched_yield, {}},
    {SYS_ppoll, {1, 1, 1, 1}},  // nowhere
    {SYS_rt_sigprocmask, {SIG_BLOCK, 0, 0, kKernelMaskSize}},
    {SYS_rt_sigpending, {0, kKernelMaskSize}},
    {SYS_openat, {AT_FDCWD, 0}},
    {SYS_readlinkat, {AT_FDCWD, 0}},
    {SYS_getdents64, {kNone}},
    {SYS_epoll_ctl, {kNone}},
    {SYS_close_range, {1, 0}},
    {SYS_futex, {0, kNone}},
    {SYS_epoll_pwait, {kNone, 0, 1, 0}},
    {SYS_eventfd2, {0, -1}},  // flags that there are not
    {SYS_nanosleep, {1}},     // nowhere
};

// Shared with a child that has this process's memory.
std::atomic<std::size_t> tried{0};

int end_at_once(void*) noexcept {
  kernel(SYS_exit, 0);
  return 0;
}

// Such as close_apart() makes: a filter may judge by how a thread is made.
void try_thread() noexcept {
  alignas(16) static std::byte stack[4096];
  static std::atomic<std::uint32_t> runs;  // the kernel clears it
  runs.store(1, std::memory_order_relaxed);
  if (clone_without_handlers(end_at_once, stack, kThreadApart, &runs) < 0) return;
  while (runs.load(std::memory_order_acquire) != 0)
    kernel(SYS_futex, &runs, FUTEX_WAIT, 1, nullptr, nullptr, 0);
}

// A filter may end this process.
int try_calls(void*) noexcept {
  struct {
    void (*handler)(int) = SIG_DFL;
    unsigned long flags = 0;
    void (*restorer)() = nullptr;
    unsigned long mask = 0;
  } usual;
  kernel(SYS_rt_sigaction, SIGSYS, &usual, nullptr, kKernelMaskSize);
  const rlimit no_core{.rlim_cur = 1,
                       .rlim_max = 1};  // which also those do not get who collect them
  kernel(SYS_prlimit64, 0, RLIMIT_CORE, &no_core, nullptr);
  for (const auto& [number, a] : kCalls) {
    kernel(number, a[0], a[1], a[2], a[3]);
    tried.fetch_add(1, std::memory_order_relaxed);
  }
  try_thread();
  tried.fetch_add(1, std::memory_order_relaxed);
  kernel(SYS_exit_group, 0);
  return 0;
}

bool try_in_child() noexcept {
  constexpr std::size_t kStack = 16384;
  alignas(16) static std::byte stack[kStack];
  tried.store(0, std::memory_order_relaxed);  // a parent may have been in the middle of it
  const int child = clone_without_handlers(try_calls, stack, CLONE_VM | CLONE_VFORK);
  const std::size_t count = tried.load(std::memory_order_relaxed);
  // No signal tells of its end, and only those who ask for such children find it.
  if (child > 0 && count != 0) kernel(SYS_wait4, child, nullptr, __WCLONE, nullptr);
  // Where there can be no child, nobody knows.
  return child > 0 && count == std::size(kCalls) + 1;
}

}  // namespace

namespace {
enum : int { kUnknown, kNo, kYes };
constinit std::atomic<int> known{kUnknown};
constinit Lock trying;

// Who forks does not wait for a thread that tries: its child tries again.
[[gnu::constructor]] void start() noexcept {
  at_fork({[]() noexcept {}, []() noexcept {}, []() noexcept { trying.renew(); }});
}
}  // namespace

bool is_known_to_be_permitted() noexcept { return known.load(std::memory_order_acquire) == kYes; }

// By calls that the dynamic linker has made already: a filter may end who calls prctl().
bool may_be_filtered() noexcept {
  constexpr std::string_view kUnfiltered = "\nSeccomp:\t0\n";
  const long status =
      kernel(SYS_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
  if (status < 0) return true;
  char text[1024];
  std::size_t size = 0;
  bool found = false;
  for (long got = 1; got > 0 && !found;) {
    // A line may come in two parts.
    if (size == sizeof text) {
      size = kUnfiltered.size();
      std::memcpy(text, text + sizeof text - size, size);
    }
    got = kernel(SYS_read, status, text + size, sizeof text - size);
    if (got > 0) size += static_cast<std::size_t>(got);
    found = std::string_view(text, size).find(kUnfiltered) != std::string_view::npos;
  }
  kernel(SYS_close, status);
  return !found;
}

bool acceleration_is_permitted() noexcept {
  if (const int answer = known.load(std::memory_order_acquire); answer != kUnknown) [[likely]]
    return answer == kYes;
  const Guard guard(trying);
  if (!guard) return false;
  if (const int answer = known.load(std::memory_order_acquire); answer != kUnknown)
    return answer == kYes;
  const bool permitted = !may_be_filtered() || try_in_child();
  if (!permitted) {
    log(LogLevel::info, "a filter of system calls permits no acceleration");
    no_more_candidates();
  }
  known.store(permitted ? kYes : kNo, std::memory_order_release);
  return permitted;
}

}  // namespace farcall::preload
