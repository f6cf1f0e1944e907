// SPDX-License-Identifier: Apache-2.0
//
// A directory that is gone with the test; where that is killed, with what scripts/test.sh has made
// for all of them.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace farcall::test {

class ScratchDirectory {
 public:
  explicit ScratchDirectory(mode_t mode = 0700) {
    const char* const folder = std::getenv("FARCALL_TEST_FOLDER");
    path_ = std::string(folder == nullptr ? "/tmp" : folder) + "/farcall-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr || ::chmod(path_.c_str(), mode) != 0)
      throw std::system_error(errno, std::system_category(), path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // A name for a file in it.
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  // The same, of a file that is there.
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }
  // Names of the files in it.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace farcall::test
