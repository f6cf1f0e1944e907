// SPDX-License-Identifier: Apache-2.0
//
// A directory for the files that doors are attached to, gone with the test; where that is killed,
// with what scripts/test.sh has made for all of them.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace farcall::test {

class Sandbox {
 public:
  Sandbox() {
    const char* const folder = std::getenv("FARCALL_TEST_FOLDER");
    path_ = std::string(folder == nullptr ? "/tmp" : folder) + "/farcall-door-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
    ::chmod(path_.c_str(), 0777);  // tests with other users work in it, too
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

}  // namespace farcall::test
