// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <system_error>

namespace farcall::test {

// The errno of the exception that comes of it; 0 where none comes.
template <class Call>
int error_of(Call call) {
  try {
    call();
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return 0;
}

}  // namespace farcall::test
