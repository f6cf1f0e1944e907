// SPDX-License-Identifier: Apache-2.0
#include "preload/proof.hpp"

#include <linux/memfd.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "preload/close_apart.hpp"
#include "preload/datagram_ring.hpp"
#include "preload/diag.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"
#include "preload/udp/udp.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace farcall::preload {
namespace {

constexpr std::uint64_t kLeastMostRingBytes = std::uint64_t{1} << 20;
constexpr long kTmpfs = 0x01021994;  // what a memfd is, unless of huge pages

// The user whom the kernel names where it has no name: whoever is not known in this namespace.
uid_t overflow_uid() noexcept {
  static constinit std::atomic<uid_t> known{0};
  uid_t uid = known.load(std::memory_order_relaxed);
  if (uid != 0) return uid;
  uid = 65534;
  const long fd =
      kernel(SYS_openat, AT_FDCWD, "/proc/sys/kernel/overflowuid", O_RDONLY | O_CLOEXEC, 0);
  char text[16] = {};
  const long size = fd >= 0 ? kernel(SYS_read, fd, static_cast<char*>(text), sizeof text) : 0;
  if (fd >= 0) kernel(SYS_close, fd);
  uid_t number = 0;
  for (long i = 0; i < size && text[i] >= '0' && text[i] <= '9'; ++i)
    number = number * 10 + static_cast<uid_t>(text[i] - '0');
  if (number != 0) uid = number;
  known.store(uid, std::memory_order_relaxed);
  return uid;
}

// Without the signal that ends who makes a larger file than it may (RLIMIT_FSIZE).
long set_size(long fd, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kSignal = signal_bit(SIGXFSZ);
  std::uint64_t pending = 0;
  std::uint64_t before = 0;
  kernel(SYS_rt_sigpending, &pending, kKernelMaskSize);
  kernel(SYS_rt_sigprocmask, SIG_BLOCK, &kSignal, &before, kKernelMaskSize);
  const long result = kernel(SYS_ftruncate, fd, bytes);
  const timespec at_once{};
  if (result == -EFBIG && (pending & kSignal) == 0)
    kernel(SYS_rt_sigtimedwait, &kSignal, nullptr, &at_once, kKernelMaskSize);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
  return result;
}

// Nobody equals nobody, not even itself.
bool is_nobody(uid_t uid) noexcept { return uid == 65534 || uid == overflow_uid(); }

}  // namespace

std::uint64_t cookie_of(int fd) noexcept {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

bool may_share_with(uid_t uid) noexcept {
  if (is_nobody(uid)) return false;
  const auto own = static_cast<uid_t>(kernel(SYS_geteuid));
  switch (settings().uids) {
    case UidPolicy::same_user: return uid == own;
    case UidPolicy::same_user_or_root: return uid == own || uid == 0 || own == 0;
    case UidPolicy::anybody: return true;
  }
  return false;
}

bool peer_may_share(int connection, ucred& peer) noexcept {
  socklen_t size = sizeof peer;
  return kernel(SYS_getsockopt, connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         may_share_with(peer.uid);
}

bool is_reached(const Endpoint& from, const Endpoint& to, std::uint64_t cookie) noexcept {
  FoundSocket found{};
  return find_receiver(from, to, found) == 0 && found.cookie == cookie;
}

int make_witness(int fd) noexcept {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  return static_cast<int>(kernel(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
}

bool is_witness_of(int witness, std::uint32_t inode) noexcept {
  if (witness < 0 || inode == 0) return false;
  // Its link tells without asking the file, which may be of a kind that lets us wait. No other file
  // can have such a link: those with names have a slash in front.
  char path[48];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", witness);
  char wanted[32];
  const auto length = static_cast<long>(std::snprintf(wanted, sizeof wanted, "socket:[%u]", inode));
  char link[32];
  return kernel(SYS_readlinkat, AT_FDCWD, path, link, sizeof link) == length &&
         std::memcmp(link, wanted, static_cast<std::size_t>(length)) == 0;
}

bool is_sound_ring(std::uint64_t bytes) noexcept {
  return bytes >= 4096 && (bytes & (bytes - 1)) == 0 &&
         bytes <= std::max<std::uint64_t>(kLeastMostRingBytes, 4 * settings().ring_bytes);
}

int create_memory(const char* name, std::uint64_t bytes) noexcept {
  long fd = kernel(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
  if (fd == -EINVAL) fd = kernel(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  // Not allocated now: most rings never fill, and the kernel sets no limit to such files.
  if (set_size(fd, bytes) < 0 || kernel(SYS_fcntl, fd, F_ADD_SEALS, kMemorySeals) < 0) {
    kernel(SYS_close, fd);
    return -1;
  }
  return static_cast<int>(fd);
}

bool is_sound_memory(int memory, std::uint64_t bytes) noexcept {
  struct stat status {};
  struct statfs system {};
  const long seals = kernel(SYS_fcntl, memory, F_GET_SEALS, 0);
  return seals >= 0 && (seals & kMemorySeals) == kMemorySeals &&
         kernel(SYS_fstatfs, memory, &system) == 0 && system.f_type == kTmpfs &&
         kernel(SYS_newfstatat, memory, "", &status, AT_EMPTY_PATH) == 0 &&
         static_cast<std::uint64_t>(status.st_size) == bytes;
}

bool send_with(int connection, void* words, std::size_t size, const int* fds,
               std::size_t count) noexcept {
  iovec part{.iov_base = words, .iov_len = size};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds, count * sizeof(int));
  }
  return kernel(SYS_sendmsg, connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<long>(size);
}

Passed::~Passed() {
  for (const int fd : fds) {
    if (fd < 0) continue;
    if (is_harmless)
      kernel(SYS_close, fd);
    else
      close_apart(fd);
  }
}

long receive_with(int connection, void* words, std::size_t size, Passed& passed) noexcept {
  iovec part{.iov_base = words, .iov_len = size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed.fds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long got =
      kernel(SYS_recvmsg, connection, &message, MSG_PEEK | MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
    std::memcpy(passed.fds, CMSG_DATA(head),
                std::min<std::size_t>(head->cmsg_len - CMSG_LEN(0), sizeof passed.fds));
  // Of more than these nobody knows what they are.
  return got == static_cast<long>(size) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0
             ? got
             : -EPROTO;
}

void take_message(int connection, Passed& passed) noexcept {
  passed.is_harmless = true;
  kernel(SYS_recvfrom, connection, nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

bool is_socket_of(int fd, const Endpoint& address, std::uint64_t cookie) noexcept {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  Endpoint own{};
  return fd >= 0 && kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_UDP && cookie != 0 && cookie_of(fd) == cookie &&
         address_of(SYS_getsockname, fd, own) && own.port == address.port &&
         (own.address == address.address || is_wildcard(own));
}

}  // namespace farcall::preload
