// SPDX-License-Identifier: Apache-2.0
//
// What a bridge tells of itself: a channel that answers every message with it.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "bridge/bridge.hpp"
#include "bridge/statistics.hpp"

namespace farcall::bridge {

nlohmann::json describe(const Name& name, const Statistics& statistics);

class StatusChannel {
 public:
  // Throws BridgeError, also where another bridge has the name.
  StatusChannel(const std::string& name, std::function<std::string()> tell);
  ~StatusChannel();
  StatusChannel(const StatusChannel&) = delete;
  StatusChannel& operator=(const StatusChannel&) = delete;

 private:
  void run();

  const std::function<std::string()> tell_;
  int channel_ = -1;
  std::thread thread_;
};

}  // namespace farcall::bridge
