// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "message/channel.hpp"

namespace farcall::message::test {

// Whether that is in what a channel of this user says of itself.
inline bool says_of(const std::string& name, std::string_view what) {
  std::array<char, 4000> text{};
  EXPECT_GT(farcall_channel_status((std::to_string(::geteuid()) + "/" + name).c_str(), text.data(),
                                   text.size() - 1),
            0);
  return std::string_view(text.data()).find(what) != std::string_view::npos;
}

}  // namespace farcall::message::test
