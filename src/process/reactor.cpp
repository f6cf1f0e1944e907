// SPDX-License-Identifier: Apache-2.0
#include "process/reactor.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "farcall/error.hpp"
#include "wait/held_signals.hpp"

namespace farcall::process {

Reactor& Reactor::here() { return PerProcess<Reactor>::here(); }

Reactor::Reactor() : epoll_(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))) {
  if (!epoll_) throw_errno("epoll_create1");
  const int error = start_thread(
      "farcall-reactor", [](void* self) { static_cast<Reactor*>(self)->run(); }, this);
  if (error != 0) throw SystemError(error, "start the thread that listens for clients");
}

void Reactor::watch(int fd, std::uint32_t events, std::shared_ptr<Watch> watch,
                    std::atomic<std::uint64_t>& number) {
  const QuietGuard guard(lock_);
  const std::uint64_t mine = next_++;
  watches_.emplace(mine, std::move(watch));
  number.store(mine, std::memory_order_release);
  epoll_event event{.events = events, .data = {.u64 = mine}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  const int error = errno;
  number.store(0, std::memory_order_relaxed);
  watches_.erase(mine);
  throw SystemError(error, "epoll_ctl");
}

void Reactor::forget(int fd, std::uint64_t number) noexcept {
  std::shared_ptr<Watch> last;  // destroyed without the lock
  const QuietGuard guard(lock_);
  const auto found = watches_.find(number);
  if (found == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  last = std::move(found->second);
  watches_.erase(found);
}

void Reactor::run() noexcept {
  std::array<epoll_event, 16> events;
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    // A program that closes all descriptors it does not know ends its own serving.
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      std::shared_ptr<Watch> watch;
      {
        const std::lock_guard reading(lock_);
        const auto found = watches_.find(events[static_cast<std::size_t>(i)].data.u64);
        if (found != watches_.end()) watch = found->second;
      }
      const NoFork guard;  // most of them make or receive descriptors
      if (watch) watch->on_readable(events[static_cast<std::size_t>(i)].events);
      watch.reset();
    }
  }
}

void Registration::start(int fd, std::uint32_t events, std::shared_ptr<Watch> watch) {
  generation_ = generation();
  fd_ = fd;
  Reactor::here().watch(fd, events, std::move(watch), number_);
}

void Registration::rearm(std::uint32_t events) noexcept {
  // acquire: pairs with the release in watch().
  epoll_event event{.events = events, .data = {.u64 = number_.load(std::memory_order_acquire)}};
  if (event.data.u64 != 0 && generation_ == generation())
    ::epoll_ctl(Reactor::here().epoll_.get(), EPOLL_CTL_MOD, fd_, &event);
}

void Registration::stop() noexcept {
  const std::uint64_t number = number_.exchange(0, std::memory_order_acq_rel);
  if (number != 0 && generation_ == generation()) Reactor::here().forget(fd_, number);
}

}  // namespace farcall::process
