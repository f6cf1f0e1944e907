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

}  // namespace farcall::process
