// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions on descriptors and paths, as programs with doors see them: open()
// yields a door where one is attached, stat() tells that it is one, and what is closed or
// duplicated is known to be.
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "door/attach.hpp"
#include "door/kernel_door.hpp"
#include "door/next.hpp"
#include "door/paths.hpp"
#include "door/real.hpp"

// These are the program's own system calls: what they do is theirs, errno included.
#pragma GCC diagnostic ignored "-Wnonnull-compare"

namespace farcall::door {
namespace {

constexpr mode_t kDoorType = 0xD000;

bool may_be_attached(const struct stat& status) noexcept { return S_ISREG(status.st_mode); }

enum class Opened : std::uint8_t { file, door, refused };

// `fd` was opened just now. Puts a door in its place where one is attached. `refused`: one is,
// whose server lets nobody in, and `refusal` says why; what it covers is not what the program has
// asked for.
Opened exchange(int fd, int flags, Sought sought, int& refusal) noexcept {
  const int saved = errno;
  Opened opened = Opened::file;
  struct stat status {};
  if (real::fstat(fd, &status) == 0 && may_be_attached(status)) {
    const NoCancel guard;
    if (kernel::is_mounted(fd, status)) {
      errno = saved;
      return Opened::door;
    }
    UniqueFd door = open_attached(fd, status, Deadline::never(), sought, refusal);
    if (refusal != 0) {
      opened = Opened::refused;
    } else if (door && ::dup3(door.get(), fd, (flags & O_CLOEXEC) != 0 ? O_CLOEXEC : 0) >= 0) {
      // The program gets the lowest number, as it would have.
      opened = Opened::door;
      if (descriptors_are_ours()) set_known(fd, true);
    }
  }
  errno = saved;
  return opened;
}

int refuse(int fd, int refusal) noexcept {
  real::close(fd);
  errno = refusal;
  return -1;
}

// Whether open() of this path would give a door.
bool is_covered(int directory, const char* path, int flags) noexcept {
  const int saved = errno;
  struct stat status {};
  const int follow = (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  const bool covered = real::fstatat(directory, path, &status, follow) == 0 &&
                       may_be_attached(status) &&
                       is_attached(directory, path, flags & O_NOFOLLOW, status);
  errno = saved;
  return covered;
}

// What a door covers is not to be cut off. Nor can it be opened twice, with and without the flag:
// the mode of a new file may not permit it, locks would be lost, and the reader of a FIFO see its
// end. So it is looked at before it is opened.
int open_truncating(int directory, const char* path, int flags, mode_t mode) {
  if (!is_covered(directory, path, flags)) return real::openat(directory, path, flags, mode);
  const int fd = real::openat(directory, path, flags & ~O_TRUNC, mode);
  if (fd < 0) return fd;
  int refusal = 0;
  const Opened opened = exchange(fd, flags, Sought::door, refusal);
  if (opened == Opened::refused) return refuse(fd, refusal);
  if (opened == Opened::door) return fd;
  // No door's any more.
  const int saved = errno;
  if (::ftruncate(fd, 0) != 0) errno = saved;
  return fd;
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  constexpr int kNoFile = O_PATH | O_DIRECTORY;
  if ((flags & kNoFile) != 0 || (flags & O_TMPFILE) == O_TMPFILE)
    return real::openat(directory, path, flags, mode);
  if ((flags & O_TRUNC) != 0) return open_truncating(directory, path, flags, mode);
  const int fd = real::openat(directory, path, flags, mode);
  int refusal = 0;
  if (fd >= 0 && exchange(fd, flags, Sought::file_or_door, refusal) == Opened::refused)
    return refuse(fd, refusal);
  return fd;
}

mode_t mode_of(int flags, va_list& rest) noexcept {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

constexpr mode_t kPermissions = 07777;

// `status` is that of `fd`: as a door's, where it is one.
void see_door(int fd, struct stat& status) noexcept {
  const int saved = errno;
  if (S_ISSOCK(status.st_mode)) {
    if (const auto name = read_name(fd))
      status.st_mode = kDoorType | (name->mode.value_or(status.st_mode) & kPermissions);
  } else if (((status.st_mode & S_IFMT) == 0 || status.st_rdev != 0) && kernel::info(fd)) {
    status.st_mode = kDoorType | (status.st_mode & kPermissions);
  }
  errno = saved;
}

// `status` is what the kernel says of a path: as a door's, where one is attached there.
void see_attached(int directory, const char* path, int flags, struct stat& status) noexcept {
  const bool of_descriptor = (flags & AT_EMPTY_PATH) != 0 && (path == nullptr || path[0] == 0);
  if (of_descriptor) see_door(directory, status);
  if (!may_be_attached(status)) return;
  const int saved = errno;
  const bool attached =
      of_descriptor ? (!kernel::may_be_mounted(status) && shared::is_attached(status)) ||
                          kernel::is_attached(directory)
                    : is_attached(directory, path,
                                  (flags & AT_SYMLINK_NOFOLLOW) != 0 ? O_NOFOLLOW : 0, status);
  if (attached) status.st_mode = kDoorType | (status.st_mode & kPermissions);
  errno = saved;
}

int stat_at(int directory, const char* path, struct stat* status, int flags) {
  const int result = real::fstatat(directory, path, status, flags);
  if (result == 0) see_attached(directory, path, flags, *status);
  return result;
}

// Asks for what it takes to tell, whatever the program wants to know.
int statx_at(int directory, const char* path, int flags, unsigned mask, struct statx* status) {
  constexpr unsigned kNeeded = STATX_TYPE | STATX_MODE | STATX_INO | STATX_UID;
  const int result = real::statx(directory, path, flags, mask | kNeeded, status);
  if (result != 0) return result;
  struct stat seen {};
  seen.st_mode = status->stx_mode;
  seen.st_uid = status->stx_uid;
  seen.st_ino = status->stx_ino;
  seen.st_dev = makedev(status->stx_dev_major, status->stx_dev_minor);
  seen.st_rdev = makedev(status->stx_rdev_major, status->stx_rdev_minor);
  see_attached(directory, path, flags, seen);
  status->stx_mode = static_cast<std::uint16_t>(seen.st_mode);
  return 0;
}

int stat_fd(int fd, struct stat* status) {
  const int result = real::fstat(fd, status);
  if (result == 0) see_door(fd, *status);
  return result;
}

// `copy` is a new descriptor of what `fd` refers to.
int copied(int fd, int copy) noexcept {
  if (copy < 0 || !known(fd) || !descriptors_are_ours()) return copy;
  const int saved = errno;
  {
    const NoCancel guard;
    const HeldSignals held;
    try {
      Process* const process = Process::made();
      // Somebody may have closed it behind our back.
      if (process != nullptr && known(copy))
        after_close({.handle = process->forget(copy), .door = nullptr});
      const auto door = process != nullptr ? process->copied(copy) : nullptr;
      set_known(copy, door || read_name(copy));  // `fd` may have been a door's once
      if (door) door->referenced();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): found when it is called
    }
  }
  errno = saved;
  return copy;
}

// Forgets all doors from `first` to `last`, which are about to be closed.
template <class Close>
int close_many(unsigned first, unsigned last, Close close) {
  if (!descriptors_are_ours()) return close();
  std::vector<Closed> closed;
  if (Process* const process = Process::made()) {
    const NoCancel guard;
    const HeldSignals held;
    constexpr unsigned kMost = 1 << 20;
    for (unsigned fd = first; fd <= last && fd < kMost; ++fd) {
      if (!known(static_cast<int>(fd))) continue;
      try {
        closed.push_back(process->closes(static_cast<int>(fd)));
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): not told, then
      }
    }
  }
  const int result = close();
  const int saved = errno;
  // As in closing().
  if (!closed.empty()) epoch.fetch_add(1, std::memory_order_acq_rel);
  const NoCancel guard;
  const HeldSignals held;
  for (const Closed& one : closed) after_close(one);
  closed.clear();
  errno = saved;
  return result;
}

// All but the library's own, which the program does not know of.
template <class Function>
int close_others(Function* function, unsigned first, unsigned last, int flags) noexcept {
  constexpr unsigned kMost = 1 << 20;
  unsigned from = first;
  for (unsigned fd = first; fd <= last && fd < kMost; ++fd) {
    if (!process::is_kept(static_cast<int>(fd))) continue;
    if (fd > from && function(from, fd - 1, flags) != 0) return -1;
    from = fd + 1;
  }
  return from <= last ? function(from, last, flags) : 0;
}

// A number that the program has chosen; a vfork child's is its own.
int taken_over(int fd) noexcept {
  if (process::is_marked(fd) && descriptors_are_ours()) process::give_up_number(fd);
  return fd;
}

}  // namespace
}  // namespace farcall::door

using namespace farcall::door;  // what follows is C's

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_at(directory, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat64(int directory, const char* path, int flags, ...) __attribute__((alias("openat")));
int creat64(const char* path, mode_t mode) __attribute__((alias("creat")));
// What _FORTIFY_SOURCE makes of an open() without a mode.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the C library's names
int __open_2(const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int directory, const char* path, int flags) {
  return open_at(directory, path, flags, 0);
}
int __openat64_2(int directory, const char* path, int flags) {
  return open_at(directory, path, flags, 0);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

int close(int fd) {
  if (farcall::process::is_kept(fd)) [[unlikely]] {
    errno = EBADF;  // as far as the program knows
    return -1;
  }
  return closing(fd, [fd] { return real::close(fd); });
}
int farcall_own_close(int fd) __attribute__((alias("close"), visibility("hidden")));
int close_range(unsigned first, unsigned last, int flags) noexcept {
  auto* const function = real::next<"close_range", int(unsigned, unsigned, int)>();
  constexpr unsigned kCloses = CLOSE_RANGE_UNSHARE;
  if (first > last || (static_cast<unsigned>(flags) & ~kCloses) != 0)
    return function(first, last, flags);
  return close_many(first, last, [=] { return close_others(function, first, last, flags); });
}
void closefrom(int first) noexcept {
  const unsigned lowest = first < 0 ? 0 : static_cast<unsigned>(first);
  if (close_range(lowest, ~0U, 0) == 0) return;
  real::next<"closefrom", void(int)>()(first);
}

int dup(int fd) noexcept {
  auto* const function = real::next<"dup", int(int)>();
  return copied(fd, function(fd));
}
int dup2(int fd, int copy) noexcept {
  auto* const function = real::next<"dup2", int(int, int)>();
  if (fd == copy) return function(fd, copy);
  return copied(fd, closing(copy, [=] { return taken_over(function(fd, copy)); }));
}
int dup3(int fd, int copy, int flags) noexcept {
  auto* const function = real::next<"dup3", int(int, int, int)>();
  return copied(fd, closing(copy, [=] { return taken_over(function(fd, copy, flags)); }));
}
int fcntl(int fd, int command, ...) {
  auto* const function = real::next<"fcntl", int(int, int, ...)>();
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  const int result = function(fd, command, argument);
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}
int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

int isastream(int fd) { return fcntl(fd, F_GETFD) < 0 ? -1 : 0; }

int fstat(int fd, struct stat* status) noexcept { return stat_fd(fd, status); }
int stat(const char* path, struct stat* status) noexcept {
  return stat_at(AT_FDCWD, path, status, 0);
}
int lstat(const char* path, struct stat* status) noexcept {
  return stat_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int fstatat(int directory, const char* path, struct stat* status, int flags) noexcept {
  return stat_at(directory, path, status, flags);
}
int statx(int directory, const char* path, int flags, unsigned mask,
          struct statx* status) noexcept {
  return statx_at(directory, path, flags, mask, status);
}
#if defined(__LP64__)
// The same structure there.
int fstat64(int fd, struct stat64* status) noexcept {
  return stat_fd(fd, reinterpret_cast<struct stat*>(status));
}
int stat64(const char* path, struct stat64* status) noexcept {
  return stat_at(AT_FDCWD, path, reinterpret_cast<struct stat*>(status), 0);
}
int lstat64(const char* path, struct stat64* status) noexcept {
  return stat_at(AT_FDCWD, path, reinterpret_cast<struct stat*>(status), AT_SYMLINK_NOFOLLOW);
}
int fstatat64(int directory, const char* path, struct stat64* status, int flags) noexcept {
  return stat_at(directory, path, reinterpret_cast<struct stat*>(status), flags);
}
#endif

}  // extern "C"
