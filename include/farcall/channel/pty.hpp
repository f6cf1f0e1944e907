// SPDX-License-Identifier: Apache-2.0
//
// A pseudo-terminal in raw mode, all 256 bytes passing unchanged: the writer has the terminal side,
// the reader the controlling side (ptmx). The end is the last closing of the terminal, so a writer
// that died looks like one that finished. It becomes nobody's controlling terminal.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Pty {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Pty>);

}  // namespace farcall::channel
