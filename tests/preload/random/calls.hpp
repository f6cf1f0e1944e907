// SPDX-License-Identifier: Apache-2.0
//
// What the parts of random-calls share: both ends of a connection, and the calls that move bytes.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "program.hpp"

namespace farcall::preload::test::calls {

extern Random chance;
inline std::uint64_t pick(std::uint64_t count) { return chance.below(count); }

// Less than any socket holds, so that nothing is refused for want of room.
inline constexpr std::size_t kMostUnread = 12'000;
inline constexpr std::size_t kMostDatagrams = 40;  // each takes more room than it has bytes

struct Side {
  char name;
  int fd = -1;
  int set = -1;          // in which it is registered
  std::size_t sent = 0;  // that the other has not read, as far as is known
  std::size_t datagrams = 0;
  bool shut = false;
  std::uint64_t next = 0;
  sockaddr_in address{};  // of a datagram socket
};
extern Side ends[2];
inline Side& other_of(const Side& end) { return &end == &ends[0] ? ends[1] : ends[0]; }

extern bool is_tcp;
extern bool is_packets;
extern bool is_udp;
extern bool is_urgent;   // one of this connection was
extern bool is_counted;  // else an empty message behind which the end comes may pass for the end
extern bool is_named;

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void say_result(const Side& end, const char* what, long result);

long send_to_other(const Side& end, const void* bytes, std::size_t size, int flags);
void send_some(Side& end);
void receive_some(Side& end);
void wait_some(Side& end);
void ask_some(Side& end);
// Ways past what usually moves bytes.
void move_some(Side& end);

}  // namespace farcall::preload::test::calls
