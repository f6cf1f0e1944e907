// SPDX-License-Identifier: Apache-2.0
//
// What the documentation says of messages, held against the header.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "docs/text.hpp"

namespace farcall::test {
namespace {

std::set<std::string> functions() {
  const std::string text = contents(COMPAT "/../message.h");
  const std::regex declaration("\n[a-z][a-z_0-9 ]*[ *]+(farcall_[a-z_]+)\\([^;]*;");
  std::set<std::string> all;
  for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
       ++found)
    all.insert((*found)[1]);
  return all;
}

TEST(MessageDocs, EveryFunctionHasAManPage) {
  const auto all = functions();
  EXPECT_GE(all.size(), 30U);
  for (const std::string& function : all) {
    std::string page = contents(DOCS "/man/man3/" + function + ".3");
    if (page.starts_with(".so man3/"))
      page = contents(DOCS "/man/" + page.substr(4, page.find('\n') - 4));
    EXPECT_TRUE(page.find(".Fn " + function + " ") != std::string::npos ||
                page.find(".Fo " + function + "\n") != std::string::npos)
        << function;
  }
}

TEST(MessageDocs, TheGuideNamesTheCallsThatThereAre) {
  const std::string guide = contents(DOCS "/guide/messages.md");
  const auto all = functions();
  const std::regex call("`(farcall_[a-z_]+)");
  int named = 0;
  for (std::sregex_iterator found(guide.begin(), guide.end(), call), end; found != end; ++found) {
    ++named;
    EXPECT_TRUE(all.contains((*found)[1])) << (*found)[1];
  }
  EXPECT_GE(named, 20);
}

}  // namespace
}  // namespace farcall::test
