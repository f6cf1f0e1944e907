// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_door.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <stplr_doors.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "door/attach.hpp"
#include "door/kernel_device.hpp"
#include "door/kernel_pool.hpp"
#include "door/real.hpp"
#include "door/server.hpp"
#include "process/per_process.hpp"
#include "wait/sleeper.hpp"

namespace farcall::door::kernel {
namespace {

static_assert(STPLR_DOOR_UNREF == DOOR_UNREF && STPLR_DOOR_PRIVATE == DOOR_PRIVATE &&
              STPLR_DOOR_UNREF_MULTI == DOOR_UNREF_MULTI &&
              STPLR_DOOR_REFUSE_DESC == DOOR_REFUSE_DESC &&
              STPLR_DOOR_NO_CANCEL == DOOR_NO_CANCEL &&
              STPLR_DOOR_DEPLETION_CB == DOOR_DEPLETION_CB && STPLR_DOOR_LOCAL == DOOR_LOCAL &&
              STPLR_DOOR_REVOKED == DOOR_REVOKED && STPLR_DOOR_IS_UNREF == DOOR_IS_UNREF &&
              STPLR_DOOR_DESCRIPTOR == DOOR_DESCRIPTOR);
static_assert(STPLR_PARAM_DESC_MAX == DOOR_PARAM_DESC_MAX &&
              STPLR_PARAM_DATA_MAX == DOOR_PARAM_DATA_MAX &&
              STPLR_PARAM_DATA_MIN == DOOR_PARAM_DATA_MIN);
static_assert(STPLR_DOOR_FILES_MAX == kMostDescriptors);

using CallArguments = ::stplr_door_call;
using Descriptor = ::stplr_door_desc;

std::uint64_t address(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// What a handler does that runs before the kernel has the call is to clear a word of it.
int call_once(int fd, CallArguments& arguments, bool cancellable, SignalCount since) {
  static_assert(WaitState::kOnFutex == 1 && WaitState::kAwake == 0);
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof arguments.armed);
  auto& armed = reinterpret_cast<std::atomic<std::uint32_t>&>(arguments.armed);
  arguments.flags |= STPLR_CALL_ARMED;
  armed.store(WaitState::kOnFutex, std::memory_order_relaxed);
  const Sleeper sleeper(armed);
  if (SignalCount::now() != since) armed.store(WaitState::kAwake, std::memory_order_relaxed);
  if (cancellable) return ioctl_cancellably(fd, STPLR_DOOR_CALL, &arguments);
  return ::ioctl(fd, STPLR_DOOR_CALL, &arguments) < 0 ? errno : 0;
}

// As the kernel has them. What cannot be passed stands for itself: it is refused in its turn.
std::vector<Descriptor> to_kernel(const Passed& passed) {
  std::vector<Descriptor> all;
  if (passed.count > kMostDescriptors || passed.error == EFAULT) return all;
  all.reserve(passed.count);
  for (const int fd : passed.descriptors)
    all.push_back({.fd = fd, .attributes = STPLR_DOOR_DESCRIPTOR, .id = 0});
  all.resize(passed.count, {.fd = -1, .attributes = STPLR_DOOR_DESCRIPTOR, .id = 0});
  return all;
}

// Has in `results` what has come back, be it to a thread that is cancelled as it comes.
struct TakeOver {
  const CallArguments& call;
  const Descriptor* received;
  CallResults& results;  // with room for all descriptors

  ~TakeOver() {
    for (const Descriptor& one : std::span(received, call.received_count))
      results.descriptors.emplace_back(one.fd);
    if (call.mapped_size != 0)
      results.large = Mapping(reinterpret_cast<void*>(call.mapped), call.mapped_size);
  }
};

CallArguments to_kernel(const door_arg_t* arguments) noexcept {
  CallArguments call{};
  if (arguments == nullptr) {
    call.flags = STPLR_CALL_BARE;
    return call;
  }
  call.data = address(arguments->data_ptr);
  call.size = arguments->data_size;
  call.room = address(arguments->rbuf);
  call.room_size = arguments->rsize;
  return call;
}

// What the kernel says of a door.
bool ask(int fd, ::stplr_door_info& found) noexcept {
  const int saved = errno;
  const bool is_door = may_be_door(fd) && ::ioctl(fd, STPLR_DOOR_INFO, &found) == 0;
  errno = saved;
  return is_door;
}

door_info_t shown(const ::stplr_door_info& found) noexcept {
  door_info_t info{};
  info.di_target = found.target;
  info.di_proc = found.procedure;
  info.di_data = found.cookie;
  info.di_attributes = found.attributes;
  info.di_uniquifier = found.id;
  return info;
}

bool is_local(int fd) noexcept {
  const auto found = kernel::info(fd);
  return found && (found->di_attributes & DOOR_LOCAL) != 0;
}

// Of any door of the kernel's: all that there is to know is asked of its descriptor.
class KernelAnyDoor final : public AnyDoor {
 public:
  int info(int d, door_info_t& info) override {
    const auto found = kernel::info(d);
    if (!found) return EBADF;
    info = *found;
    return 0;
  }
  int param(int d, int which, std::uint64_t& value) override {
    ::stplr_door_info found{};
    if (!ask(d, found)) return EBADF;
    value = which == DOOR_PARAM_DATA_MIN   ? found.data_min
            : which == DOOR_PARAM_DATA_MAX ? found.data_max
                                           : found.desc_max;
    return 0;
  }
  int set_param(int d, int which, std::uint64_t value) override {
    ::stplr_door_info found{};
    if (!ask(d, found) || (found.attributes & DOOR_REVOKED) != 0) return EBADF;
    ::stplr_door_set arguments{
        .which = static_cast<std::uint32_t>(which), .reserved = 0, .value = value};
    return ::ioctl(d, STPLR_DOOR_SET, &arguments) == 0 ? 0 : errno;
  }
  int revoke(int d) override {
    const auto own = to_bind(d);
    // Of a door that is revoked there may be more descriptors, each to be closed so.
    if (::ioctl(d, STPLR_DOOR_REVOKE) != 0 && (errno != EBADF || !is_local(d))) return errno;
    if (own) static_cast<KernelDoor&>(*own).revoked.store(true, std::memory_order_relaxed);
    return 0;
  }
  int attach(int d, int file, const struct stat&) override;
  std::shared_ptr<OwnDoor> to_bind(int d) override {
    const auto found = kernel::info(d);
    return found && (found->di_attributes & DOOR_LOCAL) != 0 ? own_door(found->di_uniquifier)
                                                             : nullptr;
  }
  void describe(int d, door_desc_t& descriptor) override {
    const auto found = kernel::info(d);
    if (!found) return;
    descriptor.d_attributes |= found->di_attributes;
    descriptor.d_data.d_desc.d_id = found->di_uniquifier;
  }
};

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

bool is_mounted(int file) noexcept {
  struct stat status {};
  return real::fstat(file, &status) == 0 && kernel::is_mounted(file, status);
}

// Whether this process mounts the doors that it attaches.
bool wants_mounts() noexcept {
  const char* const text = ::secure_getenv("FARCALL_DOORFS");
  const std::string_view said = text == nullptr ? "" : text;
  return !said.empty() && said != "no" && said != "0";
}

// Over the file, with its owner and permissions.
int mount_over(int d, int file, const struct stat& status) noexcept {
  std::array<char, 96> options;
  std::snprintf(options.data(), options.size(), "fd=%d,mode=%o,uid=%u,gid=%u", d,
                status.st_mode & 0777U, status.st_uid, status.st_gid);
  return ::mount("door", path_of(file).c_str(), "doorfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                 options.data()) == 0
             ? 0
             : errno;
}

int KernelAnyDoor::attach(int d, int file, const struct stat& status) {
  const auto found = kernel::info(d);
  if (!found || (found->di_attributes & DOOR_REVOKED) != 0) return EBADF;
  if (shared::is_attached(status)) return EBUSY;
  if (wants_mounts()) return mount_over(d, file, status);
  // The module wants one that is open for writing.
  const std::string path = path_of(file);
  const UniqueFd opened(
      real::openat(AT_FDCWD, path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0));
  if (!opened) return errno;
  ::stplr_door_path arguments{.fd = opened.get(), .flags = 0};
  return ::ioctl(d, STPLR_DOOR_ATTACH, &arguments) == 0 ? 0 : errno;
}

struct AnyOne {
  std::shared_ptr<AnyDoor> door = std::make_shared<KernelAnyDoor>();
};

}  // namespace

// It must have nothing to clean up: a cancellation that comes between two of its instructions could
// not be unwound through it.
[[gnu::noinline]] int ioctl_cancellably(int fd, unsigned long command, void* argument) {
  int type = 0;
  int state = 0;
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  const int result = ::ioctl(fd, command, argument);
  const int error = errno;
  ::pthread_setcancelstate(state, nullptr);
  ::pthread_setcanceltype(type, nullptr);
  return result < 0 ? error : 0;
}

// It may be anybody's file: whoever serves it is not asked, who need not answer.
bool may_be_door(int fd) noexcept {
  const int saved = errno;
  struct stat status {};
  struct statx known {};
  bool may_be = real::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known) == 0;
  if (may_be) {
    status.st_mode = known.stx_mode;
    status.st_rdev = makedev(known.stx_rdev_major, known.stx_rdev_minor);
  } else {
    // Forbidden here, perhaps.
    may_be = errno != EBADF && real::fstat(fd, &status) == 0;
  }
  // No file is without a type but those that the kernel makes for its own purposes.
  may_be = may_be && ((status.st_mode & S_IFMT) == 0 || is_mounted(fd, status));
  errno = saved;
  return may_be;
}

std::optional<door_info_t> info(int fd) noexcept {
  ::stplr_door_info found{};
  if (!ask(fd, found)) return {};
  return shown(found);
}

std::shared_ptr<AnyDoor> door_behind(int fd) {
  return info(fd) ? process::PerProcess<AnyOne>::here().door : nullptr;
}

int call(int fd, const door_arg_t* arguments, const Passed& passed, bool cancellable,
         CallResults& results, SignalCount since) {
  const std::vector<Descriptor> sent = to_kernel(passed);
  const auto received = std::make_unique_for_overwrite<Descriptor[]>(kMostDescriptors);
  CallArguments call = to_kernel(arguments);
  call.descriptors = address(sent.data());
  call.count = static_cast<std::uint32_t>(passed.count);
  call.received = address(received.get());
  call.received_room = kMostDescriptors;
  results.descriptors.reserve(kMostDescriptors);
  int error = 0;
  {
    const TakeOver taken{call, received.get(), results};
    error = call_once(fd, call, cancellable, since);
  }
  // No door, and not its server's word.
  if ((error == ENOTTY || error == EINVAL) && !info(fd)) return EBADF;
  if (error != 0) return error;
  results.data = {results.large ? results.large.data() : results.buffer.data(), call.replied};
  return 0;
}

bool may_be_mounted(const struct stat& status) noexcept {
  return S_ISREG(status.st_mode) && status.st_rdev == makedev(0, STPLR_DOORFS_MINOR);
}

// A server of FUSE may say anything of a file, but not of the file system.
bool is_mounted(int file, const struct stat& status) noexcept {
  struct statfs system {};
  return may_be_mounted(status) && ::fstatfs(file, &system) == 0 &&
         system.f_type == STPLR_DOORFS_MAGIC;
}

bool is_attached(int file) noexcept {
  if (is_mounted(file)) return true;
  ::stplr_door_path arguments{.fd = file, .flags = STPLR_DOOR_LOOK};
  return on_device(STPLR_DOOR_OPEN, &arguments) == 0;
}

UniqueFd open_attached(int file) noexcept {
  if (is_mounted(file)) return UniqueFd(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  ::stplr_door_path arguments{.fd = file, .flags = STPLR_DOOR_CLOEXEC};
  return UniqueFd(on_device(STPLR_DOOR_OPEN, &arguments));
}

int detach(int file) noexcept {
  if (is_mounted(file)) {
    // Whoever has it open keeps the door.
    return ::umount2(path_of(file).c_str(), MNT_DETACH) == 0 ? 0 : errno;
  }
  ::stplr_door_path arguments{.fd = file, .flags = 0};
  if (on_device(STPLR_DOOR_DETACH, &arguments) == 0) return 0;
  return errno == EPERM ? EPERM : EINVAL;
}

}  // namespace farcall::door::kernel

namespace farcall::door {

std::shared_ptr<AnyDoor> door_behind(int d) {
  if (auto handle = Process::here().find(d)) return handle;
  return kernel::door_behind(d);
}

}  // namespace farcall::door
