// SPDX-License-Identifier: Apache-2.0
//
// What the documentation says of doors, held against the headers and the examples.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "docs/text.hpp"

namespace farcall::test {
namespace {

// The functions that a header declares.
std::set<std::string> functions_of(const std::string& header) {
  const std::string text = contents(COMPAT "/" + header);
  EXPECT_FALSE(text.empty()) << header;
  const std::regex declaration("\n[a-z][a-z_ ]*[ *]+([a-z_]+)\\([^;]*;");
  std::set<std::string> functions;
  for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
       ++found)
    if (!(*found)[0].str().starts_with("\ntypedef")) functions.insert((*found)[1]);
  return functions;
}

std::string page_of(const std::string& name) {
  std::string page = contents(DOCS "/man/man3/" + name + ".3");
  constexpr std::string_view kElsewhere = ".so man3/";
  if (page.starts_with(kElsewhere))
    page = contents(DOCS "/man/" + page.substr(4, page.find('\n') - 4));
  return page;
}

void expect_pages(const std::string& header, std::size_t at_least) {
  const auto functions = functions_of(header);
  EXPECT_GE(functions.size(), at_least);
  for (const std::string& function : functions) {
    const std::string page = page_of(function);
    EXPECT_TRUE(page.find(".Fn " + function + " ") != std::string::npos ||
                page.find(".Fo " + function + "\n") != std::string::npos)
        << function;
  }
}

TEST(DoorDocs, EveryFunctionOfDoorsHasAManPage) { expect_pages("door.h", 15); }
TEST(DoorDocs, EveryFunctionOfCredentialsHasAManPage) { expect_pages("ucred.h", 10); }
TEST(DoorDocs, EveryFunctionOfThePlainLibraryHasAManPage) { expect_pages("../doors.h", 1); }
TEST(DoorDocs, EveryFunctionOfThreadsHasAManPage) { expect_pages("thread.h", 20); }

TEST(DoorDocs, ThePageOfLocksHasThemAll) {
  const std::string page = page_of("synch");
  const auto functions = functions_of("synch.h");
  EXPECT_GE(functions.size(), 25U);
  for (const std::string& function : functions)
    EXPECT_NE(page.find(".Fn " + function + " "), std::string::npos) << function;
}

// The library with nothing else has the functions of doors and credentials, as the other has.
TEST(DoorDocs, PagesNameBothLibraries) {
  for (const char* header : {"door.h", "ucred.h", "../doors.h"})
    for (const std::string& function : functions_of(header)) {
      const std::string page = page_of(function);
      const std::size_t library = page.find(".Sh LIBRARY\n");
      ASSERT_NE(library, std::string::npos) << function;
      const std::string names = page.substr(library, page.find(".Sh SYNOPSIS\n") - library);
      EXPECT_TRUE(std::regex_search(names, std::regex("libfarcall-doors[ ,;]"))) << function;
      EXPECT_TRUE(std::regex_search(names, std::regex("libfarcall-doors-plain[ ,;\n]")))
          << function;
    }
}

TEST(DoorDocs, PagesHaveTheirSectionsInOneOrder) {
  int pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DOCS "/man/man3")) {
    const std::string page = contents(entry.path());
    if (page.find("libfarcall-doors") == std::string::npos) continue;
    ++pages;
    std::size_t at = 0;
    for (const char* section : {"NAME", "LIBRARY", "SYNOPSIS", "DESCRIPTION", "RETURN VALUES",
                                "ERRORS", "LINUX NOTES", "EXAMPLES", "SEE ALSO"}) {
      at = page.find(".Sh " + std::string(section) + "\n", at);
      ASSERT_NE(at, std::string::npos) << entry.path() << ": " << section;
    }
  }
  EXPECT_GE(pages, 15);
}

TEST(DoorDocs, ReferencesAmongOurPagesLeadSomewhere) {
  const std::regex reference("\n\\.Xr ([a-z_-]+) ([137])");
  int references = 0;
  for (const char* section : {"1", "3", "7"}) {
    const auto folder = std::filesystem::path(DOCS "/man/man" + std::string(section));
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string page = contents(entry.path());
      for (std::sregex_iterator found(page.begin(), page.end(), reference), end; found != end;
           ++found) {
        std::string name = (*found)[1];
        if (!name.starts_with("door") && !name.starts_with("farcall") && !name.starts_with("thr_"))
          continue;
        ++references;
        const std::string number = (*found)[2];
        const auto place =
            std::filesystem::path(DOCS "/man/man" + number) / name.append(".").append(number);
        EXPECT_TRUE(std::filesystem::exists(place)) << entry.path() << ": " << name;
      }
    }
  }
  EXPECT_GT(references, 60);
}

TEST(DoorDocs, TheGuideQuotesItsExamplesAsTheyAre) {
  const auto lines = quoted_lines(contents(DOCS "/guide/doors.md"));
  EXPECT_GT(lines.size(), 20U);
  for (const auto& [example, line] : lines) {
    const std::string source = words_of(contents(std::filesystem::path(EXAMPLES) / example));
    EXPECT_NE(source.find(words_of(line)), std::string::npos) << example << ": " << line;
  }
}

}  // namespace
}  // namespace farcall::test
