// SPDX-License-Identifier: Apache-2.0
#include "call/limits.hpp"

#include <cerrno>
#include <cstring>
#include <mutex>

#include "process/per_process.hpp"

namespace farcall::call {
namespace {

struct Chosen {
  std::mutex lock;  // protects the rest
  farcall_limits limits{};
};

// A structure may only grow.
constexpr std::size_t kFirstSize = sizeof(farcall_limits);

}  // namespace

PortLimits limits_of_process() noexcept {
  Chosen& chosen = PerProcess<Chosen>::here();
  const std::lock_guard guard(chosen.lock);
  const farcall_limits& said = chosen.limits;
  PortLimits limits;
  if (said.sessions != 0) limits.sessions = said.sessions;
  if (said.sessions_per_user != 0) limits.sessions_per_user = said.sessions_per_user;
  if (said.request_bytes != 0) limits.request_bytes = said.request_bytes;
  limits.descriptors_per_user = said.descriptors_per_user;
  limits.bytes_per_user = said.bytes_per_user;
  if (said.patience_ns != 0) limits.patience = std::chrono::nanoseconds(said.patience_ns);
  return limits;
}

int set_limits(const farcall_limits* limits) noexcept {
  if (limits == nullptr || limits->size < kFirstSize || limits->patience_ns < 0) {
    errno = EINVAL;
    return -1;
  }
  Chosen& chosen = PerProcess<Chosen>::here();
  const std::lock_guard guard(chosen.lock);
  std::memcpy(&chosen.limits, limits, sizeof chosen.limits);
  return 0;
}

int get_limits(farcall_limits* limits) noexcept {
  if (limits == nullptr || limits->size < kFirstSize) {
    errno = EINVAL;
    return -1;
  }
  Chosen& chosen = PerProcess<Chosen>::here();
  const std::lock_guard guard(chosen.lock);
  const std::size_t size = limits->size;
  std::memcpy(limits, &chosen.limits, sizeof chosen.limits);
  limits->size = size;
  return 0;
}

}  // namespace farcall::call
