// SPDX-License-Identifier: Apache-2.0
//
// iceoryx2, which has no daemon: a service of publish and subscribe for each direction, whose
// queues hold what the channel is to hold and whose sender waits while one is full, unless it is to
// write over what is old. Who waits either asks without a pause, as iceoryx2 is fastest, or sleeps
// at a service of events, to which each sender adds a notification per message. What it has in
// /tmp and /dev/shm is in a folder and under a prefix of ours. iceoryx2/ is what of it is in Rust.
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "compare/rows/module.hpp"
#include "compare/rows/own_folder.hpp"
#include "compare/rows/rows.hpp"

extern "C" {

// As in iceoryx2/src/lib.rs.
struct IceoryxPlan {
  const char* root;
  const char* prefix;
  std::size_t message_bytes;
  std::size_t depth;
  std::size_t readers;
  bool blocks;
  bool overwrites;
};
struct IceoryxEnd;

// They return null, or why they failed.
const char* farcall_iceoryx2_open(const IceoryxPlan* plan, const char* sends, const char* receives,
                                  IceoryxEnd** end);
const char* farcall_iceoryx2_send(const IceoryxEnd* end, const std::byte* message,
                                  std::size_t bytes);
const char* farcall_iceoryx2_receive(const IceoryxEnd* end, std::byte* message, std::size_t bytes);
void farcall_iceoryx2_close(IceoryxEnd* end);

}  // extern "C"

namespace farcall::compare {
namespace {

namespace fs = std::filesystem;

constexpr const char* kThere = "there";  // services
constexpr const char* kBack = "back";

void check(const char* problem) {
  if (problem != nullptr) throw std::runtime_error(std::string("iceoryx2: ") + problem);
}

class Iceoryx2End final : public Endpoint {
 public:
  Iceoryx2End(const IceoryxPlan& plan, const char* sends, const char* receives) {
    check(farcall_iceoryx2_open(&plan, sends, receives, &end_));
  }
  ~Iceoryx2End() override { farcall_iceoryx2_close(end_); }
  void send(std::span<const std::byte> message) override {
    check(farcall_iceoryx2_send(end_, message.data(), message.size()));
  }
  void receive(std::span<std::byte> message) override {
    check(farcall_iceoryx2_receive(end_, message.data(), message.size()));
  }

 private:
  IceoryxEnd* end_ = nullptr;
};

// Their names begin with that of the folder.
void remove_memory(const fs::path& folder) {
  std::error_code error;  // there may be nothing
  const std::string prefix = folder.filename();
  for (fs::directory_iterator entry("/dev/shm", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with(prefix)) ::shm_unlink(("/" + name).c_str());
  }
}

std::size_t queue_for(const Conditions& conditions) {
  constexpr std::size_t kLeast = 2;  // its default
  constexpr std::size_t kMost = 4096;
  return std::clamp(messages_in(default_depth(conditions), conditions), kLeast, kMost);
}

class Iceoryx2Connection final : public Connection {
 public:
  Iceoryx2Connection(const Conditions& conditions, const RowInfo& row)
      : prefix_(fs::path(folder_.path()).filename().string() + "-"),
        plan_{.root = folder_.path().c_str(),
              .prefix = prefix_.c_str(),
              .message_bytes = conditions.message_bytes,
              .depth = queue_for(conditions),
              .readers = std::max(conditions.readers, 1U),
              .blocks = row.wait == "block",
              .overwrites = row.policy == "overwrite"},
        broadcast_(!row.policy.empty()) {}

  std::unique_ptr<Endpoint> open(Role role) override {
    if (broadcast_) return std::make_unique<Iceoryx2End>(plan_, kThere, nullptr);
    introduction_.take(role);
    const bool client = role == Role::client;
    auto end =
        std::make_unique<Iceoryx2End>(plan_, client ? kThere : kBack, client ? kBack : kThere);
    introduction_.meet();
    return end;
  }
  std::unique_ptr<Endpoint> open_reader(unsigned) override {
    return std::make_unique<Iceoryx2End>(plan_, nullptr, kThere);
  }

 private:
  const OwnFolder folder_{"farcall-iceoryx2-", remove_memory};
  std::string prefix_;
  IceoryxPlan plan_;
  bool broadcast_;
  Introduction introduction_;
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions& conditions, const farcall::compare::RowInfo& row) {
  return new farcall::compare::Iceoryx2Connection(conditions, row);
}
