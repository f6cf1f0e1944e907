// SPDX-License-Identifier: Apache-2.0
//
// A file, a door to attach to it, and what the path is then.
#pragma once

#include <fcntl.h>
#include <stropts.h>

#include "door/scoped_server.hpp"
#include "harness/sandbox.hpp"

namespace farcall::door::test {

inline constexpr const char* kContent = "what the door covers";

inline std::string content_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
// What an open of the path gives: "door" with this id, or "file".
inline bool opens_as(const std::string& path, door_id_t id, int flags = O_RDONLY) {
  const UniqueFd fd(::open(path.c_str(), flags));
  EXPECT_GE(fd.get(), 0) << path << ": " << std::strerror(errno);
  door_info_t info{};
  return ::door_info(fd.get(), &info) == 0 && info.di_uniquifier == id &&
         call(fd.get(), "x").data == "x";
}
inline bool opens_as_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY));
  EXPECT_GE(fd.get(), 0) << path << ": " << std::strerror(errno);
  door_info_t info{};
  return ERROR_OF(::door_info(fd.get(), &info)) == EBADF && error_of(fd.get()) == EBADF;
}

struct DoorAttach : ::testing::Test {
  Sandbox sandbox;
  std::string path = sandbox.file("door");
  int door = ::door_create(echo, nullptr, 0);
};

}  // namespace farcall::door::test
