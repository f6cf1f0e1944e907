// SPDX-License-Identifier: Apache-2.0
//
// Names of the cluster as servers of this machine.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "bridge/calls.hpp"
#include "bridge/ticker.hpp"

namespace farcall::bridge {

// A name that is served here while it lives.
class ImportedServer {
 public:
  virtual ~ImportedServer() = default;
  // No calls come any more; those in progress go on. They have to end before it is destroyed.
  virtual void close() = 0;
};

// What all imported names share.
struct ImportContext {
  Calls& calls;
  Ticker& ticker;
};

// Whether that user may call. The overflow id, which stands for everybody without a number here, is
// in no list.
bool may_call(const Imported& name, uid_t user) noexcept;

// At most so many calls of imported doors are in progress.
void limit_door_calls(unsigned number) noexcept;
// To be called often: others serve where the threads that do have come to wait. Whether any is
// busy.
bool look_after_door_threads() noexcept;
// Throws BridgeError.
std::unique_ptr<ImportedServer> import_door(Imported& name, ImportContext context);
std::unique_ptr<ImportedServer> import_channel(Imported& name, ImportContext context);

}  // namespace farcall::bridge
