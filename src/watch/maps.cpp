// SPDX-License-Identifier: Apache-2.0
#include "watch/maps.hpp"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>

namespace farcall::watch {
namespace {

constexpr std::size_t kMostTables = 512;
constexpr std::size_t kMostLines = 1 << 20;
constexpr std::uint64_t kIdentities = sizeof(observe::Table::identities);
constexpr std::uint64_t kRest = sizeof(observe::Table) - kIdentities;

}  // namespace

void MapsReader::line(const char* text, Maps& into) {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  char access[5] = {};
  unsigned major = 0;
  unsigned minor = 0;
  std::uint64_t inode = 0;
  if (std::sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64, &from, &to, access,
                  &major, &minor, &inode) != 6)
    return;
  if (inode != 0) into.files.push_back({(std::uint64_t{major} << 32) | minor, inode});
  Area now{.from = from, .to = to};
  if (inode == 0 && std::strcmp(access, "---p") == 0) now.kind = Area::none;
  if (inode == 0 && std::strcmp(access, "rw-p") == 0) now.kind = Area::writable;
  const bool is_table = before_last_.kind == Area::none && last_.kind == Area::writable &&
                        now.kind == Area::writable && before_last_.to == last_.from &&
                        last_.to == now.from && last_.to - last_.from == kIdentities &&
                        now.to - now.from == kRest;
  if (is_table && into.tables.size() < kMostTables) into.tables.push_back(last_.from);
  before_last_ = last_;
  last_ = now;
}

int read_maps(pid_t pid, Maps& into) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/maps", pid);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), std::fclose);
  if (file == nullptr) return errno;
  MapsReader reader;
  char text[512];
  bool begins = true;
  for (std::size_t i = 0; i < kMostLines; ++i) {
    errno = 0;
    if (std::fgets(text, sizeof text, file.get()) == nullptr) break;
    if (begins) reader.line(text, into);
    begins = std::strchr(text, '\n') != nullptr;  // else a path goes on
  }
  if (std::ferror(file.get()) != 0 && errno != 0) return errno;
  std::sort(into.files.begin(), into.files.end(), [](const Session& one, const Session& other) {
    return std::tie(one.inode, one.device) < std::tie(other.inode, other.device);
  });
  into.files.erase(std::unique(into.files.begin(), into.files.end()), into.files.end());
  return 0;
}

}  // namespace farcall::watch
