// SPDX-License-Identifier: Apache-2.0
//
// A directory for the files that doors are attached to, gone with the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace farcall::door::test {

class Sandbox {
 public:
  Sandbox() {
    char name[] = "/tmp/farcall-door-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    ::chmod(name, 0777);  // tests with other users work in it, too
    path_ = name;
  }
  ~Sandbox() { std::filesystem::remove_all(path_); }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Makes a file.
  [[nodiscard]] std::string file(const std::string& name, mode_t mode = 0644,
                                 const std::string& content = "what the door covers") const {
    std::string path = path_ + "/" + name;
    std::ofstream(path) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace farcall::door::test
