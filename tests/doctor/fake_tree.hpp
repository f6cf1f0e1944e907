// SPDX-License-Identifier: Apache-2.0
//
// A directory with files as /proc and /sys have them, of a machine that may be any.
#pragma once

#include <string>
#include <string_view>

#include "doctor/finding.hpp"
#include "doctor/tree.hpp"
#include "harness/scratch.hpp"

namespace farcall::test {

class FakeTree {
 public:
  // Paths begin with a slash; directories are made.
  FakeTree& file(const std::string& path, std::string_view contents);
  FakeTree& link(const std::string& path, const std::string& target);
  // A process in which nothing is wrong: status, stat, maps with the library, limits.
  FakeTree& process(int pid, const std::string& name);
  // A line of /proc/PID/maps, and a descriptor.
  FakeTree& maps(int pid, const std::string& line);
  FakeTree& descriptor(int pid, int fd, const std::string& target);

  [[nodiscard]] doctor::Tree tree() const { return doctor::Tree(root_.path()); }

 private:
  ScratchDirectory root_;
};

// Of /proc/PID/status: the value of one field is another.
std::string status_of(int pid, const std::string& name, const std::string& changed_field = {},
                      const std::string& value = {});

// Of /proc/PID/stat.
std::string stat_of(int pid, const std::string& name, int nice, int policy);

const doctor::Finding* find(const doctor::Findings& findings, std::string_view id);
// Their identifiers, for messages of tests.
std::string ids(const doctor::Findings& findings);
// Whether all of them say what, why and what to do, in sentences.
void expect_sentences(const doctor::Findings& findings);

}  // namespace farcall::test
