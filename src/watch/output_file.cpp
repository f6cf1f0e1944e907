// SPDX-License-Identifier: Apache-2.0
#include "watch/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "farcall/error.hpp"

namespace farcall::watch {
namespace {

bool is_own_link(const std::string& name) {
  struct stat status {};
  if (::lstat(name.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return false;
  if (status.st_uid != 0 && status.st_uid != ::geteuid())
    throw SystemError(EPERM, "follow " + name + ", which is another user's link");
  return true;
}

// What others can have put there for somebody to write to. A pipe to which one's own link leads may
// be a program's standard output.
void refuse_others(const struct stat& status, const std::string& name, bool is_link) {
  const bool is_made_there = S_ISREG(status.st_mode) || (S_ISFIFO(status.st_mode) && !is_link);
  if (is_made_there && status.st_uid != ::geteuid())
    throw SystemError(EPERM, "write to " + name + ", which is another user's");
}

void empty(int fd, const struct stat& status, const std::string& name) {
  if (status.st_nlink > 1) throw SystemError(EPERM, "empty " + name + ", which has other names");
  // Some file systems know no such rights.
  if (::fchmod(fd, 0600) != 0 && errno != EPERM) throw_errno("protect " + name);
  if (::ftruncate(fd, 0) != 0) throw_errno("empty " + name);
}

}  // namespace

UniqueFd open_other(const std::string& name) {
  const bool is_link = is_own_link(name);
  UniqueFd found(
      ::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | (is_link ? 0 : O_NOFOLLOW)));
  struct stat status {};
  if (!found || ::fstat(found.get(), &status) != 0) throw_errno("open " + name);
  refuse_others(status, name, is_link);
  if (S_ISREG(status.st_mode)) throw SystemError(EEXIST, "write over " + name);
  return found;
}

std::string followed(const std::string& name) {
  struct stat status {};
  if (!is_own_link(name) || ::stat(name.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return name;
  return std::filesystem::canonical(name).string();
}

UniqueFd open_private(const std::string& name) {
  const bool is_link = is_own_link(name);
  const std::string path = followed(name);
  UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (made) return made;
  if (errno != EEXIST) throw_errno("open " + name);
  // Before it is opened, for somebody else's pipe is waited for as long as they like; and after, by
  // what is open now, for the name may mean another one.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) refuse_others(status, name, is_link);
  const bool leads_on = is_link && path == name;
  UniqueFd found(::open(path.c_str(), O_WRONLY | O_CLOEXEC | (leads_on ? 0 : O_NOFOLLOW)));
  if (!found || ::fstat(found.get(), &status) != 0) throw_errno("open " + name);
  refuse_others(status, name, is_link);
  if (S_ISREG(status.st_mode)) empty(found.get(), status, name);
  return found;
}

}  // namespace farcall::watch
