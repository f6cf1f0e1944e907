// SPDX-License-Identifier: Apache-2.0
#include "socket/acceptor.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "process/background.hpp"
#include "process/reactor.hpp"

namespace farcall::process {

Acceptor::Acceptor(UniqueFd listener) noexcept : listener_(std::move(listener)) {
  const int flags = ::fcntl(fd(), F_GETFL);
  ::fcntl(fd(), F_SETFL, flags | O_NONBLOCK);
  keep_spare();
}

void Acceptor::keep_spare() noexcept {
  if (!spare_) spare_ = PrivateFd(UniqueFd(::fcntl(fd(), F_DUPFD_CLOEXEC, 3)));
}

UniqueFd Acceptor::accept_one() const noexcept {
  for (;;) {
    UniqueFd client(::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client || (errno != EINTR && errno != ECONNABORTED)) return client;
  }
}

UniqueFd Acceptor::accept(bool& full) noexcept {
  keep_spare();
  UniqueFd client = accept_one();
  full = !client && (errno == EMFILE || errno == ENFILE);
  if (!full) return client;
  spare_.reset();
  return accept_one();
}

void look_again_later(int listener, std::uint64_t number, std::weak_ptr<void> watch) noexcept {
  if (number == 0) return;
  static constexpr auto kMoment = std::chrono::milliseconds(100);
  try {
    run_later(::geteuid(), [listener, number, watch = std::move(watch)] {
      std::this_thread::sleep_for(kMoment);
      if (const auto kept = watch.lock())
        Reactor::here().again(listener, number, EPOLLIN | EPOLLET);
    });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next who comes brings it
  }
}

void Acceptor::close() noexcept {
  listener_.reset();
  spare_.reset();
}

}  // namespace farcall::process
