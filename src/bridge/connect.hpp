// SPDX-License-Identifier: Apache-2.0
//
// How a connection comes about, or why it does not.
#pragma once

#include <nats/nats.h>

#include <string>
#include <string_view>

#include "bridge/bridge.hpp"

namespace farcall::bridge {

// Why a server could not be connected to.
struct Refusal {
  natsStatus status = NATS_NO_SERVER;
  std::string detail;   // what libnats says
  bool silent = false;  // it let its time pass
};

// What libnats said last to this thread.
std::string last_error();
// Throws BridgeError unless it went well.
void set(natsStatus status, const char* what);
// Whether it is part of the text, in capitals or not.
bool mentions(const std::string& text, std::string_view what);
// Throws BridgeError.
void set_security(natsOptions* options, const Config& config);
// Throws BridgeError, with the cause and the cure.
[[noreturn]] void connect_failed(const Config& config, const Refusal& refusal);

}  // namespace farcall::bridge
