// SPDX-License-Identifier: Apache-2.0
//
// Asks a process for what costs it something: for a time, which ends by itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "watch/process.hpp"

namespace farcall::watch {

// A word of an end, to be written; tap_new is of all ends that its table has from now on,
// tap_children of those of children.
struct Lease {
  enum class Word : std::uint8_t { watch, tap_sent, tap_received, tap_new, tap_children } word;
  const End* end;
  unsigned sampling = 0;  // of `watch`: one of 2^n messages is timed
};

// Writes them all; how many could be. The process must still be the one that was looked at: one
// that has changed its identity meanwhile (executed something with other rights) is left alone by
// the kernel's rule for who may trace whom. What stands in place of a table is not written to
// either, where the table went before it is looked at once more, just before the write. One that
// goes in between, in some microseconds, is not noticed: the kernel has no way to do both at once,
// short of stopping the process.
std::size_t renew(const Process& process, const std::vector<Lease>& leases,
                  std::chrono::nanoseconds duration);

}  // namespace farcall::watch
