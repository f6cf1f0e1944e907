// SPDX-License-Identifier: Apache-2.0
#include "compare/preload_library.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "farcall/error.hpp"

namespace farcall::compare {

std::string find_library() {
  std::error_code none;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  if (none)
    throw SystemError(none.value(),
                      "read /proc/self/exe, beside which the library is looked for "
                      "(mount -t proc proc /proc)");
  for (const auto& place : {here / "src/preload", here / ".." / FARCALL_LIBDIR / "farcall",
                            std::filesystem::path(FARCALL_FULL_LIBDIR) / "farcall"}) {
    std::error_code unreachable;  // then it is not there
    if (!std::filesystem::is_regular_file(place / kLibraryName, unreachable)) continue;
    const std::string path = std::filesystem::canonical(place / kLibraryName);
    if (path.find_first_of(" :\t\n") != std::string::npos)
      throw SystemError(EINVAL, fmt::format("preload {} (the dynamic linker takes no path with "
                                            "blanks or colons)",
                                            path));
    return path;
  }
  throw SystemError(ENOENT, fmt::format("find {} (looked beside {} and in {}/farcall)",
                                        kLibraryName, here.string(), FARCALL_FULL_LIBDIR));
}

std::string why_no_library() {
  try {
    find_library();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string preload_list(const std::string& library) {
  const char* const others = std::getenv("LD_PRELOAD");
  if (others == nullptr || *others == '\0') return library;
  const std::string list(others);
  // One `farcall run` inside another.
  if ((":" + list + ":").find(":" + library + ":") != std::string::npos) return list;
  return library + ":" + list;
}

std::string without_library(const std::string& list) {
  constexpr const char* kBetween = ": \t\n";
  std::string others;
  bool found = false;
  for (std::size_t at = 0; (at = list.find_first_not_of(kBetween, at)) != std::string::npos;) {
    const std::string path = list.substr(at, list.find_first_of(kBetween, at) - at);
    at += path.size();
    if (path.substr(path.rfind('/') + 1).starts_with(kLibraryName))
      found = true;
    else
      others += (others.empty() ? "" : ":") + path;
  }
  return found ? others : list;
}

}  // namespace farcall::compare
