// SPDX-License-Identifier: Apache-2.0
#include "watch/maps.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>

namespace farcall::watch {
namespace {

constexpr std::size_t kMostTables = 512;
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

int read_maps(const Owner& of, Maps& into) {
  std::string text;
  if (const int error = read_text(of, ProcFile::maps, text); error != 0) return error;
  MapsReader reader;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // the kernel's lines end; this one was cut off
    text[end] = '\0';
    reader.line(text.c_str() + at, into);
    at = end + 1;
  }
  std::sort(into.files.begin(), into.files.end(), [](const Session& one, const Session& other) {
    return std::tie(one.inode, one.device) < std::tie(other.inode, other.device);
  });
  into.files.erase(std::unique(into.files.begin(), into.files.end()), into.files.end());
  return 0;
}

}  // namespace farcall::watch
