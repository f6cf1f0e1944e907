// SPDX-License-Identifier: Apache-2.0
#include "channel/watcher.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "farcall/error.hpp"
#include "socket/wait_for.hpp"

namespace farcall::channel {
namespace {

// Signals are for the program's own threads.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Watcher::Watcher(Lifeline lifeline, std::function<void(News)> tell)
    : lifeline_(std::move(lifeline)), tell_(std::move(tell)), owner_(::getpid()) {}

void Watcher::start_thread() {
  const AllSignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(), "start the thread of a channel");
  }
}

void Watcher::run() {
  try {
    const auto note = lifeline_.receive();
    if (stopping_.load(std::memory_order_acquire)) return;  // pairs with stop()
    tell_(note && note->kind == Note::finished ? News::finished : News::gone);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Only a lifeline that is no socket; handles that came from elsewhere are checked by their
    // number only.
  }
}

void Watcher::say_finished() noexcept { lifeline_.send({.kind = Note::finished, .value = 0}); }

bool Watcher::other_exists() const noexcept { return events_now(lifeline_.fd(), POLLRDHUP) == 0; }

void Watcher::stop() noexcept {
  if (!thread_.joinable()) return;
  if (!is_owner()) {
    thread_.detach();
    return;
  }
  stopping_.store(true, std::memory_order_release);  // pairs with run()
  ::shutdown(lifeline_.fd(), SHUT_RDWR);
  thread_.join();
}

bool Watcher::is_owner() const noexcept { return ::getpid() == owner_; }

}  // namespace farcall::channel
