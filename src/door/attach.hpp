// SPDX-License-Identifier: Apache-2.0
//
// Doors over shared memory in the file system. The file itself is left as it is: an attachment is a
// socket in the abstract namespace, named by the device and the inode of the file, and held by the
// door's server.
//
//   who attaches      makes the socket, and sends it to the server with a descriptor of the file
//   who opens         connects to it, proves with a descriptor that it may open the file, and gets
//                     a door in exchange
//   who detaches      connects to it and says so
//
// A socket counts only where its maker was the file's owner or root. Nothing remains of it when
// the server dies, and while it exists the server holds the file, so that no other file can get the
// same inode.
#pragma once

#include <sys/stat.h>

#include "door/door.hpp"
#include "door/paths.hpp"
#include "farcall/socket.hpp"

namespace farcall::door {

// What is sent over a connection to an attachment's socket.
inline constexpr std::uint8_t kPurposeOpen =
    17;  // proof, if any is due; answered with a door, or EAGAIN
inline constexpr std::uint8_t kPurposeDetach = 18;  // answered with a packet of no descriptors

// The name of the socket that stands for a file.
AbstractAddress address_of(const struct stat& status) noexcept;

// Takes over what fattach() has sent to the door's socket, three descriptors; leaves them where
// they are if that cannot be done now.
void attach(const std::shared_ptr<Door>& door, ReceivedFds& descriptors,
            const Credentials& sender) noexcept;

// Whether a user may have a file of that owner lead to a door.
bool may_attach(uid_t user, uid_t owner_of_file) noexcept;

namespace shared {

// Whether a door over shared memory is attached to the file, which somebody stands for who may
// attach.
bool is_attached(const struct stat& status) noexcept;
// Exchanges a descriptor of a file that such a door is attached to for one of the door; none where
// there is none, or one whose server lets nobody in: `refusal` is ETIMEDOUT where it does not
// answer within that time, or a few seconds, EAGAIN where it has no room, else 0.
UniqueFd open_attached(int fd, const struct stat& status, Deadline within, Sought sought,
                       int& refusal) noexcept;
// Returns 0 or an errno value; EINVAL where none is attached, ETIMEDOUT where its server is silent.
int detach(const struct stat& status) noexcept;

}  // namespace shared
}  // namespace farcall::door
