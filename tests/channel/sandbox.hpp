// SPDX-License-Identifier: Apache-2.0
//
// A place where whatever is found was left by those who ran in it: own namespaces for System V
// and POSIX IPC objects and for the files in /tmp and /dev/shm.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace farcall::channel::test {

class Sandbox {
 public:
  // Moves the calling process into a new one, for good. False where this system forbids it.
  static bool enter() {
    constexpr int kNamespaces = CLONE_NEWIPC | CLONE_NEWNS;
    const uid_t user = ::geteuid();
    const gid_t group = ::getegid();
    if (::unshare(kNamespaces) != 0) {
      if (::unshare(kNamespaces | CLONE_NEWUSER) != 0) return false;
      write("/proc/self/setgroups", "deny");
      write("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
      write("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
    }
    ::setenv("TMPDIR", "/tmp", 1);
    return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", "/tmp", "tmpfs", 0, nullptr) == 0 &&
           ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0 && ::mkdir(kQueues, 0700) == 0 &&
           ::mount("mqueue", kQueues, "mqueue", 0, nullptr) == 0;
  }

  // One line for everything found.
  static std::string leftovers() {
    std::string found;
    for (const char* directory : {"/tmp", "/dev/shm", kQueues})
      for (const auto& entry : std::filesystem::directory_iterator(directory))
        if (entry.path() != kQueues) found += entry.path().string() + "\n";
    for (const char* kind : {"shm", "msg", "sem"}) {
      std::ifstream table(std::string("/proc/sysvipc/") + kind);
      std::string line;
      std::getline(table, line);  // the head of the table
      while (std::getline(table, line)) found += std::string(kind) + line + "\n";
    }
    return found;
  }

 private:
  static constexpr const char* kQueues = "/tmp/mqueue";

  static void write(const char* path, const std::string& text) { std::ofstream(path) << text; }
};

}  // namespace farcall::channel::test
