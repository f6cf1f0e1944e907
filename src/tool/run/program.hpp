// SPDX-License-Identifier: Apache-2.0
//
// What the file is that somebody wants to run: where it lies, and whether the dynamic linker will
// load another library into it.
#pragma once

#include <string>

namespace farcall::tool::run {

struct Program {
  std::string path;         // absolute, or as it was given with a slash in it
  std::string interpreter;  // of a script: the program that really runs; else empty
  std::string refusal;      // why the library cannot be loaded into it; empty if it can
  std::string reservation;  // what works less well than one would think; empty if nothing
};

// Looks at the program that a shell would run for `name`. Throws SystemError where there is none
// (ENOENT) or it cannot be run (EACCES).
Program examine(const std::string& name);

}  // namespace farcall::tool::run
