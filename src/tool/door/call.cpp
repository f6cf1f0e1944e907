// SPDX-License-Identifier: Apache-2.0
//
// farcall door call: standard input to a door, its reply to standard output.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include "farcall/door.hpp"
#include "tool/door/door.hpp"
#include "tool/door/status.hpp"
#include "tool/exit_code.hpp"
#include "tool/say.hpp"
#include "tool/standard_input.hpp"

namespace farcall::tool::door {
namespace {

void wait_for_door(const std::string& path, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  struct stat status {};
  while (::stat(path.c_str(), &status) != 0 || !S_ISDOOR(status.st_mode)) {
    if (std::chrono::steady_clock::now() >= deadline) return;  // opening it says what is wrong
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

int call(const Call& call) {
  // Before the door is opened: that its server ends meanwhile is then noticed.
  const std::string request = call.data ? *call.data : standard_input();
  if (call.wait_s > 0) wait_for_door(call.path, call.wait_s);
  DoorResult result = Door::open(call.path).call(request);

  const std::string_view text = result.text();
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw DoorError(errno, "write standard output");
  int exit_code = kSuccess;
  for (const DoorDescriptor& descriptor : result.descriptors()) {
    if (const auto status = read_status(descriptor.get())) {
      say("farcall: {}: the command {}\n", call.path, *status);
      exit_code = kFailure;
    } else {
      say("farcall: {}: closed a descriptor that came with the reply\n", call.path);
    }
  }
  return exit_code;
}

}  // namespace farcall::tool::door
