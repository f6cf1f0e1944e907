// SPDX-License-Identifier: Apache-2.0
#include "serving.hpp"

#include <cerrno>

#include "farcall/limits.h"

namespace farcall::thrift {

void answer(ReceivedMessage& message, std::span<const std::byte> data, int status) noexcept {
  const std::int64_t id = message.release();
  if (farcall_reply(id, status, data.data(), data.size()) != 0 && errno != ESRCH)
    (void)farcall_error(id, errno);
}

process::Charge charged(process::Resource resource, uid_t user, std::size_t amount) noexcept {
  if (process::is_own(user)) return process::Charge::exempt();
  farcall_limits limits{};
  limits.size = sizeof limits;
  (void)farcall_limits_get(&limits);
  const bool bytes = resource == process::Resource::bytes;
  return {resource, user, amount, bytes ? limits.bytes_per_user : limits.descriptors_per_user};
}

}  // namespace farcall::thrift
