// SPDX-License-Identifier: Apache-2.0
//
// Files that these commands write to, by the name that the user gives: often as root, and often in
// a directory where others may make files as well.
#pragma once

#include <string>

#include "farcall/memory.hpp"

namespace farcall::watch {

// The file that the name leads to where it is a link, if there is such a file; else the name.
// Throws SystemError: EPERM where it is a link of another user, who decides where that leads to.
std::string followed(const std::string& name);

// Opens it for what is nobody else's business: makes a file that nobody else may read, or empties
// one and makes it so. What is no file (a pipe, a device) is only opened. Throws SystemError: EPERM
// where another user has made it, or can have made another name for it, and so has it open.
UniqueFd open_private(const std::string& name);

// Opens what is no file, and waits for nobody. Throws SystemError: EPERM where another user has
// made the pipe or the link, EEXIST where it is a file after all.
UniqueFd open_other(const std::string& name);

}  // namespace farcall::watch
