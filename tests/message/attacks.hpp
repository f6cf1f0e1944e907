// SPDX-License-Identifier: Apache-2.0
//
// What strangers try against a channel with the usual limits, whose threads echo; each for a while.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "message/channel.hpp"

namespace farcall::message::test {

struct Attack {
  const char* name;
  void (*run)(const std::string& name);
  int threads = 2;  // of the channel
};
inline std::ostream& operator<<(std::ostream& out, const Attack& attack) {
  return out << attack.name;
}

std::span<const Attack> attacks();

// In a process of its own, which becomes another user, for about that time.
void run_as_nobody(const Attack& attack, const std::string& name, std::chrono::nanoseconds time);

int connect_to(const std::string& name);

}  // namespace farcall::message::test
