// SPDX-License-Identifier: Apache-2.0
//
// How commands end.
#pragma once

namespace farcall::tool {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,  // something could not be done
  kUsage = 2,    // the command line asks for what does not exist
};

}  // namespace farcall::tool
