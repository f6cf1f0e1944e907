// SPDX-License-Identifier: Apache-2.0
//
// What the documentation says of the C interface, held against the header.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "docs/text.hpp"

namespace farcall::test {
namespace {

std::string header() { return contents(COMPAT "/../farcall.h"); }

std::string all_pages() {
  return contents(DOCS "/man/man3/farcall_pipe.3") +
         contents(DOCS "/man/man3/farcall_publisher.3") +
         contents(DOCS "/man/man3/farcall_server.3") +
         contents(DOCS "/man/man3/farcall_client_begin.3");
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::set<std::string> all;
  for (std::sregex_iterator found(text.begin(), text.end(), expression), end; found != end; ++found)
    all.insert((*found)[1]);
  return all;
}

TEST(CDocs, EveryFunctionHasAManPage) {
  const auto all = matches(header(), "\n[a-z][a-z_0-9 ]*[ *]+(farcall_[a-z_]+)\\([^;]*;");
  EXPECT_GE(all.size(), 30U);
  for (const std::string& function : all) {
    std::string page = contents(DOCS "/man/man3/" + function + ".3");
    if (page.starts_with(".so man3/"))
      page = contents(DOCS "/man/" + page.substr(4, page.find('\n') - 4));
    EXPECT_NE(page.find(".Fn " + function + " "), std::string::npos) << function;
    EXPECT_NE(page.find(".Nm " + function), std::string::npos) << function;
  }
}

TEST(CDocs, EveryErrorOfTheHeaderIsInAManPage) {
  const std::string pages = all_pages();
  const auto errors = matches(header(), "-(E[A-Z]+)");
  EXPECT_GE(errors.size(), 15U);
  for (const std::string& error : errors)
    EXPECT_TRUE(std::regex_search(pages, std::regex("\n\\.It Er ([A-Z]+ , )*" + error + "\\b")))
        << error;
}

TEST(CDocs, EveryConstantIsInAManPage) {
  const std::string pages = all_pages();
  for (const std::string& constant : matches(header(), "\n  (FARCALL_[A-Z_]+) = "))
    EXPECT_NE(pages.find(constant), std::string::npos) << constant;
}

}  // namespace
}  // namespace farcall::test
