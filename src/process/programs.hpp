// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>
#include <vector>

namespace farcall::process {

// As execve(2) takes them: pointers to the words, which must outlive them, and a null.
inline std::vector<char*> arguments_of(const std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

// The first of these places at which there is a file that access(2) permits to be used so: seen
// from the directory of the program that this process executes, or absolute. Empty: there is none.
inline std::filesystem::path beside_program(std::initializer_list<std::filesystem::path> places,
                                            int access) {
  std::error_code none;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const std::filesystem::path& place : places)
    if (::access((here / place).c_str(), access) == 0) return here / place;
  return {};
}

}  // namespace farcall::process
