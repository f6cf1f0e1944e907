// SPDX-License-Identifier: Apache-2.0
//
// What programs that were linked with the library rest on: its symbols, and the types in its
// header.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace {

struct Finished {
  int status;
  std::string said;
};
Finished run(const std::string& command) {
  std::FILE* output = ::popen((command + " 2>&1").c_str(), "r");
  if (output == nullptr) return {-1, "popen"};
  std::string said;
  std::array<char, 4096> part;
  for (std::size_t size; (size = std::fread(part.data(), 1, part.size(), output)) > 0;)
    said.append(part.data(), size);
  return {::pclose(output), said};
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CAbi : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__x86_64__)
    GTEST_SKIP() << "the dump of the ABI is that of another machine";
#endif
    if (run("command -v abidw && command -v abidiff").status != 0)
      GTEST_SKIP() << "abigail-tools are not installed";
  }
  static Finished compare(const std::string& kept) {
    return run(BINDING "/abi.sh compare " LIBRARY " " + kept);
  }
};

TEST_F(CAbi, IsTheOneThatIsKept) {
  const Finished compared = compare(BINDING "/farcall-c.abi");
  EXPECT_EQ(compared.status, 0) << compared.said
                                << "if that is meant: bindings/c/abi.sh dump " LIBRARY;
}

// So that the one above can fail.
TEST_F(CAbi, AnotherOneIsNoticed) {
  const std::string kept = contents(BINDING "/farcall-c.abi");
  const std::array<std::pair<std::string, std::string>, 3> changes{{
      {"layout-offset-in-bits='64'", "layout-offset-in-bits='96'"},
      {"size-in-bits='192' is-struct", "size-in-bits='256' is-struct"},
      {"farcall_pipe_finish", "farcall_pipe_end"},
  }};
  for (const auto& [from, to] : changes) {
    std::string other = kept;
    for (std::size_t at = 0; (at = other.find(from, at)) != std::string::npos; at += to.size())
      other.replace(at, from.size(), to);
    ASSERT_NE(other, kept) << from;
    const std::string path = testing::TempDir() + "c-" + std::to_string(::getpid()) + ".abi";
    std::ofstream(path) << other;
    EXPECT_NE(compare(path).status, 0) << from;
    EXPECT_EQ(std::remove(path.c_str()), 0);
  }
}

std::set<std::string> declared() {
  const std::string header = contents(HEADER);
  const std::regex declaration("\n[a-z][a-z_0-9 ]*[ *]+(farcall_[a-z_]+)\\([^;]*;");
  std::set<std::string> all;
  for (std::sregex_iterator found(header.begin(), header.end(), declaration), end; found != end;
       ++found)
    all.insert((*found)[1]);
  return all;
}

TEST(CSymbols, AreThoseThatTheHeaderDeclares) {
  std::istringstream symbols(run("nm -D --defined-only --format=posix " LIBRARY).said);
  std::set<std::string> exported;
  std::string name;
  std::string type;
  for (std::string rest; symbols >> name >> type && std::getline(symbols, rest);) {
    if (type == "A") continue;  // the version
    EXPECT_TRUE(name.ends_with("@@FARCALL_C_0.1")) << name;
    exported.insert(name.substr(0, name.find('@')));
  }
  EXPECT_EQ(exported, declared());
}

}  // namespace
