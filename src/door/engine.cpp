// SPDX-License-Identifier: Apache-2.0
//
// Which engine the doors of this process are of.
#include "door/engine.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "farcall/error.hpp"
#include "process/per_process.hpp"

namespace farcall::door {
namespace {

enum class Wanted : std::uint8_t { shared, kernel, nonsense };

// What the environment says when the first door is made; later it is for children.
struct Choice {
  Wanted wanted = Wanted::nonsense;
  std::array<char, 40> word{};  // what it says, or as much as there is room for
  std::atomic<bool> told{false};

  Choice() noexcept {
    const char* text = std::getenv("FARCALL_ENGINE");
    const std::string_view said = text == nullptr || *text == 0 ? "auto" : text;
    // Shared memory needs nothing but the library on both sides.
    if (said == "auto" || said == "shared") wanted = Wanted::shared;
    if (said == "kernel") wanted = Wanted::kernel;
    said.copy(word.data(), word.size() - 1);
  }
};

// A line for whoever runs the program, once: the errno does not say what it is about.
void complain(Choice& choice, const char* cause, const char* cure) noexcept {
  if (choice.told.exchange(true, std::memory_order_relaxed)) return;
  std::array<char, 256> line;
  const int size =
      std::snprintf(line.data(), line.size(), "farcall-doors: FARCALL_ENGINE=%s%s; %s\n",
                    choice.word.data(), cause, cure);
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(size));
}

}  // namespace

Engine& engine() {
  Choice& choice = process::PerProcess<Choice>::here();
  if (choice.wanted == Wanted::shared) [[likely]]
    return shared_engine();
  if (choice.wanted == Wanted::nonsense) {
    complain(choice, " names no engine", "set it to auto, shared or kernel");
    throw SystemError(EINVAL, "FARCALL_ENGINE");
  }
  try {
    return kernel_engine();
  } catch (const SystemError& failure) {
    switch (failure.code().value()) {
      case ENOENT:
      case ENXIO:
      case ENODEV:
        complain(choice, ", but there is no /dev/door",
                 "load the module (modprobe stplr), or set FARCALL_ENGINE=shared");
        throw SystemError(ENODEV, "/dev/door");
      case EACCES:
      case EPERM:
        complain(choice, ", but this user may not open /dev/door",
                 "join the group stplr, or set FARCALL_ENGINE=shared");
        throw SystemError(EACCES, "/dev/door");
      default: throw;
    }
  }
}

}  // namespace farcall::door
