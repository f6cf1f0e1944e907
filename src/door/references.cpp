// SPDX-License-Identifier: Apache-2.0
#include "door/references.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "door/door.hpp"
#include "process/background.hpp"
#include "process/per_process.hpp"

namespace farcall::door {

OwnSockets::OwnSockets() {
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(directory, ::closedir);
  while (const dirent* entry = ::readdir(directory)) {
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr != end) continue;
    if (const std::uint64_t socket = socket_cookie(fd)) all_.push_back({socket, fd});
  }
  std::ranges::sort(all_, {}, &Entry::socket);
}

std::span<const OwnSockets::Entry> OwnSockets::of(std::uint64_t socket) const {
  return std::ranges::equal_range(all_, socket, {}, &Entry::socket);
}

ReferenceChecks& ReferenceChecks::here() { return process::PerProcess<ReferenceChecks>::here(); }

void ReferenceChecks::add(std::shared_ptr<Door> door) noexcept {
  try {
    const std::lock_guard guard(lock_);
    waiting_.insert(std::move(door));
    if (std::exchange(working_, true)) return;
  } catch (const std::bad_alloc&) {
    return;  // told at the next occasion
  }
  if (!leave_to_thread()) work();
}

void ReferenceChecks::work() noexcept {
  do check_all();
  while (!finished() && !leave_to_thread());
}

void ReferenceChecks::check_all() noexcept {
  decltype(waiting_) doors;
  {
    const std::lock_guard guard(lock_);
    doors.swap(waiting_);
  }
  try {
    const OwnSockets sockets;
    for (const auto& door : doors) door->check_references(sockets.of(door->primary()).size());
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
