// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "farcall/observe.hpp"

namespace farcall::watch {

// Text that a terminal, a log or JSON can be given: what is no printable UTF-8 becomes \xNN, a
// first zero byte (an abstract name) becomes @. A right-to-left mark or the like is not printable.
std::string printable(std::string_view bytes);
// What a process is called; "?" where there is none, or no /proc.
std::string program_of(std::string_view pid);
// Why a file of /proc is not there: that it is `gone`, or that there is no /proc at all.
std::string unless_no_proc(std::string gone);
// Address and port; "" where there is none.
std::string to_text(const observe::Address& address);

const char* to_text(observe::Kind kind) noexcept;
const char* to_text(observe::Role role) noexcept;
const char* to_text(observe::Carrier carrier) noexcept;

}  // namespace farcall::watch
