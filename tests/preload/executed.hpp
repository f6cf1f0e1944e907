// SPDX-License-Identifier: Apache-2.0
//
// For tests that execute this program again, with other variables, to play a role.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

inline constexpr const char* kRole = "CALLS_TEST_ROLE";

// If this program was executed for that role, does its work and exits with what that returns. To
// be called before any test runs.
template <class Work>
void play_role(const char* role, Work work) {
  const char* const wanted = std::getenv(kRole);
  if (wanted != nullptr && std::strcmp(wanted, role) == 0) ::_exit(work());
}

// Executes this program again as `role`, see play_role(), having done what is to be done `before`.
// Returns how it ended, and what it said.
struct Ended {
  int status;
  std::string said;
};

inline Ended execute_as(const std::string& role, std::vector<std::string> variables,
                        void (*before)() = nullptr) {
  if (std::getenv(kRole) != nullptr) std::abort();  // nobody has played it
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::dup2(in.get(), STDERR_FILENO);
    ::setenv(kRole, role.c_str(), 1);
    for (std::string& variable : variables) ::putenv(variable.data());
    char program[] = "/proc/self/exe";
    char option[] = "--unix";
    char* const arguments[] = {program, over_unix() ? option : nullptr, nullptr};
    if (before != nullptr) before();
    ::execv(program, arguments);
    ::_exit(127);
  }
  in.reset();
  Ended ended{};
  char bytes[512];
  ssize_t got;
  while ((got = ::read(out.get(), bytes, sizeof bytes)) > 0)
    ended.said.append(bytes, static_cast<std::size_t>(got));
  ended.status = exit_status(child);
  return ended;
}

}  // namespace farcall::preload
