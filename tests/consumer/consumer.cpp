// SPDX-License-Identifier: Apache-2.0
// Touches something of each installed header, so that a missing header or symbol shows here.
#include <cerrno>
#include <cstdio>
#include <farcall/error.hpp>

int main() {
  try {
    throw farcall::SystemError(ENOENT, "open /x");
  } catch (const farcall::SystemError& error) {
    std::puts(error.what());
  }
}
