// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farcall::compare {

// Where plotting can be done; throws std::runtime_error, which says what to install. To be called
// before minutes are spent on measuring.
void require_plotting();

// Draws the JSON report in the file `json` into `picture`, a PNG. Throws std::runtime_error.
void plot(const std::string& json, const std::string& picture);

}  // namespace farcall::compare
