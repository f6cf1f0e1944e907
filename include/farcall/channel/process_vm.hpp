// SPDX-License-Identifier: Apache-2.0
//
// process_vm_readv(2): the reader copies straight out of the writer's memory, one copy in all.
//
// The writer sends the address and length of a message over a unix socket and waits until the
// reader has copied and acknowledged it: nothing is ever in flight, and a write() or send() takes
// as long as the reader lets it wait. Messages have no limit but the address space; 0 bytes to
// write() are no message. A reader that takes a message in parts acknowledges after the last.
//
// The kernel says with each message which process sent it (SCM_CREDENTIALS); the reader reads from
// no other. Reading needs the right to trace that process: the same user, nothing set-uid, and no
// security module against it; privileged readers do not use their privilege. Where Yama restricts
// tracing to ancestors the writer allows its reader by PR_SET_PTRACER, which holds for one reader
// at a time; the writer says it again if the reader was refused. A refusal ends both sides with
// EPERM.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct ProcessVm {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<ProcessVm>);

}  // namespace farcall::channel
