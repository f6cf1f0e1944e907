// SPDX-License-Identifier: Apache-2.0
//
// What the file is that somebody wants to run: where it lies, and whether the dynamic linker will
// load another library into it.
#pragma once

#include <cstdint>
#include <string>

namespace farcall::tool::run {

// What stands in the way.
enum class Obstacle : std::uint8_t {
  none,
  no_program,     // neither ELF nor a script
  more_rights,    // setuid, setgid, file capabilities
  other_machine,  // built for another architecture
  other_library,  // of C
  no_linker,      // it is linked statically
  own_calls,      // Go: it goes round every library. A reservation
  not_readable,   // so nobody knows. A reservation
};

struct Program {
  std::string path;         // absolute, or as it was given with a slash in it
  std::string interpreter;  // of a script: the program that really runs; else empty
  Obstacle obstacle = Obstacle::none;
  std::string refusal;      // why the library cannot be loaded into it; empty if it can
  std::string reservation;  // what works less well than one would think; empty if nothing
};

// The path of the program that a shell would run for `name`. Throws SystemError.
std::string find_program(const std::string& name);

// Looks at the program that a shell would run for `name`. Throws SystemError where there is none
// (ENOENT) or it cannot be run (EACCES).
Program examine(const std::string& name);

}  // namespace farcall::tool::run
