// SPDX-License-Identifier: Apache-2.0
//
// A pair of sockets beside a mechanism that cannot itself tell of its ends: what the two ends have
// to tell each other besides the data, and the kernel's word on who is still there.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "farcall/memory.hpp"

namespace farcall::channel {

struct Note {
  enum Kind : std::uint64_t {
    finished = 1,  // from the writer: nothing follows; value: how many messages there were
    sent,          // from the writer: so many were sent up to now
    empty,         // from the writer: the next message has no bytes
    granted,       // from the reader: so much may have been sent, in the mechanism's own measure
  };
  Kind kind;
  std::uint64_t value;
};
static_assert(sizeof(Note) == 16);

class Lifeline {
 public:
  // One descriptor per end, for the handles. Throws SystemError.
  static std::pair<UniqueFd, UniqueFd> make();

  explicit Lifeline(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  // To the other end. False if it has gone.
  bool send(Note note) noexcept;
  // The same, but gives up at once where the other end has not received for long.
  void try_to_send(Note note) noexcept;

  // The next note of the other end. std::nullopt if there is nothing yet, or where closed().
  std::optional<Note> try_receive();
  // The same, but waits for it: as long as SO_RCVTIMEO says.
  std::optional<Note> receive();
  // Whether try_receive() has found that the other end has gone, and all it sent has been received.
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // Receives what there is, for an end that only wants to know whether the other is there.
  bool is_alive();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close() noexcept { fd_.reset(); }

 private:
  std::optional<Note> receive_with(int flags);

  UniqueFd fd_;
  bool closed_ = false;
};

// Sleeps until `fd` is ready for `events` or something comes over the lifeline, which may be the
// other end's death. No timeout.
void sleep_on(int fd, short events, const Lifeline& lifeline);

// How long an end waits in its mechanism before it looks at the lifeline and, if that is quiet,
// sleeps on both. The usual wait is shorter and is one plain system call.
inline constexpr int kBriefly = 5;  // ms

}  // namespace farcall::channel
