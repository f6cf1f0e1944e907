// SPDX-License-Identifier: Apache-2.0
#include "preload/real.hpp"

#include <dlfcn.h>
#include <gnu/libc-version.h>

#include <cstring>

namespace farcall::preload {

long select_one(int fd, short event, const timespec* longest) noexcept {
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long set[128];
  if (fd < 0 || fd >= kBits * 128) return -EINVAL;
  const auto word = static_cast<std::size_t>(fd / kBits);
  std::memset(set, 0, (word + 1) * sizeof *set);
  set[word] = 1UL << (fd % kBits);
  timespec left = longest == nullptr ? timespec{} : *longest;
  return kernel(SYS_pselect6, fd + 1, event == POLLIN ? set : nullptr,
                event == POLLOUT ? set : nullptr, nullptr, longest == nullptr ? nullptr : &left,
                nullptr);
}

}  // namespace farcall::preload

namespace farcall::preload::real {
namespace {

// Before glibc 2.34 some of the C library's functions stood in a library of their own.
bool is_of_c_library(const Dl_info& info) noexcept {
  Dl_info libc{};
  if (::dladdr(reinterpret_cast<const void*>(&::gnu_get_libc_version), &libc) != 0 &&
      libc.dli_fbase == info.dli_fbase)
    return true;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  const char* const name = slash == nullptr ? info.dli_fname : slash + 1;
  return std::strncmp(name, "libpthread.so", 13) == 0 || std::strncmp(name, "libc.so", 7) == 0;
}

}  // namespace

void* find_other(const char* name) noexcept {
  void* const behind = ::dlsym(RTLD_NEXT, name);
  Dl_info info{};
  if (behind == nullptr || ::dladdr(behind, &info) == 0 || is_of_c_library(info)) return nullptr;
  return behind;
}

}  // namespace farcall::preload::real
