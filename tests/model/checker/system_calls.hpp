// SPDX-License-Identifier: Apache-2.0
//
// What sources get that are built for the checker (substitute.hpp) where they call the system. Of
// threads of a scenario it is the model's kernel; everything else goes to the real one.
#pragma once

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

extern "C" {
long farcall_model_syscall(long number, ...) noexcept;
int farcall_model_poll(pollfd* entries, nfds_t count, int timeout);
int farcall_model_ppoll(pollfd* entries, nfds_t count, const timespec* timeout,
                        const sigset_t* mask);
int farcall_model_sched_yield() noexcept;
int farcall_model_sched_getcpu() noexcept;
int farcall_model_clock_gettime(clockid_t clock, timespec* now) noexcept;
int farcall_model_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept;
int farcall_model_setcancelstate(int state, int* before);
unsigned long long farcall_model_ticks() noexcept;
}

namespace farcall::model {

void lock(std::mutex& real);
void unlock(std::mutex& real);
void* copy(void* to, const void* from, std::size_t size);

}  // namespace farcall::model
