// SPDX-License-Identifier: Apache-2.0
#include "door/paths.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "door/attach.hpp"
#include "door/kernel_device.hpp"
#include "door/kernel_door.hpp"
#include "door/real.hpp"
#include "farcall/doors.h"

namespace farcall::door {
namespace {

// Which errno describes that a path cannot be covered by this process; 0 if it can.
int refusal(int file, const struct stat& status) noexcept {
  if (!may_attach(::geteuid(), status.st_uid)) return EPERM;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  if (::faccessat(file, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) != 0 && errno == EACCES)
    return EACCES;
  return 0;
}

int attach_to(int d, const char* path) {
  if (::fcntl(d, F_GETFD) < 0) return fail(EBADF);
  const auto door = door_behind(d);
  if (!door) return fail(EINVAL);
  const UniqueFd file(real::openat(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
  struct stat status {};
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  int error = refusal(file.get(), status);
  if (error == 0 && kernel::is_attached(file.get())) error = EBUSY;
  if (error == 0) error = door->attach(d, file.get(), status);
  return error == 0 ? 0 : fail(error);
}

int detach_from(const char* path) {
  const UniqueFd file(real::openat(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
  struct stat status {};
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  if (!may_attach(::geteuid(), status.st_uid)) return fail(EPERM);
  int error = kernel::is_mounted(file.get(), status) ? EINVAL : shared::detach(status);
  if (error == EINVAL) error = kernel::detach(file.get());
  return error == 0 ? 0 : fail(error);
}

}  // namespace

int open_door(const char* path, int flags, Deadline within) {
  constexpr int kTaken = O_ACCMODE | O_CLOEXEC | O_NOFOLLOW;
  if ((flags & ~kTaken) != 0) return fail(EINVAL);
  struct stat status {};
  // What is no regular file may do something when it is opened.
  if (real::fstatat(AT_FDCWD, path, &status, (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0) !=
      0)
    return -1;
  if (!S_ISREG(status.st_mode)) return fail(EINVAL);
  const UniqueFd file(real::openat(AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0));
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  if (!S_ISREG(status.st_mode)) return fail(EINVAL);
  int refusal = 0;
  UniqueFd door = open_attached(file.get(), status, within, Sought::door, refusal);
  if (!door) return fail(refusal != 0 ? refusal : EINVAL);
  if ((flags & O_CLOEXEC) == 0) ::fcntl(door.get(), F_SETFD, 0);
  if (descriptors_are_ours()) set_known(door.get(), true);
  return door.release();
}

UniqueFd open_attached(int fd, const struct stat& status, Deadline within, Sought sought,
                       int& refusal) noexcept {
  if (kernel::is_mounted(fd, status)) return kernel::open_attached(fd);
  UniqueFd door = shared::open_attached(fd, status, within, sought, refusal);
  return door || refusal != 0 ? std::move(door) : kernel::open_attached(fd);
}

bool is_attached(int directory, const char* path, int flags, const struct stat& status) noexcept {
  if (!kernel::may_be_mounted(status)) {
    if (shared::is_attached(status)) return true;
    if (!kernel::has_device()) return false;
  }
  const NoCancel guard;
  const UniqueFd file(real::openat(directory, path, O_PATH | O_CLOEXEC | flags, 0));
  struct stat same {};
  return file && real::fstat(file.get(), &same) == 0 && same.st_ino == status.st_ino &&
         same.st_dev == status.st_dev && kernel::is_attached(file.get());
}

}  // namespace farcall::door

extern "C" {

int fattach(int d, const char* path) {
  using namespace farcall::door;
  const NoCancel guard;
  return guarded([&] { return attach_to(d, path); });
}

int fdetach(const char* path) {
  using namespace farcall::door;
  const NoCancel guard;
  return guarded([&] { return detach_from(path); });
}

int door_open(const char* path, int flags) {
  using namespace farcall::door;
  const NoCancel guard;
  return guarded([&] { return open_door(path, flags, farcall::Deadline::never()); });
}

}  // extern "C"
