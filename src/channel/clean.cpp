// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/clean.hpp"

#include <mqueue.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "channel/sysv_queue.hpp"

namespace farcall::channel {
namespace {

namespace fs = std::filesystem;

// Whoever makes a channel is through with the name in far less.
constexpr time_t kOld = 10;  // s

// Whether this entry is of this user and this kind, and old enough that nobody is about to use it.
bool is_leftover(const fs::path& path, mode_t kind) {
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0) return false;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return state.st_uid == ::geteuid() && (state.st_mode & S_IFMT) == kind &&
         now.tv_sec - state.st_ctim.tv_sec >= kOld;
}

// Calls `remove` for the leftovers in `place` whose names start with `prefix`.
template <class Remove>
std::size_t clean_directory(const fs::path& place, std::string_view prefix, mode_t kind,
                            bool dry_run, const std::function<void(std::string_view)>& report,
                            Remove remove) {
  std::size_t count = 0;
  std::error_code error;  // a place that does not exist has nothing in it
  for (fs::directory_iterator entry(place, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path path = entry->path();
    if (!path.filename().string().starts_with(prefix) || !is_leftover(path, kind)) continue;
    if (!dry_run && !remove(path)) continue;
    ++count;
    if (report) report(path.string());
  }
  return count;
}

bool remove_fifo(const fs::path& directory) {
  ::unlink((directory / "fifo").c_str());
  return ::rmdir(directory.c_str()) == 0;
}

bool remove_queue(const fs::path& path) {
  return ::mq_unlink(("/" + path.filename().string()).c_str()) == 0;
}

}  // namespace

std::size_t clean_leftovers(bool dry_run, const std::function<void(std::string_view)>& report) {
  const char* place = ::secure_getenv("TMPDIR");
  if (place == nullptr || *place == '\0') place = "/tmp";
  return sysv_queue::clean(dry_run, report) +
         clean_directory(place, "farcall-fifo-", S_IFDIR, dry_run, report, remove_fifo) +
         clean_directory("/dev/mqueue", "farcall-mq-", S_IFREG, dry_run, report, remove_queue);
}

}  // namespace farcall::channel
