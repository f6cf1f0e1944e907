// SPDX-License-Identifier: Apache-2.0
//
// socketpair(AF_UNIX, SOCK_STREAM): a byte stream in the kernel, some 200 KiB deep by default. The
// reader sees the end when the writer shuts its side down, or when the kernel does it for a
// writer that died: it cannot tell the two apart.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct UnixStream {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<UnixStream>);

}  // namespace farcall::channel
