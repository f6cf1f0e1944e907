// SPDX-License-Identifier: Apache-2.0
//
// What strangers try against a server with the usual limits, each for a while. A door made with
// echo_or_long() is asked.
#pragma once

#include <chrono>
#include <span>

#include "door/impostor.hpp"
#include "harness/stalled_page.hpp"

namespace farcall::door::test {

struct Attack {
  const char* name;
  void (*run)(int door);
  bool has_threads = false;
};
inline std::ostream& operator<<(std::ostream& out, const Attack& attack) {
  return out << attack.name;
}

std::span<const Attack> attacks();
std::span<const Attack> attacks_on_one_thread();

// In a process of its own, which becomes another user, for about that time.
void run_as_nobody(const Attack& attack, int door, std::chrono::nanoseconds time);

// What is asked for by "long"; by "give", a descriptor.
void echo_or_long(void*, char* data, size_t size, door_desc_t* descriptors, uint_t count);

}  // namespace farcall::door::test
