// SPDX-License-Identifier: Apache-2.0
//
// The functions behind those that a library of ours puts in front of the C library's.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace farcall::interpose {

template <std::size_t Size>
struct Symbol {
  char name[Size];
  // Not explicit: a string literal is what it is made of.
  constexpr Symbol(const char (&text)[Size]) { std::copy_n(text, Size, name); }
};

// The function behind ours. Where the C library comes before this one, as it may for a program that
// loads it by itself, there is nothing behind; then it is the C library's.
inline void* look_up_next(const char* name) noexcept {
  if (void* const behind = ::dlsym(RTLD_NEXT, name); behind != nullptr) return behind;
  void* const library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  ::dlclose(library);  // it stays
  return ::dlsym(library, name);
}

// The function that the program would call if the library were not there, looked up once.
template <Symbol kSymbol, class Function>
Function* next() noexcept {
  static constinit std::atomic<Function*> known{nullptr};
  Function* found = known.load(std::memory_order_relaxed);
  if (found == nullptr) [[unlikely]] {
    found = reinterpret_cast<Function*>(look_up_next(kSymbol.name));
    known.store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace farcall::interpose

// Other libraries ask for a version of the C library's functions; only a symbol without one stands
// in front of those, too. It is exported whatever the library's list of symbols says.
#define FARCALL_WITHOUT_VERSION(function) __asm__(".symver " #function ", " #function "@@@")
