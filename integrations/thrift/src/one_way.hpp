// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace farcall::thrift {

// Whether these bytes are a one-way call of a protocol that is known here. A transport is not told.
bool is_one_way(std::span<const std::uint8_t> message) noexcept;

}  // namespace farcall::thrift
