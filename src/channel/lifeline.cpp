// SPDX-License-Identifier: Apache-2.0
#include "channel/lifeline.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "channel/descriptor.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

std::pair<UniqueFd, UniqueFd> Lifeline::make() { return unix_pair(SOCK_SEQPACKET); }

bool Lifeline::send(Note note) noexcept {
  return uninterrupted([&] { return ::send(fd_.get(), &note, sizeof note, MSG_NOSIGNAL); }) >= 0;
}

void Lifeline::try_to_send(Note note) noexcept {
  ::send(fd_.get(), &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<Note> Lifeline::try_receive() { return receive_with(MSG_DONTWAIT); }

std::optional<Note> Lifeline::receive() { return receive_with(0); }

std::optional<Note> Lifeline::receive_with(int flags) {
  while (!closed_) {
    Note note{};
    const ssize_t size =
        uninterrupted([&] { return ::recv(fd_.get(), &note, sizeof note, flags); });
    if (size == sizeof note) return note;
    if (size >= 0) {
      closed_ = true;  // the end, or something that is no note: whoever sent it is not one of us
    } else if (errno == EAGAIN) {
      return std::nullopt;
    } else if (errno != ECONNRESET) {
      throw_errno("receive from the lifeline of a channel");
    }
    // ECONNRESET: the other end closed without receiving all notes. Told once, and before what
    // it sent.
  }
  return std::nullopt;
}

bool Lifeline::is_alive() {
  while (try_receive()) {
  }
  return !closed_;
}

void sleep_on(int fd, short events, const Lifeline& lifeline) {
  std::array<pollfd, 2> both{pollfd{.fd = fd, .events = events, .revents = 0},
                             pollfd{.fd = lifeline.fd(), .events = POLLIN, .revents = 0}};
  if (::poll(both.data(), both.size(), -1) < 0 && errno != EINTR) throw_errno("poll of a channel");
}

}  // namespace farcall::channel
