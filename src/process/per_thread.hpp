// SPDX-License-Identifier: Apache-2.0
//
// One object for each thread that asks for it, destroyed when the thread ends. Who asks afterwards,
// in the destructor of a key or of the program's own thread_local, gets a new one, which goes in
// the C library's next round of such destructors. The thread that ends the process keeps its
// object: handlers of atexit(3) use it.
//
// A thread_local with a destructor would do none of that: handlers and later destructors would go
// on with what is destroyed. And to register that destructor the C library takes a lock of the
// dynamic linker's, which a fork() in another thread leaves locked in the child for ever.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

namespace farcall::process {

template <class T>
class PerThread {
 public:
  static T& get() {
    if (pointer_ == nullptr) [[unlikely]] {
      pointer_ = new T;
      ::pthread_setspecific(key_, pointer_);
    }
    return *pointer_;
  }
  // Null where this thread has not asked yet.
  static T* made() noexcept { return pointer_; }
  // This thread's object stays as it is, for ever; the next that is asked for is a new one.
  static void leave() noexcept {
    if (std::exchange(pointer_, nullptr) != nullptr) ::pthread_setspecific(key_, nullptr);
  }

 private:
  static pthread_key_t make_key() noexcept {
    pthread_key_t fresh{};
    ::pthread_key_create(&fresh, [](void* object) {
      pointer_ = nullptr;
      delete static_cast<T*>(object);
    });
    return fresh;
  }

  static inline const pthread_key_t key_ = make_key();
  static thread_local constinit T* pointer_;
};

template <class T>
thread_local constinit T* PerThread<T>::pointer_ = nullptr;

// The same, but the object is in the thread's own memory: for signal handlers, which may have
// interrupted malloc(3). Only an object that is asked for while the one before is destroyed is
// elsewhere. Its constructor is not to throw.
template <class T>
class PerThreadInPlace {
 public:
  static T& get() {
    if (T* const object = get_in_place()) [[likely]]
      return *object;
    set(new T);
    return *pointer_;
  }
  // Null where it would take memory.
  static T* get_in_place() noexcept {
    if (pointer_ == nullptr) [[unlikely]]
      make_in_place();
    return pointer_;
  }
  // Null where this thread has not asked yet.
  static T* made() noexcept { return pointer_; }

 private:
  // What the C library keeps of the first keys is in the thread's own memory as well.
  static constexpr pthread_key_t kInPlace = 32;

  [[gnu::noinline]] static void make_in_place() noexcept {
    if (key_ >= kInPlace) return;
    if (std::exchange(taken_, true)) return;
    set(new (memory_) T);
  }
  static void set(T* object) noexcept {
    pointer_ = object;
    ::pthread_setspecific(key_, object);
  }
  static pthread_key_t make_key() noexcept {
    pthread_key_t fresh{};
    ::pthread_key_create(&fresh, [](void* object) {
      pointer_ = nullptr;
      if (object != memory_) return delete static_cast<T*>(object);
      static_cast<T*>(object)->~T();
      std::atomic_signal_fence(std::memory_order_seq_cst);
      taken_ = false;
    });
    return fresh;
  }

  static inline const pthread_key_t key_ = make_key();
  static thread_local constinit T* pointer_;
  static thread_local constinit bool taken_;
  alignas(T) static thread_local constinit std::byte memory_[sizeof(T)];
};

template <class T>
thread_local constinit T* PerThreadInPlace<T>::pointer_ = nullptr;
template <class T>
thread_local constinit bool PerThreadInPlace<T>::taken_ = false;
template <class T>
alignas(T) thread_local constinit std::byte PerThreadInPlace<T>::memory_[sizeof(T)] = {};

}  // namespace farcall::process
