// SPDX-License-Identifier: Apache-2.0
//
// The one list of all mechanisms, in the order in which a comparison shows them.
#include <algorithm>
#include <array>

#include "farcall/channel.hpp"

namespace farcall::channel {
namespace {

constexpr auto kAll = std::to_array<AnyMechanism>({
    AnyMechanism::of<Pipe>(),
    AnyMechanism::of<Fifo>(),
    AnyMechanism::of<UnixStream>(),
    AnyMechanism::of<UnixDgram>(),
    AnyMechanism::of<UnixSeqpacket>(),
    AnyMechanism::of<Tcp>(),
    AnyMechanism::of<Udp>(),
    AnyMechanism::of<PosixMq>(),
    AnyMechanism::of<SysvMq>(),
    AnyMechanism::of<AnonymousMapping>(),
    AnyMechanism::of<FileMapping>(),
    AnyMechanism::of<PosixShm>(),
    AnyMechanism::of<SysvShm>(),
    AnyMechanism::of<Memfd>(),
    AnyMechanism::of<Pty>(),
    AnyMechanism::of<Vmsplice>(),
    AnyMechanism::of<ProcessVm>(),
    AnyMechanism::of<Ring>(),
});

}  // namespace

std::span<const AnyMechanism> all_mechanisms() { return kAll; }

const AnyMechanism* find_mechanism(std::string_view name) {
  const auto found = std::ranges::find_if(
      kAll, [&](const AnyMechanism& mechanism) { return mechanism.properties().name == name; });
  return found == kAll.end() ? nullptr : found;
}

}  // namespace farcall::channel
