// SPDX-License-Identifier: Apache-2.0
//
// Closes the sockets of this library at which strangers come. Their names have no permissions, so
// anybody may leave descriptors there, and the last close of some of those waits for as long as who
// left them likes: of a TCP socket that lingers, of a file whose file system is a program.
#pragma once

namespace farcall::preload {

// A descriptor that came from somebody, of any kind.
void close_apart(int fd) noexcept;
// A socket connected to somebody, with what that one has left.
void close_connection(int fd) noexcept;
// With who waits there.
void close_listener(int listener) noexcept;
// The same as close_connection() of a private one.
void close_visitor(int guest) noexcept;

}  // namespace farcall::preload
