// SPDX-License-Identifier: Apache-2.0
#include "tool/door/status.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "farcall/memory.hpp"

namespace farcall::tool::door {
namespace {

constexpr std::string_view kExit = "farcall door: exit ";
constexpr std::string_view kSignal = "farcall door: signal ";

}  // namespace

DoorDescriptor make_status(int wait_status) {
  DoorDescriptor file(::memfd_create("farcall-door-status", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw DoorError(errno, "memfd_create");
  const std::string text = WIFEXITED(wait_status)
                               ? fmt::format("{}{}\n", kExit, WEXITSTATUS(wait_status))
                               : fmt::format("{}{}\n", kSignal, WTERMSIG(wait_status));
  const FileSizeGuard guard;
  if (::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0)
    throw DoorError(errno, "write the status of the command");
  return file;
}

std::optional<std::string> read_status(int fd) {
  // Only memory files have seals, and reading one never waits.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0) return std::nullopt;
  std::array<char, 64> bytes{};
  const ssize_t size = ::pread(fd, bytes.data(), bytes.size(), 0);
  if (size <= 0) return std::nullopt;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(size));
  for (const std::string_view kind : {kExit, kSignal}) {
    if (!text.starts_with(kind)) continue;
    int number = 0;
    const auto [end, error] =
        std::from_chars(text.data() + kind.size(), text.data() + text.size(), number);
    if (error != std::errc() || std::string_view(end, text.data() + text.size()) != "\n")
      return std::nullopt;
    return kind == kExit ? fmt::format("exited with {}", number)
                         : fmt::format("was ended by signal {} ({})", number, ::strsignal(number));
  }
  return std::nullopt;
}

}  // namespace farcall::tool::door
