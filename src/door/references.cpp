// SPDX-License-Identifier: Apache-2.0
#include "door/references.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "door/door.hpp"
#include "memory/to_number.hpp"
#include "process/background.hpp"
#include "process/process.hpp"

namespace farcall::door {

OwnSockets::OwnSockets() {
  const auto examine = [this](int fd) {
    if (process::is_private(fd)) return;
    if (const std::uint64_t socket = socket_cookie(fd)) all_.push_back({socket, fd});
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), ::closedir);
  if (directory) {
    while (const dirent* entry = ::readdir(directory.get()))
      if (const auto fd = to_number<int>(entry->d_name)) examine(*fd);
  } else {
    // The table is full, so few numbers are none.
    const long count = ::sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < count; ++fd) examine(fd);
  }
  std::ranges::sort(all_, {}, &Entry::socket);
}

std::span<const OwnSockets::Entry> OwnSockets::of(std::uint64_t socket) const {
  return std::ranges::equal_range(all_, socket, {}, &Entry::socket);
}

void ReferenceChecks::add(std::shared_ptr<Door> door) noexcept {
  try {
    process::PerProcess<ReferenceChecks>::here().start(std::move(door));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): told at the next occasion
  }
}

void ReferenceChecks::add_again(const std::shared_ptr<Door>& door) noexcept {
  try {
    auto& here = process::PerProcess<ReferenceChecks>::here();
    const std::lock_guard guard(here.lock_);
    if (here.working_) here.waiting_.insert(door);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): told at the next occasion
  }
}

void ReferenceChecks::start(std::shared_ptr<Door> door) {
  {
    const std::lock_guard guard(lock_);
    waiting_.insert(std::move(door));
    if (std::exchange(working_, true)) return;
  }
  if (!leave_to_thread()) work();
}

void ReferenceChecks::work() noexcept {
  do check_some();
  while (!finished() && !leave_to_thread());
}

// Some at a time: what was seen of the program's descriptors is to be so still.
void ReferenceChecks::check_some() noexcept {
  std::array<std::shared_ptr<Door>, 64> doors;
  std::size_t count = 0;
  {
    const std::lock_guard guard(lock_);
    while (!waiting_.empty() && count < doors.size())
      doors[count++] = std::move(waiting_.extract(waiting_.begin()).value());
  }
  try {
    const OwnSockets sockets;
    for (const auto& door : std::span(doors).first(count))
      door->check_references(sockets.of(door->primary()).size());
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): told at the next occasion
  }
}

bool ReferenceChecks::finished() noexcept {
  const std::lock_guard guard(lock_);
  if (!waiting_.empty()) return false;
  working_ = false;
  return true;
}

bool ReferenceChecks::leave_to_thread() noexcept {
  try {
    process::catch_up(::geteuid(), [this] { work(); });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace farcall::door
