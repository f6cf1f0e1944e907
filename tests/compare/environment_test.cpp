// SPDX-License-Identifier: Apache-2.0
//
// What is measured does not depend on what the caller has set for the library.
#include "compare/environment.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "compare/preload_library.hpp"

namespace farcall::compare {
namespace {

// Runs in a process of its own, whose environment nobody else has. Returns its exit code.
template <class Body>
int elsewhere(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is(const char* variable, const char* value) {
  const char* const now = std::getenv(variable);
  return value == nullptr ? now == nullptr : now != nullptr && std::strcmp(now, value) == 0;
}

TEST(Environment, OfWhatIsMeasuredHasNoSettingsAndNoLibrary) {
  EXPECT_EQ(elsewhere([] {
              ::setenv("FARCALL_ENABLED", "no", 1);
              ::setenv("FARCALL_TCP", "no", 1);
              ::setenv("FARCALL_WAIT", "", 1);
              ::setenv("LD_PRELOAD", "/nowhere/libfarcall-preload.so.1:/nowhere/other.so", 1);
              ::setenv("NO_FARCALL_", "stays", 1);
              begin_without_library();
              const bool removed = is("FARCALL_ENABLED", nullptr) && is("FARCALL_TCP", nullptr) &&
                                   is("FARCALL_WAIT", nullptr);
              return removed && is("LD_PRELOAD", "/nowhere/other.so") && is("NO_FARCALL_", "stays")
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_EQ(elsewhere([] {
              ::setenv("LD_PRELOAD", "/nowhere/libfarcall-preload.so", 1);
              begin_without_library();
              return is("LD_PRELOAD", nullptr) ? 0 : 1;
            }),
            0);
}

TEST(Environment, TheLibraryIsTakenOutOfAListWhereverItIs) {
  EXPECT_EQ(without_library(""), "");
  EXPECT_EQ(without_library("libfarcall-preload.so"), "");
  EXPECT_EQ(without_library("/a/libfarcall-preload.so"), "");
  EXPECT_EQ(without_library("a.so:/a/libfarcall-preload.so b.so"), "a.so:b.so");
  EXPECT_EQ(without_library("/a/libfarcall-preload.so:/b/libfarcall-preload.so:c.so"), "c.so");
  EXPECT_EQ(without_library("/libfarcall-preload.so/a.so  b.so:"),
            "/libfarcall-preload.so/a.so  b.so:");
}

}  // namespace
}  // namespace farcall::compare
