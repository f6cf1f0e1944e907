// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_door.hpp"

#include <pthread.h>
#include <stplr_doors.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <memory>

#include "door/real.hpp"
#include "door/server.hpp"

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

// A cancellation point, which ioctl(2) is not. It must have nothing to clean up: a cancellation
// that comes between two of its instructions could not be unwound through it.
[[gnu::noinline]] int call_cancellably(int fd, CallArguments& arguments) {
  int type = 0;
  int state = 0;
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  const int result = ::ioctl(fd, STPLR_DOOR_CALL, &arguments);
  const int error = errno;
  ::pthread_setcancelstate(state, nullptr);
  ::pthread_setcanceltype(type, nullptr);
  return result < 0 ? error : 0;
}

int call_once(int fd, CallArguments& arguments, bool cancellable) {
  if (cancellable) return call_cancellably(fd, arguments);
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

}  // namespace

bool may_be_door(int fd) noexcept {
  const int saved = errno;
  struct stat status {};
  // No file is without a type but those that the kernel makes for its own purposes.
  const bool may_be = real::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
  errno = saved;
  return may_be;
}

std::optional<Info> info(int fd) noexcept {
  const int saved = errno;
  ::stplr_door_info found{};
  const bool is_door = may_be_door(fd) && ::ioctl(fd, STPLR_DOOR_INFO, &found) == 0;
  errno = saved;
  if (!is_door) return {};
  Info all{.shown = {},
           .data_min = found.data_min,
           .data_max = found.data_max,
           .desc_max = found.desc_max};
  all.shown.di_target = found.target;
  all.shown.di_proc = found.procedure;
  all.shown.di_data = found.cookie;
  all.shown.di_attributes = found.attributes;
  all.shown.di_uniquifier = found.id;
  return all;
}

int call(int fd, const door_arg_t* arguments, const Passed& passed, bool cancellable,
         CallResults& results) {
  const std::vector<Descriptor> sent = to_kernel(passed);
  const auto received = std::make_unique_for_overwrite<Descriptor[]>(kMostDescriptors);
  CallArguments call = to_kernel(arguments);
  call.descriptors = address(sent.data());
  call.count = static_cast<std::uint32_t>(passed.count);
  call.received = address(received.get());
  call.received_room = kMostDescriptors;
  results.descriptors.reserve(kMostDescriptors);
  const int error = call_once(fd, call, cancellable);
  if (error != 0) return error == ENOTTY ? EBADF : error;
  for (std::uint32_t i = 0; i < call.received_count; ++i)
    results.descriptors.emplace_back(received[i].fd);
  if (call.mapped_size != 0)
    results.large = Mapping(reinterpret_cast<void*>(call.mapped), call.mapped_size);  // NOLINT
  results.data = {results.large ? results.large.data() : results.buffer.data(), call.replied};
  return 0;
}

int set_param(int fd, int which, std::uint64_t value) noexcept {
  ::stplr_door_set arguments{
      .which = static_cast<std::uint32_t>(which), .reserved = 0, .value = value};
  return ::ioctl(fd, STPLR_DOOR_SET, &arguments) == 0 ? 0 : errno;
}

int revoke(int fd) noexcept { return ::ioctl(fd, STPLR_DOOR_REVOKE) == 0 ? 0 : errno; }

}  // namespace farcall::door::kernel
