// SPDX-License-Identifier: Apache-2.0
//
// Reading what another process offers straight from its memory: one copy, made by the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace farcall::call {

// Where data lies in the memory of who offers it. The nonce lies there too: a process that has
// come by the same number by chance does not hold it.
struct PullOffer {
  std::uint64_t address;
  std::uint64_t size;  // bytes
  std::uint64_t nonce_address;
  std::uint64_t nonce;
};

// From these sizes on one copy by the kernel is quicker than two through a ring. Two processors
// that copy through a ring at the same time get in each other's way; one does it from its cache. A
// reply must be acknowledged where it is read so, hence twice the size. Measured in
// docs/guide/doors.md.
inline constexpr std::size_t kPullBytesApart = std::size_t{8} * 1024;
inline constexpr std::size_t kPullBytesTogether = std::size_t{64} * 1024;

// From this size on two processors copy more quickly than one: the receiver begins with the first
// half, and asks a sender who is awake on another processor to write the second half meanwhile.
inline constexpr std::size_t kAssistBytes = std::size_t{256} * 1024;

PullOffer offer(std::span<const std::byte> data) noexcept;
// Fills `into` with what process `pid` offers. Returns 0; EFAULT where not all of it is memory of
// that process; EPERM where this process may not read it, or it is gone.
int pull(pid_t pid, const PullOffer& offer, std::span<std::byte> into) noexcept;
// The other way round: writes `data` to where process `pid` wants it. Returns as pull() does.
int push(pid_t pid, const PullOffer& offer, std::span<const std::byte> data) noexcept;

}  // namespace farcall::call
