// SPDX-License-Identifier: Apache-2.0
#include "compare/environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "compare/preload_library.hpp"
#include "farcall/error.hpp"
#include "observe/tap.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kPreload = "LD_PRELOAD";

std::string contents(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void remove_settings() {
  constexpr std::string_view kPrefix = "FARCALL_";
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    // Who captures this has asked for what that costs.
    if (text.starts_with(kPrefix) && !text.starts_with(observe::kTapVariable))
      names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names)
    if (::unsetenv(name.c_str()) != 0) throw_errno("unsetenv " + name);
}

// Returns whether it was there.
bool remove_library() {
  const char* const value = std::getenv(kPreload);
  if (value == nullptr) return false;
  const std::string before(value);
  const std::string others = without_library(before);
  if (others == before) return false;
  if ((others.empty() ? ::unsetenv(kPreload) : ::setenv(kPreload, others.c_str(), 1)) != 0)
    throw_errno("setenv LD_PRELOAD");
  return true;
}

[[noreturn]] void execute_anew() {
  std::string text = contents("/proc/self/cmdline");
  std::vector<char*> words;
  for (std::size_t at = 0; at < text.size(); at += std::strlen(&text[at]) + 1)
    words.push_back(&text[at]);
  words.push_back(nullptr);
  ::execv("/proc/self/exe", words.data());
  throw_errno("execute farcall without the library");
}

}  // namespace

void begin_without_library() {
  remove_settings();
  const bool removed = remove_library();
  if (contents("/proc/self/maps").find(std::string("/") + kLibraryName) == std::string::npos)
    return;
  if (removed) execute_anew();
  throw std::runtime_error(
      "the preload library is loaded into every program here, and so into what it would be "
      "compared with (see /etc/ld.so.preload)");
}

}  // namespace farcall::compare
