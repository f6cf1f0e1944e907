// SPDX-License-Identifier: Apache-2.0
//
// A library whose destructor uses a connection, and which has what only newer C libraries have.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void (*when_last_library_ends)();
void (*when_last_library_ends)() = nullptr;

// Inside it nobody else's posix_spawn() is called.
extern "C" int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const* arguments,
                           char* const* environment) {
  void* const library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  auto* const spawn = reinterpret_cast<decltype(posix_spawn)*>(::dlsym(library, "posix_spawn"));
  pid_t child = 0;
  const int error = spawn(&child, path, actions, attributes, arguments, environment);
  if (error == 0) *pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  return error;
}

namespace {

[[gnu::destructor]] void end() {
  if (when_last_library_ends != nullptr) when_last_library_ends();
}

}  // namespace
