// SPDX-License-Identifier: Apache-2.0
//
// What a test shares with its children, or with threads that outlive it.
#pragma once

#include <semaphore.h>
#include <sys/mman.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <new>

#include "harness/eventually.hpp"

namespace farcall::test {

// For what threads may still use when a test is over.
template <class T>
T& lasting() {
  static auto& all = *new std::deque<T>;
  return all.emplace_back();
}

// Memory that this process shares with the children it makes.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T;
  }
  // Only the mapping goes: children may still use the value.
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }
  T* get() const { return value_; }

 private:
  T* value_;
};

// Something that happens, once or more often, in this process or, where shared, in another.
class Event {
 public:
  Event() { ::sem_init(&happened_, 1, 0); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void happens() { ::sem_post(&happened_); }
  // Waits for it, and takes one.
  [[nodiscard]] bool wait(std::chrono::milliseconds time = kPatience) {
    timespec end{};
    ::clock_gettime(CLOCK_REALTIME, &end);
    const auto ns = end.tv_nsec + time.count() % 1000 * 1'000'000;
    end.tv_sec += time.count() / 1000 + ns / 1'000'000'000;
    end.tv_nsec = ns % 1'000'000'000;
    int result;
    while ((result = ::sem_timedwait(&happened_, &end)) != 0 && errno == EINTR) {
    }
    return result == 0;
  }
  // For server procedures that are to last: as wait(), and a cancellation point.
  void await() { (void)wait(60s); }

 private:
  sem_t happened_;
};

}  // namespace farcall::test
