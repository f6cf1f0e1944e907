// SPDX-License-Identifier: Apache-2.0
#include "compare/payload.hpp"

#include <fmt/format.h>

namespace farcall::compare {

void throw_wrong_payload(std::span<const std::byte> message, std::uint64_t index,
                         std::uint64_t expected) {
  const std::size_t at = index * Payload::kLineBytes;
  std::uint64_t found = expected;
  std::memcpy(&found, message.data() + at, std::min(sizeof found, message.size() - at));
  throw PayloadError(fmt::format("wrong payload at byte {} of {}: {:016x} instead of {:016x}", at,
                                 message.size(), found, expected));
}

}  // namespace farcall::compare
