// SPDX-License-Identifier: Apache-2.0
//
// What the library that contains signals.cpp has to say before a program's signal handler runs. It
// defines these functions itself.
#pragma once

#include <signal.h>

namespace farcall::interpose {

// In the handler's place, of one that asked for no more than the number, or for all. False: the
// handler does not run now, and one for a single signal is installed again: who has said no raises
// the signal once more.
bool before_handler(int number) noexcept;
bool before_handler(int number, siginfo_t* info, void* context) noexcept;

// Whether what handles that signal now, if anything, is wrapped.
bool is_wrapped(int number) noexcept;

}  // namespace farcall::interpose
