// SPDX-License-Identifier: Apache-2.0
#include "call/pull.hpp"

#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace farcall::call {
namespace {

const std::uint64_t kNonce = [] {
  std::uint64_t nonce = 0;
  while (nonce == 0)
    if (::getrandom(&nonce, sizeof nonce, GRND_NONBLOCK) != sizeof nonce)
      nonce = reinterpret_cast<std::uintptr_t>(&nonce) * 0x9e3779b97f4a7c15;
  return nonce;
}();

// The kernel reads no more at once.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

void* at(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): not ours
}

// Both by system call: what the pointers of a program are worth, the kernel says, with EFAULT.
// AddressSanitizer's own process_vm_writev() ends the process instead.
template <std::size_t N>
ssize_t read_from(pid_t pid, const std::array<iovec, N>& into,
                  const std::array<iovec, N>& from) noexcept {
  return ::syscall(SYS_process_vm_readv, pid, into.data(), N, from.data(), N, 0UL);
}

ssize_t write_to(pid_t pid, const iovec& into, const iovec& from) noexcept {
  return ::syscall(SYS_process_vm_writev, pid, &from, 1UL, &into, 1UL, 0UL);
}

}  // namespace

PullOffer offer(std::span<const std::byte> data) noexcept {
  return {.address = reinterpret_cast<std::uintptr_t>(data.data()),
          .size = data.size(),
          .nonce_address = reinterpret_cast<std::uintptr_t>(&kNonce),
          .nonce = kNonce};
}

int pull(pid_t pid, const PullOffer& offer, std::span<std::byte> into) noexcept {
  if (pid <= 0) return EPERM;
  std::uint64_t address = offer.address;
  do {
    const std::size_t now = std::min(into.size(), kMostAtOnce);
    std::uint64_t nonce = 0;
    const std::array local{iovec{.iov_base = &nonce, .iov_len = sizeof nonce},
                           iovec{.iov_base = into.data(), .iov_len = now}};
    const std::array remote{iovec{.iov_base = at(offer.nonce_address), .iov_len = sizeof nonce},
                            iovec{.iov_base = at(address), .iov_len = now}};
    const ssize_t count = read_from(pid, local, remote);
    if (count < static_cast<ssize_t>(sizeof nonce) || nonce != offer.nonce)
      return count < 0 && errno == EFAULT ? EFAULT : EPERM;
    const std::size_t got = static_cast<std::size_t>(count) - sizeof nonce;
    if (got == 0 && now != 0) return EFAULT;
    into = into.subspan(got);
    address += got;
  } while (!into.empty());
  return 0;
}

int push(pid_t pid, const PullOffer& offer, std::span<const std::byte> data) noexcept {
  // Nothing is written to a process that does not hold the nonce.
  const PullOffer nothing{.address = offer.nonce_address,
                          .size = 0,
                          .nonce_address = offer.nonce_address,
                          .nonce = offer.nonce};
  if (const int error = pull(pid, nothing, {}); error != 0) return error;
  std::uint64_t address = offer.address;
  while (!data.empty()) {
    const std::size_t now = std::min(data.size(), kMostAtOnce);
    const iovec local{.iov_base = const_cast<std::byte*>(data.data()), .iov_len = now};
    const iovec remote{.iov_base = at(address), .iov_len = now};
    const ssize_t count = write_to(pid, remote, local);
    if (count <= 0) return count < 0 && errno == EFAULT ? EFAULT : EPERM;
    data = data.subspan(static_cast<std::size_t>(count));
    address += static_cast<std::size_t>(count);
  }
  return 0;
}

}  // namespace farcall::call
