// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "compare/rows/module.hpp"
#include "farcall/error.hpp"
#include "process/programs.hpp"

namespace farcall::compare {
namespace {

struct Peer {
  std::string_view module;
  std::string_view source;  // what brings it
  RowInfo info;
};

RowInfo calls(const char* mechanism, const char* description) {
  return {.mechanism = mechanism,
          .engine = "library",
          .wait = "block",
          .description = description,
          .streams = false};
}
RowInfo messages(const char* mechanism, const char* wait, const char* description) {
  return {.mechanism = mechanism, .engine = "library", .wait = wait, .description = description};
}
// One row per way of waiting.
RowInfo waiting(const char* mechanism, const char* wait, const char* description) {
  RowInfo info = messages(mechanism, wait, description);
  info.waits = true;
  return info;
}
RowInfo tells_many(const char* mechanism, const char* policy, const char* description) {
  RowInfo info = messages(mechanism, "block", description);
  info.policy = policy;
  return info;
}

constexpr std::string_view kIceoryx2 =
    "scripts/setup.sh peers, where cargo and rustc are 1.89 or newer";

std::vector<Peer> peers() {
  return {
      {"grpc", "the Debian package libgrpc++-dev",
       calls("grpc", "gRPC, a unary call over a Unix socket")},
      {"grpc", "the Debian package libgrpc++-dev",
       calls("grpc_tcp", "gRPC, a unary call over TCP on 127.0.0.1")},
      {"grpc", "the Debian package libgrpc++-dev",
       messages("grpc_stream", "block", "gRPC, one stream of both directions over a Unix socket")},
      {"capnp", "the Debian package libcapnp-dev",
       calls("capnp", "Cap'n Proto, a call over a Unix stream socket")},
      {"ucx", "the Debian package libucx-dev",
       waiting("ucx", "spin", "UCX, tagged messages over shared memory")},
      {"ucx", "the Debian package libucx-dev",
       waiting("ucx", "block", "UCX, tagged messages over shared memory")},
      {"libfabric", "the Debian package libfabric-dev",
       messages("libfabric", "spin", "libfabric's shm, messages over shared memory")},
      {"fastdds", "the Debian package libfastrtps-dev",
       calls("fastdds", "Fast DDS, a topic each way, by data sharing")},
      {"iceoryx2", kIceoryx2,
       waiting("iceoryx2", "spin", "iceoryx2, publish and subscribe each way, asked all the time")},
      {"iceoryx2", kIceoryx2,
       waiting("iceoryx2", "block", "iceoryx2, publish and subscribe each way, and its events")},
      {"iceoryx2", kIceoryx2,
       tells_many("iceoryx2", "block", "iceoryx2 and its events; the writer waits")},
      {"iceoryx2", kIceoryx2,
       tells_many("iceoryx2_overwrite", "overwrite",
                  "iceoryx2 and its events; slow readers miss what is old")},
  };
}

// Those that were built with this, each name in commas.
constexpr std::string_view kBuilt = "," FARCALL_MODULES ",";

// Beside the command, in the build tree or in the installation.
std::string find_module(std::string_view name) {
  const std::string file = "farcall-peer-" + std::string(name) + ".so";
  const auto found = process::beside_program({"peers/" + file, "../libexec/farcall/" + file}, R_OK);
  if (!found.empty()) return found;
  throw SystemError(ENOENT, "find " + file + " (looked beside the command)");
}

// Never unloaded: it goes with the process.
void* load(std::string_view name) {
  // UCX would handle the signals of faults, which belong to others.
  ::setenv("UCX_HANDLE_ERRORS", "none", 1);
  const std::string path = find_module(name);
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw SystemError(ELIBACC, std::string("load a peer: ") + ::dlerror());
  return module;
}

std::unique_ptr<Connection> connect(std::string_view module, const RowInfo& info,
                                    const Conditions& conditions) {
  const auto make = reinterpret_cast<decltype(&farcall_peer_connection)>(
      ::dlsym(load(module), "farcall_peer_connection"));
  if (make == nullptr) throw SystemError(ELIBBAD, "a peer's module without its function");
  return std::unique_ptr<Connection>(make(conditions, info));
}

}  // namespace

void add_modules(RowList& list, Workload workload) {
  for (const Peer& peer : peers()) {
    if (peer.info.policy.empty() != (workload == Workload::pair)) continue;
    if (kBuilt.find("," + std::string(peer.module) + ",") != std::string_view::npos) {
      list.add(
          peer.info,
          [peer](const Conditions& conditions) {
            return connect(peer.module, peer.info, conditions);
          },
          {}, [module = peer.module] { load(module); });
      continue;
    }
    const auto listed = [&](const AbsentRow& row) { return row.mechanism == peer.info.mechanism; };
    if (std::ranges::none_of(list.absent, listed))
      list.absent.push_back({peer.info.mechanism, "farcall was built without it; it comes with " +
                                                      std::string(peer.source)});
  }
}

}  // namespace farcall::compare
