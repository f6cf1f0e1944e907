// SPDX-License-Identifier: Apache-2.0
//
// Whom to believe: which user a peer is, whether it holds the socket that it speaks for, and
// whether memory that it passes can be mapped without harm.
//
// The rooms beneath have much of this, too; but they throw, and they call the C library, whose
// calls are this library's hooks here. This goes to the kernel itself.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "preload/settings.hpp"

namespace farcall::preload {

inline constexpr int kMemorySeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::uint64_t cookie_of(int fd) noexcept;
// Whether connections may be shared with that user, who is not "nobody".
bool may_share_with(uid_t uid) noexcept;
// Who made, or listens at, the other end of a unix connection; false if nothing is shared with it.
bool peer_may_share(int connection, ucred& peer) noexcept;
// Whether datagrams between these addresses reach the socket of that cookie, as the kernel has it.
bool is_reached(const Endpoint& from, const Endpoint& to, std::uint64_t cookie) noexcept;
// A descriptor by which a process shows that it holds the socket `fd`, without keeping the socket:
// one that is passed and not taken would keep its port when the program closes it, or dies. It
// needs /proc, where who may debug the process can make one as well. Less than 0: there is none.
int make_witness(int fd) noexcept;
// Whether `witness`, which may be any file, is of the socket that the kernel calls by that number.
bool is_witness_of(int witness, std::uint32_t inode) noexcept;
// Whether `fd` is the UDP socket of that cookie, bound so that it has that address.
bool is_socket_of(int fd, const Endpoint& address, std::uint64_t cookie) noexcept;
// Whether it is a size that rings have, and not too large.
bool is_sound_ring(std::uint64_t bytes) noexcept;
// A descriptor of new memory as is_sound_memory() wants it, or less than 0.
int create_memory(const char* name, std::uint64_t bytes) noexcept;
// Whether it is ordinary memory of exactly that size, and cannot shrink.
bool is_sound_memory(int memory, std::uint64_t bytes) noexcept;

// Descriptors that come with a message, closed at the end: apart, unless they are known to be of
// kinds whose closing waits for nobody.
struct Passed {
  int fds[2] = {-1, -1};
  bool is_harmless = false;
  Passed() noexcept = default;
  Passed(const Passed&) = delete;
  Passed& operator=(const Passed&) = delete;
  ~Passed();
};
// Without waiting. receive_with(): -EAGAIN: nothing yet; any other error: nothing that can be used.
// What came stays in the queue, so that nothing else that was passed is closed for want of a place;
// take_message() takes it out, once all that was passed is known to be harmless.
bool send_with(int connection, void* words, std::size_t size, const int* fds,
               std::size_t count) noexcept;
long receive_with(int connection, void* words, std::size_t size, Passed& passed) noexcept;
void take_message(int connection, Passed& passed) noexcept;

}  // namespace farcall::preload
