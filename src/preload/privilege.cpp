// SPDX-License-Identifier: Apache-2.0
//
// Hooks: calls by which a process gives up what it may do, or becomes somebody else. Memory that it
// shares with others, on the strength of who it was, is left before.
#include "preload/privilege.hpp"

#include <linux/nsfs.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>

#include "observe/tap.hpp"
#include "preload/directory.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/fork.hpp"
#include "preload/handback.hpp"
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

// Neither end has anything in memory that the other has not read.
bool is_drained(Side& side) noexcept {
  {
    const Guard receiving(side.receive_lock);
    if (!receiving) return false;
    if (side.in().control != nullptr) {
      const Receiver::Next::Kind next = side.receiver.next(side.in()).kind;
      if (next != Receiver::Next::nothing && next != Receiver::Next::open) return false;
    }
  }
  const Guard sending(side.send_lock);
  return sending && (side.out().control == nullptr || side.sender.unread(side.out()) == 0);
}

// The peer may still be reading. One that does not come to it in time stays known, and so does the
// library's part in it.
void forget_drained() noexcept {
  constexpr int kMostWaits = 100;
  int waits = 0;
  for (int fd = 0; fd <= highest_descriptor(); ++fd) {
    Side* const side = find_side(fd);
    if (side == nullptr) continue;
    bool drained = is_drained(*side);
    for (; !drained && waits < kMostWaits; ++waits) {
      const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
      kernel(SYS_nanosleep, &moment, nullptr);
      drained = is_drained(*side);
    }
    if (!drained) continue;
    release(forget(fd), Ending::goes_on);
    forget_registrations(fd);  // the kernel's answer is the whole truth now
  }
}

// The C library does not know it of a child whose parent has several.
bool is_only_thread() noexcept {
  if (__libc_single_threaded != 0) return true;
  int tasks = 0;
  const bool several = find_entry("/proc/self/task", [&](int, const char*) { return ++tasks > 1; });
  return tasks != 0 && !several;
}

constinit std::atomic<bool> confined{false};

using Ids = std::array<unsigned, 3>;  // real, effective, saved
constexpr unsigned kAsItIs = ~0U;

Ids own_ids(long call) noexcept {
  Ids ids{};
  kernel(call, &ids[0], &ids[1], &ids[2]);
  return ids;
}

// Before a call that sets them; many programs set what they have already.
void before_change(long call, const Ids& wanted) noexcept {
  const Ids own = own_ids(call);
  bool changes = false;
  for (std::size_t i = 0; i < own.size(); ++i)
    changes = changes || (wanted[i] != kAsItIs && wanted[i] != own[i]);
  if (changes && in_own_process()) leave_relatives();
}

// Whoever is somewhere else has other rights over what is shared, or other names for it.
constexpr unsigned long kElsewhere = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID;

// From now on children live in another PID namespace than this process, as numbers of threads say
// who holds a lock of a side. They are told to fork() last, and so come first.
constinit std::atomic<bool> children_elsewhere{false};
void note_children_elsewhere() noexcept {
  static constinit std::atomic<bool> known{false};
  children_elsewhere.store(true);
  if (known.exchange(true)) return;
  at_fork({.before =
               []() noexcept {
                 if (children_elsewhere.load()) leave_connections();
               },
           .in_parent = []() noexcept {},
           // Its own children live where it does.
           .in_child =
               []() noexcept {
                 if (children_elsewhere.exchange(false)) forget_inherited();
               }});
}

bool is_of_pids(int fd, int kind) noexcept {
  return kind != 0 ? (kind & CLONE_NEWPID) != 0
                   : kernel(SYS_ioctl, fd, NS_GET_NSTYPE) == CLONE_NEWPID;
}

}  // namespace

void leave_for_flags(unsigned long flags) noexcept {
  if (!in_own_process()) return;
  // Threads or processes whose numbers mean the same descriptors here and others there are more
  // than the table can tell.
  if ((flags & CLONE_FILES) != 0)
    leave_for_good();
  else if ((flags & kElsewhere) != 0)
    leave_connections();
}

void forget_for_flags(unsigned long flags) noexcept {
  if ((flags & CLONE_NEWPID) != 0) forget_inherited();
}

void leave_connections() noexcept {
  const int highest = highest_descriptor();
  for (int fd = 0; fd <= highest; ++fd)
    if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::passed);
  const int highest_udp = udp_highest();
  for (int fd = 0; fd <= highest_udp; ++fd)
    if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
}

void leave_relatives() noexcept {
  leave_connections();
  if (!shares_sides() || !is_only_thread()) return;
  forget_drained();
  separate_sides();
}

void leave_for_good() noexcept {
  no_more_candidates();
  leave_connections();
}

bool is_confined() noexcept { return confined.load(std::memory_order_relaxed); }

void confine() noexcept {
  if (is_confined() || !in_own_process()) return;
  leave_for_good();
  forget_drained();
  const int highest = std::max(highest_known(), udp_highest());
  for (int fd = 0; fd <= highest; ++fd) {
    if (UdpSocket* const udp = find_udp(fd); udp != nullptr && !udp_readable(*udp)) udp_forget(fd);
    forget_registrations(fd);  // the kernel's answer is the whole truth now
  }
  leave_process(Leaving::goes_on);
  if (shares_sides() && is_only_thread()) separate_sides();
  // In its end it may do nothing but what it has asked for itself.
  observe::wait_to_be_read();
  observe::end_without_being_read();
  confined.store(true, std::memory_order_relaxed);
}

}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int setuid(uid_t id) {
  before_change(SYS_getresuid, {id, id, id});
  return real::next<"setuid", int(uid_t)>()(id);
}
int setgid(gid_t id) {
  before_change(SYS_getresgid, {id, id, id});
  return real::next<"setgid", int(gid_t)>()(id);
}
int seteuid(uid_t id) {
  before_change(SYS_getresuid, {kAsItIs, id, kAsItIs});
  return real::next<"seteuid", int(uid_t)>()(id);
}
int setegid(gid_t id) {
  before_change(SYS_getresgid, {kAsItIs, id, kAsItIs});
  return real::next<"setegid", int(gid_t)>()(id);
}
int setreuid(uid_t real_id, uid_t effective) {
  before_change(SYS_getresuid, {real_id, effective, effective});
  return real::next<"setreuid", int(uid_t, uid_t)>()(real_id, effective);
}
int setregid(gid_t real_id, gid_t effective) {
  before_change(SYS_getresgid, {real_id, effective, effective});
  return real::next<"setregid", int(gid_t, gid_t)>()(real_id, effective);
}
int setresuid(uid_t real_id, uid_t effective, uid_t saved) {
  before_change(SYS_getresuid, {real_id, effective, saved});
  return real::next<"setresuid", int(uid_t, uid_t, uid_t)>()(real_id, effective, saved);
}
int setresgid(gid_t real_id, gid_t effective, gid_t saved) {
  before_change(SYS_getresgid, {real_id, effective, saved});
  return real::next<"setresgid", int(gid_t, gid_t, gid_t)>()(real_id, effective, saved);
}

int chroot(const char* path) {
  if (in_own_process()) leave_connections();
  return real::next<"chroot", int(const char*)>()(path);
}

int unshare(int flags) {
  leave_for_flags(static_cast<unsigned>(flags));
  const int result = real::next<"unshare", int(int)>()(flags);
  if (result == 0 && (flags & CLONE_NEWPID) != 0 && in_own_process()) note_children_elsewhere();
  return result;
}

int setns(int fd, int kind) {
  const bool own = in_own_process();
  if (own) leave_connections();
  const int result = real::next<"setns", int(int, int)>()(fd, kind);
  if (own && result == 0 && is_of_pids(fd, kind)) note_children_elsewhere();
  return result;
}

int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (unsigned long& argument : a) argument = va_arg(list, unsigned long);
  va_end(list);
  // Who may not read the clock register is left as well: the library reads it.
  if (option == PR_SET_SECCOMP || (option == PR_SET_TSC && a[0] == PR_TSC_SIGSEGV)) confine();
  return real::next<"prctl", int(int, ...)>()(option, a[0], a[1], a[2], a[3]);
}

}  // extern "C"
