// SPDX-License-Identifier: Apache-2.0
//
// For those files alone that put functions in front of the C library's.
#pragma once

#include "interpose/next.hpp"

namespace farcall::door::real {

using interpose::next;
using interpose::Symbol;

}  // namespace farcall::door::real
