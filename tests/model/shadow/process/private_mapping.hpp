// SPDX-License-Identifier: Apache-2.0
//
// In place of the real one: no memory is mapped here, and nobody forks.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <utility>

#include "farcall/memory.hpp"

namespace farcall::process {

class PrivateMapping : public Mapping {
 public:
  PrivateMapping() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as memory of a test is given
  PrivateMapping(Mapping memory) noexcept : Mapping(std::move(memory)) {}
  PrivateMapping(int, std::size_t, int = 0) { std::abort(); }
};

}  // namespace farcall::process
