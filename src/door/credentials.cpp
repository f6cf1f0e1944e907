// SPDX-License-Identifier: Apache-2.0
//
// Who calls, as the kernel has checked it when the caller's session was opened; and what it says in
// /proc of other processes.
#include <grp.h>
#include <ucred.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>

#include "door/pages.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

struct farcall_ucred {
  pid_t pid;
  std::array<uid_t, 3> users;   // real, effective, saved
  std::array<gid_t, 3> groups;  // likewise
  int group_count;              // -1: not known; the groups themselves follow
};

namespace farcall::door {
namespace {

struct Identity {
  pid_t pid = -1;
  std::array<uid_t, 3> users{};
  std::array<gid_t, 3> groups{};
  bool has_supplementary = false;
  std::vector<gid_t> supplementary;
};
enum : std::size_t { kReal, kEffective, kSaved };

// What /proc says of a process; false where there is none. It has a folder for each thread, too, by
// its number.
bool read_status(pid_t pid, Identity& identity) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  bool complete = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "Tgid:") {
      pid_t process = 0;
      if (!(words >> process) || process != pid) return false;
    } else if (name == "Uid:") {
      for (uid_t& id : identity.users) words >> id;
      complete = static_cast<bool>(words);
    } else if (name == "Gid:") {
      for (gid_t& id : identity.groups) words >> id;
    } else if (name == "Groups:") {
      identity.supplementary.clear();
      for (gid_t id = 0; words >> id;) identity.supplementary.push_back(id);
      identity.has_supplementary = true;
    }
  }
  identity.pid = pid;
  return complete;
}

// The immediate caller of this thread's procedure. Returns 0 or EINVAL.
int caller(Identity& identity) {
  Server* const server = call_in_progress();
  CallerIdentity known{};
  if (const int error = server == nullptr ? EINVAL : server->identify(known); error != 0)
    return error;
  identity.pid = known.effective.pid;
  identity.users = {known.real_uid, known.effective.uid, known.saved_uid};
  identity.groups = {known.real_gid, known.effective.gid, known.saved_gid};
  identity.has_supplementary = known.groups.has_value();
  if (known.groups) identity.supplementary = std::move(*known.groups);
  return 0;
}

template <class Credentials>
auto* supplementary_of(Credentials* credentials) {
  using Group = std::conditional_t<std::is_const_v<Credentials>, const gid_t, gid_t>;
  return reinterpret_cast<Group*>(credentials + 1);
}

std::size_t bytes_of(std::size_t groups) { return sizeof(ucred_t) + groups * sizeof(gid_t); }

// Writes over `*into` where that is not null. It may be the program's own memory, so there is
// always room for the most.
int store(const Identity& identity, ucred_t** into) {
  const std::size_t count = identity.supplementary.size();
  ucred_t* made = *into;
  if (made != nullptr) {
    if (!writable(made, bytes_of(count))) return EFAULT;
  } else {
    made = static_cast<ucred_t*>(std::malloc(::ucred_size()));
    if (made == nullptr) return ENOMEM;
  }
  made->pid = identity.pid;
  made->users = identity.users;
  made->groups = identity.groups;
  made->group_count = identity.has_supplementary ? static_cast<int>(count) : -1;
  std::ranges::copy(identity.supplementary, supplementary_of(made));
  *into = made;
  return 0;
}

}  // namespace
}  // namespace farcall::door

using namespace farcall::door;  // what follows is C's

extern "C" {

int door_cred(door_cred_t* credentials) {
  const NoCancel guard;
  return guarded([&] {
    Identity identity;
    if (const int error = caller(identity); error != 0) return fail(error);
    if (!writable(credentials, sizeof *credentials)) return fail(EFAULT);
    *credentials = {};
    credentials->dc_euid = identity.users[kEffective];
    credentials->dc_egid = identity.groups[kEffective];
    credentials->dc_ruid = identity.users[kReal];
    credentials->dc_rgid = identity.groups[kReal];
    credentials->dc_pid = identity.pid;
    return 0;
  });
}

int door_ucred(ucred_t** credentials) {
  const NoCancel guard;
  return guarded([&] {
    Identity identity;
    if (const int error = caller(identity); error != 0) return fail(error);
    if (!writable(credentials, sizeof(ucred_t*))) return fail(EFAULT);
    const int error = store(identity, credentials);
    return error == 0 ? 0 : fail(error);
  });
}

ucred_t* ucred_get(pid_t pid) {
  const NoCancel guard;
  ucred_t* made = nullptr;
  const int result = guarded([&] {
    Identity identity;
    if (!read_status(pid == P_MYID ? ::getpid() : pid, identity)) return fail(ESRCH);
    const int error = store(identity, &made);
    return error == 0 ? 0 : fail(error);
  });
  return result == 0 ? made : nullptr;
}

void ucred_free(ucred_t* credentials) { std::free(credentials); }

size_t ucred_size(void) {
  const long groups = ::sysconf(_SC_NGROUPS_MAX);
  return bytes_of(groups > 0 ? static_cast<std::size_t>(groups) : 0);
}

pid_t ucred_getpid(const ucred_t* credentials) { return credentials->pid; }
uid_t ucred_geteuid(const ucred_t* credentials) { return credentials->users[kEffective]; }
uid_t ucred_getruid(const ucred_t* credentials) { return credentials->users[kReal]; }
uid_t ucred_getsuid(const ucred_t* credentials) { return credentials->users[kSaved]; }
gid_t ucred_getegid(const ucred_t* credentials) { return credentials->groups[kEffective]; }
gid_t ucred_getrgid(const ucred_t* credentials) { return credentials->groups[kReal]; }
gid_t ucred_getsgid(const ucred_t* credentials) { return credentials->groups[kSaved]; }
zoneid_t ucred_getzoneid(const ucred_t*) { return 0; }  // Linux has no other
int ucred_getgroups(const ucred_t* credentials, const gid_t** groups) {
  if (groups != nullptr) *groups = supplementary_of(credentials);
  return credentials->group_count;
}

}  // extern "C"
