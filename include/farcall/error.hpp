// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace farcall {

/// The symbolic name of an errno value, such as "ENOENT"; "unknown errno" for a value that the
/// C library has no name for. Never null; valid for the life of the program.
const char* errno_name(int errno_value) noexcept;

/// The operating system refused something. code() holds the errno value in the system category;
/// what() reads "<what>: <name>: <description>", as in
/// "open /x: ENOENT: No such file or directory".
class SystemError : public std::system_error {
 public:
  SystemError(int errno_value, const std::string& what);
};

/// Throws SystemError for the current errno. `what` names the call that failed and its object;
/// building it must leave errno alone.
[[noreturn]] void throw_errno(std::string_view what);

/// The caller broke the contract of an interface: a bug in the program, not a state of the world.
class MisuseError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace farcall
