// SPDX-License-Identifier: Apache-2.0
#include "farcall/error.hpp"

#include <string.h>

#include <cerrno>

namespace farcall {

const char* errno_name(int errno_value) noexcept {
  const char* name = ::strerrorname_np(errno_value);
  return name != nullptr ? name : "unknown errno";
}

SystemError::SystemError(int errno_value, const std::string& what)
    : std::system_error(errno_value, std::system_category(),
                        what + ": " + errno_name(errno_value)) {}

void throw_errno(std::string_view what) {
  const int errno_value = errno;  // read before the allocation below can change it
  throw SystemError(errno_value, std::string(what));
}

}  // namespace farcall
