// SPDX-License-Identifier: Apache-2.0
//
// What the documentation says of channels, held against the library.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string words_of(std::string text) {
  std::istringstream in(text);
  text.clear();
  for (std::string word; in >> word;) text += word + " ";
  return text;
}

TEST(ChannelDocs, TheManPageHasTheRightPropertiesOfEveryMechanism) {
  const std::string page = contents(DOCS "/man/man7/farcall-channels.7");
  for (const AnyMechanism& mechanism : all_mechanisms()) {
    const Properties& properties = mechanism.properties();
    const auto yes_or_no = [](bool yes) { return yes ? "yes" : "no"; };
    const std::string line = "\n.It " + std::string(properties.name) + " Ta " +
                             (properties.boundaries ? "messages" : "stream") + " Ta " +
                             yes_or_no(properties.by_name) + " Ta " +
                             yes_or_no(properties.notices_death) + " Ta ";
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

TEST(ChannelDocs, TheGuideHasASectionForEveryMechanism) {
  const std::string guide = contents(DOCS "/guide/channels.md");
  for (const AnyMechanism& mechanism : all_mechanisms()) {
    const std::string name = "(`" + std::string(mechanism.properties().name) + "`)\n";
    EXPECT_NE(guide.find(name), std::string::npos) << name;
  }
}

// A piece of code in the guide follows the name of the example that it is taken from. Each of its
// lines is there, except those that are comments.
TEST(ChannelDocs, TheGuideQuotesItsExamplesAsTheyAre) {
  std::istringstream guide(contents(DOCS "/guide/channels.md"));
  std::string example;
  int quoted = 0;
  bool in_code = false;
  for (std::string line; std::getline(guide, line);) {
    if (const auto place = line.find("`examples/"); place != std::string::npos) {
      const std::string name = line.substr(place + 10, line.find('`', place + 1) - place - 10);
      example = words_of(contents(std::filesystem::path(EXAMPLES) / name));
      EXPECT_FALSE(example.empty()) << name;
    }
    if (line.starts_with("```")) {
      in_code = line == "```cpp";
    } else if (in_code && !line.starts_with("//")) {
      EXPECT_NE(example.find(words_of(line)), std::string::npos) << line;
      ++quoted;
    }
  }
  EXPECT_GT(quoted, 10);
}

}  // namespace
}  // namespace farcall::channel
