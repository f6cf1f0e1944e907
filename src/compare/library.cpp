// SPDX-License-Identifier: Apache-2.0
#include "compare/library.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kName = "libfarcall-preload.so";

}  // namespace

std::string find_library() {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& place : {here / "src/preload", here / ".." / FARCALL_LIBDIR / "farcall",
                            std::filesystem::path(FARCALL_FULL_LIBDIR) / "farcall"}) {
    std::error_code unreachable;  // then it is not there
    if (!std::filesystem::is_regular_file(place / kName, unreachable)) continue;
    const std::string path = std::filesystem::canonical(place / kName);
    if (path.find_first_of(" :\t\n") != std::string::npos)
      throw SystemError(EINVAL, fmt::format("preload {} (the dynamic linker takes no path with "
                                            "blanks or colons)",
                                            path));
    return path;
  }
  throw SystemError(ENOENT, fmt::format("find {} (looked beside {} and in {}/farcall)", kName,
                                        here.string(), FARCALL_FULL_LIBDIR));
}

std::string preload_list(const std::string& library) {
  const char* const others = std::getenv("LD_PRELOAD");
  if (others == nullptr || *others == '\0') return library;
  const std::string list(others);
  // One `farcall run` inside another.
  if ((":" + list + ":").find(":" + library + ":") != std::string::npos) return list;
  return library + ":" + list;
}

}  // namespace farcall::compare
