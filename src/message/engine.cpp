// SPDX-License-Identifier: Apache-2.0
#include "message/engine.hpp"

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "farcall/error.hpp"
#include "message/pending_reply.hpp"
#include "process/process.hpp"

namespace farcall::message {
namespace {

struct Choice {
  std::vector<Engine*> engines;
  int error = 0;

  Choice() {
    const char* text = std::getenv("FARCALL_ENGINE");
    const std::string_view wanted = text == nullptr || *text == 0 ? "auto" : text;
    if (wanted == "kernel" || wanted == "auto")
      if (Engine* kernel = kernel_engine()) engines.push_back(kernel);
    if (wanted == "shared" || wanted == "auto") engines.push_back(&shared_engine());
    if (engines.empty()) error = wanted == "kernel" ? ENODEV : EINVAL;
  }
};

constinit process::MadeOnce<const Choice> choice;

}  // namespace

std::span<Engine* const> engines() {
  const Choice& chosen = choice.get();
  if (chosen.error != 0) throw SystemError(chosen.error, "FARCALL_ENGINE");
  return chosen.engines;
}

Engine& chosen_engine() { return *engines().front(); }

std::int64_t Channel::reply_receive(std::int64_t id, int status, Buffers reply, Buffers into,
                                    Deadline deadline, farcall_info* info, SignalCount since) {
  if (id != 0) {
    unless_gone([&] {
      Use use(id);
      unless_gone([&] { use->reply(status, 0, reply, use->is_of(*this)); });
      use.end();
    });
  }
  return receive(into, deadline, info, since);
}

}  // namespace farcall::message
