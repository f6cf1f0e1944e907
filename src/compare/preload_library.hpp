// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farcall::compare {

constexpr const char* kLibraryName = "libfarcall-preload.so";

// Where the preload library lies: beside this command, in the build tree or in the installation
// that it belongs to. Throws SystemError (ENOENT), or EINVAL where its path has a character at
// which the dynamic linker would cut it.
std::string find_library();
// Why that fails; empty if it does not.
std::string why_no_library();

// The value of LD_PRELOAD with the library in front of those that are there already.
std::string preload_list(const std::string& library);

// A value of LD_PRELOAD without the library, wherever it lies; as it was, where it has none.
std::string without_library(const std::string& list);

}  // namespace farcall::compare
