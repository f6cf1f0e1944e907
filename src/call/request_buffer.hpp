// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farcall/memory.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::call {

// Where long requests are copied to; kept from one to the next, because fresh memory is expensive.
class RequestBuffer {
 public:
  // At least `size` bytes, as long as `charge` lasts; null where it is empty or there is no memory.
  std::byte* reserve(std::size_t size, Charge charge) noexcept;
  // The request is over. Gives back what is too much to be kept.
  void release() noexcept;

 private:
  Mapping memory_;
  Charge charge_;
};

}  // namespace farcall::call
