// SPDX-License-Identifier: Apache-2.0
//
// What one end has sent or received, as it was found in a process that is watched.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "observe/tap.hpp"

namespace farcall::capture {

struct Message {
  observe::Kind kind;
  observe::TapRecord::What what;
  observe::Role role;
  uid_t user;
  pid_t pid;               // whose end it is, as this process numbers it
  pid_t peer;              // 0: not known
  std::int64_t time;       // CLOCK_MONOTONIC, ns
  std::uint64_t sent;      // by this end before it
  std::uint64_t received;  // and received
  std::uint64_t session;
  std::int64_t opened;
  observe::Address local;
  observe::Address remote;
  std::uint32_t size;                // of what passed
  std::span<const std::byte> bytes;  // what could be copied of it
  std::string_view name;

  [[nodiscard]] bool is_sent() const noexcept { return what == observe::TapRecord::kSent; }
};

inline bool operator==(const observe::Address& one, const observe::Address& other) noexcept {
  return one.port == other.port && one.bytes == other.bytes;
}

}  // namespace farcall::capture
