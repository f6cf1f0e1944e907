// SPDX-License-Identifier: Apache-2.0
//
// vmsplice(2): the writer's pages are put into a pipe instead of their contents, and read(2) at the
// other end makes the only copy in the kernel.
//
// A page in the pipe is the writer's own page still, so it must not change until it is read, and
// the kernel does not tell when that is. The writer therefore copies what it sends into a ring of
// pages of its own, gives these, and relies on the pipe's depth: it has S slots, first in, first
// out, and each piece given takes a slot of its own, of one page at most. Once S more pieces have
// gone in, a piece has left. The ring has S pages more than the most that is given at once, and
// what is skipped at its end, so a byte is written anew only after S or more pieces have followed.
//
// SIGPIPE: vmsplice has no flag against it. In a process that does not ignore SIGPIPE it is blocked
// around each call, for two or three more system calls. Otherwise as a pipe (pipe.hpp).
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Vmsplice {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Vmsplice>);

}  // namespace farcall::channel
