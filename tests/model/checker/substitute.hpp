// SPDX-License-Identifier: Apache-2.0
//
// Stands in front of each source of the library that the checker runs, unchanged: what those call
// std is the C++ library but for atomics, fences, mutexes and memcpy, which are the checker's; so
// are a few system calls. Everything is included here first that the sources include themselves, as
// nothing of the system may see these names.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <linux/memfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "model/checker/checker.hpp"
#include "model/checker/system_calls.hpp"

// NOLINTBEGIN: names and shapes are those of the C++ library.
namespace farcall_model_std {

using namespace ::std;

// As wide as a register, whatever it is.
template <class T>
::std::uint64_t to_word(T value) noexcept {
  ::std::uint64_t word = 0;
  ::std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T from_word(::std::uint64_t word) noexcept {
  T value;
  ::std::memcpy(static_cast<void*>(&value), &word, sizeof value);
  return value;
}
constexpr memory_order order_of_failure(memory_order order) noexcept {
  if (order == memory_order_acq_rel) return memory_order_acquire;
  return order == memory_order_release ? memory_order_relaxed : order;
}

// What is the same for atomic and atomic_ref; `Self` has address().
template <class Self, class T>
class atomic_operations {
 public:
  using where_t = ::std::source_location;
  static constexpr bool is_always_lock_free = true;
  static constexpr unsigned kSize = sizeof(T);
  static_assert(sizeof(T) <= 8);

  T load(memory_order order = memory_order_seq_cst,
         const where_t& where = where_t::current()) const noexcept {
    return from_word<T>(::farcall::model::load(at(), kSize, order, where));
  }
  void store(T value, memory_order order = memory_order_seq_cst,
             const where_t& where = where_t::current()) const noexcept {
    ::farcall::model::store(at(), kSize, to_word(value), order, where);
  }
  T exchange(T value, memory_order order = memory_order_seq_cst,
             const where_t& where = where_t::current()) const noexcept {
    return change(value, order, where, [](auto, auto other) { return other; });
  }
  T fetch_add(T value, memory_order order = memory_order_seq_cst,
              const where_t& where = where_t::current()) const noexcept {
    return change(value, order, where,
                  [](auto before, auto other) { return to_word(sum(before, other)); });
  }
  T fetch_sub(T value, memory_order order = memory_order_seq_cst,
              const where_t& where = where_t::current()) const noexcept {
    return change(static_cast<T>(T{} - value), order, where,
                  [](auto before, auto other) { return to_word(sum(before, other)); });
  }
  T fetch_or(T value, memory_order order = memory_order_seq_cst,
             const where_t& where = where_t::current()) const noexcept {
    return change(value, order, where, [](auto before, auto other) { return before | other; });
  }
  T fetch_and(T value, memory_order order = memory_order_seq_cst,
              const where_t& where = where_t::current()) const noexcept {
    return change(value, order, where, [](auto before, auto other) { return before & other; });
  }
  bool compare_exchange_strong(T& expected, T desired, memory_order success, memory_order failure,
                               const where_t& where = where_t::current()) const noexcept {
    ::std::uint64_t word = to_word(expected);
    const bool done = ::farcall::model::compare_exchange(at(), kSize, word, to_word(desired),
                                                         success, failure, where);
    expected = from_word<T>(word);
    return done;
  }
  bool compare_exchange_strong(T& expected, T desired, memory_order order = memory_order_seq_cst,
                               const where_t& where = where_t::current()) const noexcept {
    return compare_exchange_strong(expected, desired, order, order_of_failure(order), where);
  }
  template <class... Orders>
  bool compare_exchange_weak(T& expected, T desired, Orders... orders) const noexcept {
    return compare_exchange_strong(expected, desired, orders...);
  }
  operator T() const noexcept { return load(); }
  T operator++(int) const noexcept { return fetch_add(T(1)); }
  T operator++() const noexcept { return static_cast<T>(fetch_add(T(1)) + T(1)); }
  T operator--(int) const noexcept { return fetch_sub(T(1)); }
  T operator--() const noexcept { return static_cast<T>(fetch_sub(T(1)) - T(1)); }
  T operator+=(T value) const noexcept { return static_cast<T>(fetch_add(value) + value); }
  T operator-=(T value) const noexcept { return static_cast<T>(fetch_sub(value) - value); }

 private:
  static T sum(::std::uint64_t one, ::std::uint64_t other) noexcept {
    return static_cast<T>(from_word<T>(one) + from_word<T>(other));
  }
  void* at() const noexcept {
    return const_cast<void*>(
        static_cast<const volatile void*>(static_cast<const Self*>(this)->address()));
  }
  T change(T value, memory_order order, const where_t& where,
           ::std::uint64_t (*how)(::std::uint64_t, ::std::uint64_t)) const noexcept {
    return from_word<T>(::farcall::model::update(at(), kSize, how, to_word(value), order, where));
  }
};

template <class T>
class atomic : public atomic_operations<atomic<T>, T> {
 public:
  using value_type = T;
  constexpr atomic() noexcept : value_() {}
  constexpr atomic(T value) noexcept : value_(value) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;
  T operator=(T value) noexcept {
    this->store(value);
    return value;
  }
  const T* address() const noexcept { return &value_; }

 private:
  alignas(sizeof(T)) T value_;
};

template <class T>
class atomic_ref : public atomic_operations<atomic_ref<T>, T> {
 public:
  explicit atomic_ref(T& value) noexcept : value_(&value) {}
  const T* address() const noexcept { return value_; }

 private:
  T* value_;
};

inline void atomic_thread_fence(
    memory_order order, const ::std::source_location& where = ::std::source_location::current()) {
  ::farcall::model::fence(order, where);
}

class mutex {
 public:
  constexpr mutex() noexcept = default;
  mutex(const mutex&) = delete;
  mutex& operator=(const mutex&) = delete;
  void lock() { ::farcall::model::lock(real_); }
  bool try_lock() { return real_.try_lock(); }
  void unlock() { ::farcall::model::unlock(real_); }

 private:
  ::std::mutex real_;
};
using condition_variable = ::std::condition_variable_any;

inline void* memcpy(void* to, const void* from, size_t size) noexcept {
  return ::farcall::model::copy(to, from, size);
}
inline void* memmove(void* to, const void* from, size_t size) noexcept {
  return ::farcall::model::copy(to, from, size);
}

}  // namespace farcall_model_std
// NOLINTEND

#define std farcall_model_std
#define syscall farcall_model_syscall
#define poll farcall_model_poll
#define ppoll farcall_model_ppoll
#define sched_yield farcall_model_sched_yield
#define sched_getcpu farcall_model_sched_getcpu
#define clock_gettime farcall_model_clock_gettime
#define pthread_sigmask farcall_model_sigmask
#define pthread_setcancelstate farcall_model_setcancelstate
#define __builtin_ia32_pause ::farcall::model::pause
#define __builtin_ia32_rdtsc farcall_model_ticks
