// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "farcall/memory.hpp"
#include "preload/stream.hpp"

namespace farcall::preload {

// A direction over a pair of unix sockets, which stand for the kernel's queue.
struct OneWay {
  OneWay(int type, std::size_t ring_bytes)
      : memory(Mapping::anonymous_shared(kDirectionBytes + ring_bytes)) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, type, 0, ends), 0);
    out = UniqueFd(ends[0]);
    in = UniqueFd(ends[1]);
    ring = {.control = reinterpret_cast<Direction*>(memory.data()),
            .bytes = memory.data() + kDirectionBytes,
            .size = ring_bytes};
    start_direction(*ring.control);
  }

  Mapping memory;
  UniqueFd out, in;
  Ring ring;
  Sender sender;
  Receiver receiver;
};

}  // namespace farcall::preload
