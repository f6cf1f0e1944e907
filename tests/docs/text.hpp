// SPDX-License-Identifier: Apache-2.0
//
// Documentation as text to look into.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace farcall::test {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Its words, each followed by one space.
inline std::string words_of(const std::string& text) {
  std::istringstream in(text);
  std::string words;
  for (std::string word; in >> word;) words += word + " ";
  return words;
}

// The lines of code in a guide, in its blocks of C and C++, without comments; each with the name of
// the example that was mentioned last before.
inline std::vector<std::pair<std::string, std::string>> quoted_lines(const std::string& guide) {
  std::istringstream in(guide);
  std::vector<std::pair<std::string, std::string>> lines;
  std::string example;
  bool in_code = false;
  for (std::string line; std::getline(in, line);) {
    if (const auto place = line.find("`examples/"); place != std::string::npos)
      example = line.substr(place + 10, line.find('`', place + 1) - place - 10);
    if (line.starts_with("```"))
      in_code = line == "```cpp" || line == "```c";
    else if (in_code && !line.starts_with("//"))
      lines.emplace_back(example, line);
  }
  return lines;
}

}  // namespace farcall::test
