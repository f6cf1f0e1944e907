// SPDX-License-Identifier: Apache-2.0
#include "call/acceptor.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace farcall::call {

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

void Acceptor::close() noexcept {
  listener_.reset();
  spare_.reset();
}

}  // namespace farcall::call
