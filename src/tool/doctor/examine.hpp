// SPDX-License-Identifier: Apache-2.0
//
// Puts together what `farcall doctor` looks at, in each of its three forms.
#pragma once

#include <string>
#include <vector>

#include "tool/doctor/report.hpp"
#include "tool/run/program.hpp"

namespace farcall::tool::doctor {

// This machine, and what a program that is started here would find.
Report examine_here();
// A process that runs. Throws SystemError where there is none (ESRCH).
Report examine_running(pid_t pid);
// Runs a program with the library, waits for it, and tells what became of its connections.
Report examine_program(const std::vector<std::string>& command);

// What of the machine concerns everybody; `own`: this process, too.
void examine_surroundings(bool own, bool module_wanted, farcall::doctor::Findings& findings);
// Of `all` calls on accelerated connections so many went through the kernel.
farcall::doctor::Finding receivers_sleep(const std::string& about, std::uint64_t kernel,
                                         std::uint64_t all);
// What stands in the way of loading the library into it.
void judge(const run::Program& program, farcall::doctor::Findings& findings);

}  // namespace farcall::tool::doctor
