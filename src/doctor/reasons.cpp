// SPDX-License-Identifier: Apache-2.0
#include "doctor/reasons.hpp"

#include <stdexcept>
#include <string>

namespace farcall::doctor {
namespace {

using enum Severity;

constexpr Reason kReasons[] = {
    // As the library counts them.
    {"not-local", note, "The other end is on another machine, or in another network namespace.",
     "Nothing is to be gained between machines; of containers let one use the other's network "
     "(`docker run --network container:NAME`, one pod)."},
    {"excluded", warning,
     "The settings do not want it accelerated: FARCALL_EXCLUDE names it, or FARCALL_ACCELERATE "
     "does "
     "not.",
     "Take it out of the one list, or into the other, if that is not what you meant."},
    {"too-short", note,
     "It ended before it was worth it: the first calls always go through the kernel, and a client "
     "that connects anew for each request makes no others.",
     "Let the client keep its connections (keep-alive, a pool)."},
    {"peer-silent", warning,
     "The other end never answered the library: it has none, goes round it by system calls of its "
     "own, or belongs to another user or has other settings and does not share memory.",
     "Start that program by `farcall run`, too, as the same user (or both with --users any); Go "
     "and "
     "static programs cannot have the library."},
    {"other-user", warning, "The other end belongs to another user, with whom no memory is shared.",
     "If you trust that user's programs: --users root, or --users any, at both ends."},
    {"no-proof", warning,
     "The kernel did not tell who holds the other end, so that it could be anybody.",
     "Both ends must be in one network namespace and user namespace, and sock_diag must be there "
     "(`modprobe tcp_diag udp_diag unix_diag`)."},
    {"too-many", warning,
     "As many connections as the settings allow were accelerated at that time.",
     "Raise --max-sockets (FARCALL_MAX_SOCKETS) at both ends."},
    {"no-memory", fault, "There was no memory for it, or no descriptor, or no mapping.",
     "Raise `ulimit -n`, `ulimit -v`, vm.max_map_count or the control group's memory.max; or make "
     "rings smaller: --ring-bytes 64K."},
    {"held-by-several", warning,
     "Several processes held one of its ends before it was accelerated.",
     "Let each process open or accept its connections itself, after it was forked, and close those "
     "that it has inherited."},
    {"seen-too-late", note,
     "Data had passed before the library saw it, by a call that does not come through the C "
     "library, "
     "or by another process.",
     "If it is always so, the program uses the socket by system calls of its own: exclude its "
     "endpoint."},
    {"option", note,
     "The program does something with it that only the kernel can: O_ASYNC, kernel TLS, "
     "timestamps, "
     "SO_PASSCRED, a filter, sendfile on packets.",
     "Do without that on this connection, if the program lets you choose."},
    {"urgent", note, "Out-of-band data goes through the kernel alone.",
     "Do without MSG_OOB, if the program lets you choose."},
    {"passed", note,
     "It was handed to another program (executed with it, sent over a unix socket), or its process "
     "became another user, changed its root or confined itself.",
     "Open connections after such steps, and mark those that children do not need close-on-exec."},
    {"broken", fault, "The other end wrote into the shared memory what cannot be, and was cut off.",
     "Make sure that both ends run the same version of the library; else the other end scribbles "
     "over its memory and should be debugged."},
    {"unseen", warning,
     "Its process moves bytes through an io_uring, or has confined itself by seccomp, and uses the "
     "kernel alone since then.",
     "Switch io_uring off in that program if it can do without."},
    // As they show from outside.
    {"library-not-loaded", fault, "The preload library is not loaded into this program.",
     "Start it by `farcall run -- PROGRAM`."},
    {"peer-without-library", warning,
     "The program at the other end does not have the library loaded.",
     "Start that program by `farcall run`, too; Go and static programs cannot have the library."},
    {"switched-off", warning, "The settings in the environment of one end switch it off.",
     "Look for FARCALL_ENABLED, FARCALL_TCP, FARCALL_UDP, FARCALL_UNIX, FARCALL_EXCLUDE and "
     "FARCALL_ACCELERATE where that program is started."},
    {"peer-stopped", fault, "The process at the other end is stopped, and answers nobody.",
     "`kill -CONT` it, or detach its debugger."},
    {"io-uring", warning,
     "One end has an io_uring. A program that moves bytes through one goes round the library, and "
     "uses the kernel alone.",
     "Switch io_uring off in that program if it can do without."},
    {"network-namespaces", warning,
     "The ends are in different network namespaces, as containers are: they cannot prove to each "
     "other who they are.",
     "Put both into one: `docker run --network container:NAME`, one pod, or the host's network."},
    {"unix-datagrams", note, "Unix datagrams are left to the kernel.",
     "If you can choose: SOCK_SEQPACKET keeps the boundaries of messages and is accelerated."},
    {"peer-gave-back", note, "The other end has given it back to the kernel.",
     "Look at that process by `farcall doctor`, too: it knows why."},
    {"peer-unseen", note,
     "Who is at the other end may not be looked at, for it belongs to another user.",
     "Run `farcall doctor` as that user, or as root."},
    {"undecided", note,
     "It is not accelerated at the moment, though both ends have the library: it has moved too "
     "little yet (some six calls), or was given back to the kernel.",
     "If it stays so, `farcall run --stats`, or `farcall doctor -- PROGRAM`, counts the reasons."},
};

}  // namespace

const Reason& reason(std::string_view id) {
  for (const Reason& each : kReasons)
    if (id == each.id) return each;
  throw std::logic_error("no reason is called " + std::string(id));
}

}  // namespace farcall::doctor
