// SPDX-License-Identifier: Apache-2.0
//
// Hooks: syscall(2).
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "preload/address.hpp"
#include "preload/handback.hpp"
#include "preload/hooked_call.hpp"
#include "preload/privilege.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/uring.hpp"
#include "preload/wait_by_number.hpp"

namespace farcall::preload {
namespace {

// What the library makes of a call: with its six arguments, with errno.
using Arguments = const long (&)[6];
using Make = long(long number, Arguments a);
struct Row {
  long number;
  Make* make;
};

long by_kernel(long number, Arguments a) noexcept {
  return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
long left_to_kernel(long number, Arguments a) noexcept { return with_errno(by_kernel(number, a)); }

template <class T>
T argument(long word) noexcept {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(word);
  else
    return static_cast<T>(word);
}
template <class Result, class... Types, std::size_t... kPlaces>
long pass(Result (*hook)(Types...), Arguments a, std::index_sequence<kPlaces...> /*places*/) {
  return hook(argument<Types>(a[kPlaces])...);
}
template <class Result, class... Types>
long pass(Result (*hook)(Types...), Arguments a) {
  return pass(hook, a, std::index_sequence_for<Types...>{});
}
// By the hook of that name, whose arguments are those of the call.
template <auto kHook>
long by(long /*number*/, Arguments a) {
  return pass(kHook, a);
}

// The offset comes in two words, of which these machines use one.
template <auto kHook>
long at_offset(long /*number*/, Arguments a) {
  return kHook(argument<int>(a[0]), argument<const iovec*>(a[1]), argument<int>(a[2]), a[3],
               argument<int>(a[5]));
}

constexpr Row kThatMoveBytes[] = {
    {SYS_read, by<&read>},
    {SYS_write, by<&write>},
    {SYS_readv, by<&readv>},
    {SYS_writev, by<&writev>},
    {SYS_preadv2, at_offset<&preadv2>},
    {SYS_pwritev2, at_offset<&pwritev2>},
    {SYS_recvfrom, by<&recvfrom>},
    {SYS_sendto, by<&sendto>},
    {SYS_recvmsg, by<&recvmsg>},
    {SYS_sendmsg, by<&sendmsg>},
    {SYS_recvmmsg, by<&recvmmsg>},
    {SYS_sendmmsg, by<&sendmmsg>},
    {SYS_sendfile, by<&sendfile>},
    {SYS_splice, by<&splice>},
};

// Requests of the kernel's own asynchronous calls, which it carries out.
void leave_to_aio(long count, long requests) noexcept {
  const auto* const all = reinterpret_cast<const iocb* const*>(requests);
  for (long i = 0; i < count && !is_no_address(all); ++i)
    if (!is_no_address(all[i])) leave_socket(static_cast<int>(all[i]->aio_fildes));
}

long submit(long number, Arguments a) {
  leave_to_aio(a[1], a[2]);
  return left_to_kernel(number, a);
}

// A socket in a map of a BPF program, which joins it to another in the kernel. The value of such a
// map begins with the descriptor, in 4 or 8 bytes.
long change_map(long number, Arguments a) {
  const auto* const asked = argument<const bpf_attr*>(a[1]);
  if (a[0] == BPF_MAP_UPDATE_ELEM && !is_no_address(asked)) {
    const auto* const value = reinterpret_cast<const void*>(asked->value);
    std::int32_t fd = -1;
    // Shorter ones may end where the memory does.
    constexpr std::uintptr_t kPage = 4096;
    if (!is_no_address(value) && asked->value % kPage <= kPage - sizeof fd)
      std::memcpy(&fd, value, sizeof fd);
    leave_socket(fd);
  }
  return left_to_kernel(number, a);
}

constexpr Row kThatSubmit[] = {
    {SYS_bpf, change_map},
    {SYS_io_uring_setup, by<&set_up_ring>},
    {SYS_io_uring_enter, [](long /*number*/, Arguments a) { return enter_ring(a); }},
    {SYS_io_uring_register, [](long /*number*/, Arguments a) { return register_with_ring(a); }},
    {SYS_io_submit, submit},
};

constexpr Row kOfSockets[] = {
    {SYS_socket, by<&socket>},         {SYS_socketpair, by<&socketpair>},
    {SYS_accept, by<&accept>},         {SYS_accept4, by<&accept4>},
    {SYS_bind, by<&::bind>},           {SYS_connect, by<&connect>},
    {SYS_shutdown, by<&shutdown>},     {SYS_getsockopt, by<&getsockopt>},
    {SYS_setsockopt, by<&setsockopt>},
};

constexpr Row kOfDescriptors[] = {
    {SYS_close, by<&close>},
    {SYS_close_range, by<&close_range>},
    {SYS_dup, by<&dup>},
#ifdef SYS_dup2
    {SYS_dup2, by<&dup2>},
#endif
    {SYS_dup3, by<&dup3>},
    {SYS_fcntl,
     [](long /*number*/, Arguments a) -> long {
       return fcntl(argument<int>(a[0]), argument<int>(a[1]), a[2]);
     }},
    {SYS_ioctl,
     [](long /*number*/, Arguments a) -> long {
       return ioctl(argument<int>(a[0]), argument<unsigned long>(a[1]), a[2]);
     }},
};

constexpr Row kThatWait[] = {
#ifdef SYS_epoll_create
    {SYS_epoll_create, by<&epoll_create>},
#endif
    {SYS_epoll_create1, by<&epoll_create1>},
    {SYS_epoll_ctl, by<&epoll_ctl>},
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, [](long number, Arguments a) { return epoll_wait_by_number(number, a); }},
#endif
    {SYS_epoll_pwait, [](long number, Arguments a) { return epoll_wait_by_number(number, a); }},
#ifdef SYS_epoll_pwait2
    {SYS_epoll_pwait2, [](long number, Arguments a) { return epoll_wait_by_number(number, a); }},
#endif
#ifdef SYS_poll
    {SYS_poll, [](long number, Arguments a) { return poll_by_number(number, a); }},
#endif
    {SYS_ppoll, [](long number, Arguments a) { return poll_by_number(number, a); }},
#ifdef SYS_select
    {SYS_select, [](long number, Arguments a) { return select_by_number(number, a); }},
#endif
    {SYS_pselect6, [](long number, Arguments a) { return select_by_number(number, a); }},
};

long execute_by_kernel(long number, Arguments a) {
  return execute([&] { return static_cast<int>(left_to_kernel(number, a)); });
}

long end_process(long number, Arguments a) {
  leave_and_be_read(Leaving::ends);
  return left_to_kernel(number, a);
}

long clone_by_kernel(long number, Arguments a) {
  const auto flags = static_cast<unsigned long>(a[0]);
  leave_for_flags(flags_to_leave_for(flags));
  if ((flags & kSharesMemory) == 0)
    return with_errno(clone_by(flags, [&] { return by_kernel(number, a); }));
  return left_to_kernel(number, a);
}

long clone3_by_kernel(long number, Arguments a) {
  const auto* const asked = argument<const clone_args*>(a[0]);
  if (is_no_address(asked)) return left_to_kernel(number, a);
  leave_for_flags(flags_to_leave_for(asked->flags));
  if ((asked->flags & kSharesMemory) == 0 && asked->stack == 0)
    return with_errno(clone_by(asked->flags, [&] { return by_kernel(number, a); }));
  return left_to_kernel(number, a);
}

constexpr Row kOfProcesses[] = {
    {SYS_execve, execute_by_kernel},
    {SYS_execveat, execute_by_kernel},
    {SYS_exit_group, end_process},
#ifdef SYS_fork
    {SYS_fork,
     [](long number, Arguments a) {
       return with_errno(fork_by([&] { return by_kernel(number, a); }));
     }},
#endif
    {SYS_clone, clone_by_kernel},
    {SYS_clone3, clone3_by_kernel},
};

long confine_by_seccomp(long number, Arguments a) {
  if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER) confine();
  return left_to_kernel(number, a);
}

long confine_by_prctl(long number, Arguments a) {
  if (a[0] == PR_SET_SECCOMP || (a[0] == PR_SET_TSC && a[1] == PR_TSC_SIGSEGV)) confine();
  return left_to_kernel(number, a);
}

long change_rights(long number, Arguments a) {
  if (in_own_process()) leave_relatives();
  return left_to_kernel(number, a);
}

constexpr Row kOfRights[] = {
    {SYS_seccomp, confine_by_seccomp}, {SYS_prctl, confine_by_prctl},
    {SYS_setuid, change_rights},       {SYS_setgid, change_rights},
    {SYS_setreuid, change_rights},     {SYS_setregid, change_rights},
    {SYS_setresuid, change_rights},    {SYS_setresgid, change_rights},
    {SYS_chroot, change_rights},       {SYS_setns, by<&setns>},
    {SYS_unshare, by<&unshare>},
};

// By number; of most calls the library has nothing to say.
constexpr std::size_t kNumbers = 512;
constexpr auto kCalls = [] {
  std::array<Make*, kNumbers> calls{};
  for (const std::span<const Row> rows :
       {std::span<const Row>(kThatMoveBytes), std::span<const Row>(kThatSubmit),
        std::span<const Row>(kOfSockets), std::span<const Row>(kOfDescriptors),
        std::span<const Row>(kThatWait), std::span<const Row>(kOfProcesses),
        std::span<const Row>(kOfRights)})
    for (const Row& row : rows) calls[static_cast<std::size_t>(row.number)] = row.make;
  return calls;
}();

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

// Calls of the kernel by number, where the library has a say in what they do.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto place = static_cast<std::size_t>(number);
  Make* const make = place < kCalls.size() ? kCalls[place] : nullptr;
  return make != nullptr ? make(number, a) : left_to_kernel(number, a);
}

}  // extern "C"
