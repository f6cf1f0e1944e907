// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that are passed, as programs see them.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "door/door.hpp"
#include "door/pages.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

namespace farcall::door {

void hand_out(ReceivedFds& descriptors, door_desc_t* into) {
  for (UniqueFd& descriptor : descriptors) {
    const int fd = descriptor.release();
    ::fcntl(fd, F_SETFD, 0);
    *into = {};
    into->d_attributes = DOOR_DESCRIPTOR;
    into->d_data.d_desc.d_descriptor = fd;
    if (const auto door = door_behind(fd)) door->describe(fd, *into);
    ++into;
  }
}

namespace {

// A user who has all the descriptors that one may have here is one whose table is full.
UniqueFd branch_for(Door& door, std::optional<uid_t> user) {
  try {
    return door.branch(user);
  } catch (const SystemError& error) {
    if (error.code().value() != EAGAIN) throw;
    throw SystemError(EMFILE, "pass a door");
  }
}

}  // namespace

int Outgoing::add(const door_desc_t* descriptors, std::size_t count) {
  if (count == 0) return 0;
  if (count > SIZE_MAX / sizeof *descriptors || !readable(descriptors, count * sizeof *descriptors))
    return EFAULT;
  int error = 0;
  for (const door_desc_t& descriptor : std::span(descriptors, count)) {
    const int fd = descriptor.d_data.d_desc.d_descriptor;
    if ((descriptor.d_attributes & DOOR_DESCRIPTOR) == 0 || ::fcntl(fd, F_GETFD) < 0) {
      error = EINVAL;
      continue;
    }
    sent_.push_back(fd);
    if ((descriptor.d_attributes & DOOR_RELEASE) != 0) release_.push_back(fd);
  }
  return error;
}

void Outgoing::prepare(std::optional<uid_t> user) {
  if (std::exchange(prepared_, true)) return;
  for (int& fd : sent_) {
    if (!known(fd) && !read_name(fd)) continue;
    const auto handle = Process::here().find(fd);
    const auto door = handle ? handle->local.lock() : nullptr;
    if (!door) continue;
    branches_.push_back(branch_for(*door, user));
    fd = branches_.back().get();
  }
}

void Outgoing::release() noexcept {
  branches_.clear();
  // One that is named twice is closed once: its number may be somebody else's by then.
  std::ranges::sort(release_);
  release_.erase(std::ranges::unique(release_).begin(), release_.end());
  for (const int fd : release_) (void)closing(fd, [fd] { return real::close(fd); });
}

int release_all(const door_desc_t* descriptors, std::size_t count) {
  Outgoing outgoing;
  const int error = outgoing.add(descriptors, count);
  outgoing.release();
  return error;
}

}  // namespace farcall::door
