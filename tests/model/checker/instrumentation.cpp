// SPDX-License-Identifier: Apache-2.0
//
// The compiler puts calls of ThreadSanitizer in front of plain accesses (-fsanitize=thread); here
// they lead to the checker instead, which ThreadSanitizer's own library is no part of.
#include <cstddef>
#include <cstdint>

#include "model/checker/explorer.hpp"

// NOLINTBEGIN: the names are the compiler's.
namespace {

using farcall::model::Explorer;

void check(void* address, std::size_t size, bool stores) {
  Explorer& explorer = Explorer::here();
  if (!explorer.running() || !explorer.memory().is_shared(address)) return;
  if (stores)
    explorer.memory().plain_store(explorer.current(), address, size);
  else
    explorer.memory().plain_load(explorer.current(), address, size);
}

}  // namespace

extern "C" {

#define FARCALL_ACCESS(size)                                                       \
  void __tsan_read##size(void* address) { check(address, size, false); }           \
  void __tsan_write##size(void* address) { check(address, size, true); }           \
  void __tsan_unaligned_read##size(void* address) { check(address, size, false); } \
  void __tsan_unaligned_write##size(void* address) { check(address, size, true); }
FARCALL_ACCESS(1)
FARCALL_ACCESS(2)
FARCALL_ACCESS(4)
FARCALL_ACCESS(8)
FARCALL_ACCESS(16)
#undef FARCALL_ACCESS

void __tsan_read_range(void* address, std::size_t size) { check(address, size, false); }
void __tsan_write_range(void* address, std::size_t size) { check(address, size, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Atomics of the C++ library itself, such as the counts of shared pointers: no part of a model.
#define FARCALL_ATOMIC(bits, type)                                                                 \
  type __tsan_atomic##bits##_load(const volatile type* at, int) {                                  \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                           \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                                \
  type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {                        \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                       \
  }                                                                                                \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type value, int) {                       \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                        \
  }                                                                                                \
  type __tsan_atomic##bits##_fetch_sub(volatile type* at, type value, int) {                       \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                        \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected,             \
                                                    type desired, int, int) {                      \
    return __atomic_compare_exchange_n(at, expected, desired, false, __ATOMIC_SEQ_CST,             \
                                       __ATOMIC_SEQ_CST);                                          \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected, type desired, \
                                                  int, int) {                                      \
    return __atomic_compare_exchange_n(at, expected, desired, false, __ATOMIC_SEQ_CST,             \
                                       __ATOMIC_SEQ_CST);                                          \
  }
FARCALL_ATOMIC(8, std::uint8_t)
FARCALL_ATOMIC(16, std::uint16_t)
FARCALL_ATOMIC(32, std::uint32_t)
FARCALL_ATOMIC(64, std::uint64_t)
#undef FARCALL_ATOMIC
void __tsan_atomic_signal_fence(int) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"
// NOLINTEND
