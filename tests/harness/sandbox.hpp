// SPDX-License-Identifier: Apache-2.0
//
// A directory for the files that doors are attached to.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "harness/scratch.hpp"

namespace farcall::test {

class Sandbox : public ScratchDirectory {
 public:
  Sandbox() : ScratchDirectory(0777) {}  // tests with other users work in it, too
  // Makes a file.
  [[nodiscard]] std::string file(const std::string& name, mode_t mode = 0644,
                                 const std::string& content = "what the door covers") const {
    std::string path = write(name, content);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
};

}  // namespace farcall::test
