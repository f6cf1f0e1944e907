// SPDX-License-Identifier: Apache-2.0
//
// mmap(2) of a real file, without a name, in TMPDIR or /tmp: a byte ring lies in it, a lifeline
// (socketpair) tells of death. The kernel writes the pages back to the disk now and then, which
// is what this mechanism costs more than the other mappings where the directory is on a disk.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct FileMapping {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<FileMapping>);

}  // namespace farcall::channel
