// SPDX-License-Identifier: Apache-2.0
//
// What tests of `farcall capture` share, with tshark as who reads what it writes.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "harness/scratch.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {

inline const std::string kTalk = std::string(FARCALL_COMMAND) + " run -- " CAPTURE_TALK " ";

inline bool has_tshark() { return ::system("command -v tshark > /dev/null") == 0; }

inline std::string tshark(const std::string& file, const std::string& arguments) {
  return output_of("tshark -r " + file + " " + arguments + " 2>/dev/null");
}

struct Talked {
  std::string port;
  std::size_t sent = 0;
  std::size_t received = 0;
};
inline std::vector<Talked> read_talked(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Talked> all;
  for (Talked one; lines >> one.port >> one.sent >> one.received;) all.push_back(one);
  return all;
}

// "lost: N messages"
inline std::uint64_t lost(const Finished& finished) {
  const std::size_t at = finished.err.find("lost: ");
  return at == std::string::npos ? UINT64_MAX : std::stoull(finished.err.substr(at + 6));
}

// As the statistics of the interfaces in the file say.
inline std::uint64_t dropped(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 12 <= bytes.size() && word(at + 4) >= 12; at += word(at + 4)) {
    if (word(at) != 5) continue;
    for (std::size_t option = at + 20; word(option) != 0;) {
      const std::uint32_t head = word(option);
      if ((head & 0xffff) == 5) sum += word(option + 4);
      option += 4 + ((head >> 16) + 3) / 4 * 4;
    }
  }
  return sum;
}

inline std::size_t size_of(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

class Capture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_tshark()) GTEST_SKIP() << "tshark is not installed";
  }
  [[nodiscard]] std::string file() const { return directory_.file("capture.pcapng"); }
  Finished capture(const std::string& talk, const std::string& filter = "tcp or udp") const {
    return run_farcall({"capture", "-w", file(), "-x", kTalk + talk, filter});
  }
  // Where the command itself had no processor for seconds it has lost something, and says so.
  [[nodiscard]] Finished capture_all(const std::string& talk) const {
    Finished finished = capture(talk);
    for (int i = 0; i < 5 && finished.code == 0 && lost(finished) != 0; ++i)
      finished = capture(talk);
    return finished;
  }

  ScratchDirectory directory_;
};

}  // namespace farcall::test
