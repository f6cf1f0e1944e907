// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farcall::compare {

// What is measured must not depend on who starts it. Removes the settings of the library and the
// preload library from the environment; where this process has that loaded, as under farcall
// run, executes this program anew with the same words. Throws std::runtime_error where it is loaded
// in another way (/etc/ld.so.preload), SystemError where nothing can be executed.
void begin_without_library();

}  // namespace farcall::compare
