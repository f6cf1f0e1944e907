// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farcall/memory.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::call {

// Where long requests are copied to; kept from one to the next, because fresh memory is expensive.
class RequestBuffer {
 public:
  RequestBuffer() noexcept = default;
  ~RequestBuffer() { drop(); }
  RequestBuffer(const RequestBuffer&) = delete;
  RequestBuffer& operator=(const RequestBuffer&) = delete;

  // At least `size` bytes, as long as `charge` lasts; null where it is empty or there is no memory.
  std::byte* reserve(std::size_t size, Charge charge) noexcept;
  // The request is over. Gives back what is too much to be kept: nobody is charged for that.
  void release() noexcept;
  static constexpr std::size_t kMostKept = std::size_t{64} << 20;  // of all in a process

 private:
  void drop() noexcept;

  Mapping memory_;
  std::size_t counted_ = 0;  // of those bytes, among what is kept
  Charge charge_;
};

}  // namespace farcall::call
