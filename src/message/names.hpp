// SPDX-License-Identifier: Apache-2.0
//
// Names of channels. A name belongs to a user: "mail" of user 1000 is "1000/mail" in full. Who
// opens "mail" gets the own user's, or else root's; who wants somebody else's says whose.
//
// In shared memory a name is an abstract socket. Whoever connects is sent a connection, or the
// errno of a refusal; what such a socket says is believed of the user only whose name it is, and of
// root.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"

namespace farcall::message {

// How the module is told the caller's number, which in a user namespace it knows another of.
inline constexpr const char* kModulesOwnUser = "~";

// `user` is how the own one is written. Throws SystemError: EINVAL, ENAMETOOLONG.
std::string own_name(std::string_view name, const std::string& user = std::to_string(::geteuid()));
// The full names that a name may stand for.
std::vector<std::string> full_names(std::string_view name,
                                    const std::string& user = std::to_string(::geteuid()));

// What is bound to the two sockets of a channel with a name.
inline constexpr std::string_view kOpenPrefix = "farcall/message/";
inline constexpr std::string_view kStatusPrefix = "farcall/message-status/";

// Throws SystemError: EADDRINUSE.
UniqueFd listen_at(std::string_view prefix, std::string_view full_name);
// Whose a channel is, and whom it lets in: as with files, by the write bits.
struct Permissions {
  uid_t owner;
  gid_t group;
  mode_t mode;
};
// `groups`: who has them beside its own one.
bool may_connect(const Credentials& who, std::span<const gid_t> groups,
                 const Permissions& of) noexcept;

// What the server sends: a descriptor, or an errno. Never waits.
void answer(int socket, int error, UniqueFd descriptor);
// Somebody has the name who may not: neither of the user whose name it is nor root. EACCES.
class NameSquatted : public SystemError {
 public:
  NameSquatted() : SystemError(EACCES, "somebody else serves under that name") {}
};
// Connects and takes the answer. Throws SystemError: ENOENT where nobody listens; NameSquatted, and
// waits for no such server; ETIMEDOUT at the deadline; EINTR where a signal has been caught after
// `since`. `server` gets who has answered.
UniqueFd ask(std::string_view prefix, std::string_view full_name, Deadline deadline,
             Credentials* server = nullptr, std::optional<SignalCount> since = std::nullopt);
// The full names of all that this machine's (this network namespace's) channels have.
std::vector<std::string> all_names();

}  // namespace farcall::message
