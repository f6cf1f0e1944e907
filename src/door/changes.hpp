// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <semaphore.h>

namespace farcall::door {

// Who waits for what a lock protects to change; that lock protects these, too. Each thread waits
// with a semaphore of its own, in its own memory: a condition variable would tell a forked child of
// those whom only its parent has, and the child would wait for them in turn.
class Changes {
 public:
  // For who holds the lock, when it is made; it lets go of the lock to wait, and has taken it again
  // when this goes.
  class Waiter {
   public:
    explicit Waiter(Changes& changes) noexcept : changes_(changes), next_(changes.waiters_) {
      ::sem_init(&changed_, 0, 0);
      changes_.waiters_ = this;
    }
    ~Waiter() {
      changes_.forget([this](const Waiter& each) { return &each == this; });
      ::sem_destroy(&changed_);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    // Until a change, or a signal. A point of cancellation.
    void wait() { (void)::sem_wait(&changed_); }

   private:
    friend class Changes;

    Changes& changes_;
    const pthread_t thread_ = ::pthread_self();
    Waiter* next_;
    sem_t changed_{};
  };

  void happen() noexcept {
    for (Waiter* each = waiters_; each != nullptr; each = each->next_) ::sem_post(&each->changed_);
  }
  // In a forked child, whose only thread may be one that a handler has interrupted.
  void forget_others() noexcept {
    forget([](const Waiter& each) { return ::pthread_equal(each.thread_, ::pthread_self()) == 0; });
    happen();
  }

 private:
  template <class Condition>
  void forget(Condition condition) noexcept {
    for (Waiter** each = &waiters_; *each != nullptr;)
      if (condition(**each))
        *each = (*each)->next_;
      else
        each = &(*each)->next_;
  }

  Waiter* waiters_ = nullptr;
};

}  // namespace farcall::door
