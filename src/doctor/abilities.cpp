// SPDX-License-Identifier: Apache-2.0
#include "doctor/abilities.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/inet_diag.h>
#include <linux/membarrier.h>
#include <linux/memfd.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace farcall::doctor {
namespace {

// Each returns 0 or errno. They run in a forked child, and so make system calls alone.
int try_membarrier() noexcept {
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0) return errno;
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 ? 0 : errno;
}

int try_futex_waitv() noexcept {
  std::uint32_t word = 1;
  futex_waitv wait{};
  wait.val = 0;  // it is not: EAGAIN, at once
  wait.uaddr = reinterpret_cast<std::uintptr_t>(&word);
  wait.flags = FUTEX_32;
  if (::syscall(SYS_futex_waitv, &wait, 1, 0, nullptr, CLOCK_MONOTONIC) >= 0) return 0;
  return errno == EAGAIN ? 0 : errno;
}

int try_futex() noexcept {
  std::uint32_t word = 1;
  if (::syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0) == 0) return 0;
  return errno == EAGAIN ? 0 : errno;
}

int try_memory_file() noexcept {
  long fd = ::syscall(SYS_memfd_create, "farcall-doctor",
                      MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL)
    fd = ::syscall(SYS_memfd_create, "farcall-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno;
  const auto file = static_cast<int>(fd);
  const FileSizeGuard guard;
  if (::ftruncate(file, 4096) != 0) return errno;
  return ::fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0 ? 0 : errno;
}

int try_pidfd() noexcept { return ::syscall(SYS_pidfd_open, ::getpid(), 0) >= 0 ? 0 : errno; }

int try_process_vm() noexcept {
  int from = 1;
  int to = 0;
  const iovec local{.iov_base = &to, .iov_len = sizeof to};
  const iovec remote{.iov_base = &from, .iov_len = sizeof from};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == sizeof to ? 0 : errno;
}

int try_unix_socket() noexcept {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;  // and no name: the kernel chooses an abstract one
  return ::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)) == 0 ? 0 : errno;
}

// Asks for all sockets in a state that does not exist: the list is empty, or cannot be had. (Of one
// socket the answer ENOENT would have two meanings: it is not there, or the module is not.)
template <class Request>
int ask_diag(const Request& request) noexcept {
  struct {
    nlmsghdr header;
    Request request;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.request = request;
  const int fd = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (fd < 0) return errno;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  if (::sendto(fd, &question, sizeof question, 0, reinterpret_cast<sockaddr*>(&address),
               sizeof address) < 0)
    return errno;
  alignas(nlmsghdr) char answer[16384];
  const ssize_t got = ::recv(fd, answer, sizeof answer, MSG_DONTWAIT);
  if (got < 0) return errno;
  nlmsghdr header{};
  if (static_cast<std::size_t>(got) < sizeof header) return EPROTO;
  std::memcpy(&header, answer, sizeof header);
  // Both begin with it: what ends a list, and an error.
  std::int32_t result = 0;
  const bool over = header.nlmsg_type == NLMSG_ERROR || header.nlmsg_type == NLMSG_DONE;
  if (over && static_cast<std::size_t>(got) >= NLMSG_HDRLEN + sizeof result)
    std::memcpy(&result, static_cast<char*>(answer) + NLMSG_HDRLEN, sizeof result);
  return -result;
}

int try_inet_diag(std::uint8_t protocol) noexcept {
  inet_diag_req_v2 request{};
  request.sdiag_family = AF_INET;
  request.sdiag_protocol = protocol;
  request.idiag_states = 1U << 30;  // of which there are none
  return ask_diag(request);
}
int try_tcp_diag() noexcept { return try_inet_diag(IPPROTO_TCP); }
int try_udp_diag() noexcept { return try_inet_diag(IPPROTO_UDP); }
int try_unix_diag() noexcept {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = 1U << 30;
  return ask_diag(request);
}

struct Trial {
  Ability ability;
  int (*run)() noexcept;
};

constexpr Trial kTrials[] = {
    {{"no-memory-files", Severity::fault, "memfd_create",
      "there is no memory that two processes could share, so nothing is accelerated", ""},
     try_memory_file},
    {{"no-futex", Severity::fault, "futex", "nobody can sleep until a message comes", ""},
     try_futex},
    {{"no-unix-sockets", Severity::fault, "socket(AF_UNIX)", "two processes cannot find each other",
      ""},
     try_unix_socket},
    {{"no-tcp-diag", Severity::fault, "sock_diag for TCP",
      "no TCP connection is accelerated, for the kernel does not tell who holds its other end",
      "`modprobe tcp_diag`"},
     try_tcp_diag},
    {{"no-udp-diag", Severity::fault, "sock_diag for UDP",
      "UDP is not accelerated, for the kernel does not tell who receives it",
      "`modprobe udp_diag`"},
     try_udp_diag},
    {{"no-unix-diag", Severity::fault, "sock_diag for unix sockets",
      "no unix socket is accelerated, for the kernel does not tell who holds its other end",
      "`modprobe unix_diag`"},
     try_unix_diag},
    {{"no-membarrier", Severity::warning, "membarrier",
      "each call and message costs a locked instruction more on either side", ""},
     try_membarrier},
    {{"no-futex-waitv", Severity::warning, "futex_waitv",
      "a server of calls that sleeps is woken by a socket, at twice the price",
      "run Linux 5.16 or later"},
     try_futex_waitv},
    {{"no-pidfd", Severity::warning, "pidfd_open",
      "a connection whose sender is stopped or busy cannot be given back to the kernel smoothly",
      "run Linux 5.3 or later"},
     try_pidfd},
    {{"no-process-vm", Severity::note, "process_vm_readv",
      "channels of that kind cannot be used; no other is concerned", ""},
     try_process_vm},
};

constexpr unsigned kMostSeconds = 10;

// In a child, whose exit status is errno.
Refusal run(const Trial& trial) {
  const pid_t child = ::fork();
  if (child < 0) throw_errno("fork");
  if (child == 0) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(kMostSeconds);
    ::syscall(SYS_exit_group, std::min(trial.run(), 255));
    __builtin_unreachable();
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw_errno("waitpid");
  return {.ability = trial.ability,
          .error = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

}  // namespace

std::vector<Refusal> try_abilities() {
  std::vector<Refusal> refusals;
  for (const Trial& trial : kTrials)
    if (const Refusal refusal = run(trial); refusal.error != 0 || refusal.signal != 0)
      refusals.push_back(refusal);
  return refusals;
}

void judge(const std::vector<Refusal>& refusals, Findings& findings) {
  for (const Refusal& refusal : refusals) {
    const Ability& ability = refusal.ability;
    const bool absent = refusal.error == ENOSYS || refusal.error == ENOENT ||
                        refusal.error == EPROTONOSUPPORT || refusal.error == EOPNOTSUPP;
    const std::string answer =
        refusal.signal == SIGSYS ? "kills whoever calls it (a seccomp filter)"
        : refusal.signal != 0    ? fmt::format("ended by signal {}", refusal.signal)
                                 : fmt::format("fails: {}", errno_name(refusal.error));
    const std::string permit = fmt::format(
        "Permit {} in the sandbox (seccomp, SystemCallFilter= of the service)", ability.what);
    std::string cure = *ability.cure == '\0' ? permit
                       : absent              ? std::string(ability.cure)
                                             : permit + ", or " + ability.cure;
    if (cure.front() == 'r') cure.front() = 'R';
    findings.push_back({ability.id, ability.severity, kThisMachine,
                        fmt::format("{} {}: {}.", ability.what, answer, ability.harm), cure + "."});
  }
}

}  // namespace farcall::doctor
