// SPDX-License-Identifier: Apache-2.0
//
// What the documentation says of channels, held against the library.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "docs/text.hpp"
#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {
namespace {

using test::contents;

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
TEST(ChannelDocs, TheGuidesQuoteTheirExamplesAsTheyAre) {
  for (const auto& [guide, least] :
       {std::pair("channels.md", 10U), std::pair("broadcast.md", 6U)}) {
    const auto lines = test::quoted_lines(contents(std::filesystem::path(DOCS) / "guide" / guide));
    EXPECT_GT(lines.size(), least);
    for (const auto& [example, line] : lines) {
      const std::string source =
          test::words_of(contents(std::filesystem::path(EXAMPLES) / example));
      EXPECT_NE(source.find(test::words_of(line)), std::string::npos) << example << ": " << line;
    }
  }
}

}  // namespace
}  // namespace farcall::channel
