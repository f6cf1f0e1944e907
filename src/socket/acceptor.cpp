// SPDX-License-Identifier: Apache-2.0
#include "socket/acceptor.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "farcall/error.hpp"
#include "process/background.hpp"

namespace farcall::process {
namespace {

constexpr std::uint32_t kEvents = EPOLLIN | EPOLLET;

}  // namespace

Acceptor::Acceptor(UniqueFd listener) noexcept : listener_(std::move(listener)) {
  const int flags = ::fcntl(listener_.get(), F_GETFL);
  ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK);
  keep_spare();
}

void Acceptor::start(const std::shared_ptr<Watch>& watch) {
  watch_ = watch;
  registration_.start(listener_.get(), kEvents, watch);
}

void Acceptor::keep_spare() noexcept {
  if (!spare_ && !lost())
    spare_ = PrivateFd(UniqueFd(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 3)));
}

UniqueFd Acceptor::accept_one() const noexcept {
  for (;;) {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client || (errno != EINTR && errno != ECONNABORTED)) return client;
  }
}

UniqueFd Acceptor::accept(bool& full, bool& there) noexcept {
  const std::lock_guard guard(lock_);
  if (!listener_) return {};
  there = !lost();
  if (!there) {
    spare_.reset();  // which holds the address
    return {};
  }
  keep_spare();
  // No more come from one that was shut down, though it says so as of an error.
  const auto nobody = [] { return errno == EAGAIN || errno == EINVAL; };
  UniqueFd client = accept_one();
  if (client || nobody()) return client;
  if (errno != EMFILE && errno != ENFILE) {
    full = true;  // the kernel has no memory for it, say
    return client;
  }
  // Also said where nobody waits.
  spare_.reset();
  client = accept_one();
  full = client || !nobody();
  if (!client) keep_spare();
  return client;
}

bool Acceptor::accept_waiting(const Take& take) noexcept {
  constexpr int kMostAtOnce = 16;
  for (int i = 0; i < kMostAtOnce; ++i) {
    bool full = false;
    bool there = true;
    UniqueFd client = accept(full, there);
    if (!client) {
      if (full) look_again_later();
      return there;
    }
    Credentials who{};
    try {
      who = peer_credentials(client.get());
      take(client, who, full);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it gets no answer
    }
    if (client && !close_turned_away(who.uid, PrivateFd(std::move(client)))) {
      watch_for(EPOLLET);  // for nothing
      look_again_later();
      return true;
    }
  }
  // Edges tell of those that come from now on.
  look_again();
  return true;
}

// Ends an accept() that waits, by shutting its listener down.
class Acceptor::Alarm final : public Watch {
 public:
  explicit Alarm(UniqueFd listener)
      : listener_(std::move(listener)),
        timer_(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))) {
    const itimerspec once{.it_interval = {},
                          .it_value = {.tv_sec = kLongestAccept.count(), .tv_nsec = 0}};
    if (!listener_ || !timer_ || ::timerfd_settime(timer_.get(), 0, &once, nullptr) != 0)
      throw_errno("a timer");
  }
  void start(const std::shared_ptr<Alarm>& self) {
    registration_.start(timer_.get(), EPOLLIN | EPOLLONESHOT, self);
  }
  void stop() noexcept { registration_.stop(); }
  void on_readable(std::uint32_t) noexcept override {
    rang_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
  }
  [[nodiscard]] bool rang() const noexcept { return rang_; }

 private:
  PrivateFd listener_;  // a duplicate: the other may be closed meanwhile
  PrivateFd timer_;
  Registration registration_;
  std::atomic<bool> rang_{false};
};

bool Acceptor::accept_shared(const Take& take) noexcept {
  try {
    UniqueFd listener;
    {
      const std::lock_guard guard(lock_);
      if (lost()) return false;
      listener = UniqueFd(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 3));
    }
    const auto alarm = std::make_shared<Alarm>(std::move(listener));
    alarm->start(alarm);
    const bool there = accept_waiting(take);
    alarm->stop();
    return there && !alarm->rang();
  } catch (const std::exception&) {
    look_again_later();  // there was no descriptor for a timer
    return true;
  }
}

void Acceptor::watch_for(std::uint32_t events) noexcept {
  const std::lock_guard guard(lock_);  // the number is the listener's until close() has the lock
  registration_.rearm(events);
}

void Acceptor::look_again() noexcept { watch_for(kEvents); }

// In a moment, although nothing more may come: there was no descriptor or memory to let anybody in,
// or too many have been turned away.
void Acceptor::look_again_later() noexcept {
  static constexpr auto kMoment = std::chrono::milliseconds(100);
  if (looks_later_.exchange(true)) return;
  try {
    run_in_a_moment([this, watch = watch_] {
      std::this_thread::sleep_for(kMoment);
      const auto kept = watch.lock();
      if (!kept) return;
      looks_later_ = false;
      {
        // The next may come when there is none left again.
        const std::lock_guard guard(lock_);
        keep_spare();
      }
      look_again();
    });
  } catch (const std::exception&) {
    looks_later_ = false;  // the next who comes brings it
  }
}

// Nobody comes any more. Who was not let in may have sent something all the same.
void Acceptor::turn_all_away() noexcept {
  spare_.reset();
  while (UniqueFd client = accept_one()) {
    uid_t who = 0;
    try {
      who = peer_credentials(client.get()).uid;
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): then it is this process's own
    }
    (void)close_turned_away(who, PrivateFd(std::move(client)));
  }
}

void Acceptor::close() noexcept {
  registration_.stop();
  // Whoever is just accepting comes back at once.
  if (!lost()) ::shutdown(listener_.get(), SHUT_RDWR);
  const std::lock_guard guard(lock_);
  if (listener_ && !lost()) turn_all_away();
  listener_.reset();
  spare_.reset();
}

}  // namespace farcall::process
