// SPDX-License-Identifier: Apache-2.0
#include "channel/counted.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "farcall/error.hpp"
#include "farcall/wait.hpp"

namespace farcall::channel {
namespace {

// Longer than any message is on its way on one machine.
constexpr std::int64_t kLostAfter = 1'000'000'000;  // ns

}  // namespace

std::optional<std::size_t> CountedReader::take(std::span<std::byte> into,
                                               std::span<std::byte> spill) {
  while (received_ != total_) {
    const auto size = attempt(into, spill, dead_ ? Wait::no : Wait::briefly);
    if (size && *size == 0) listen();
    if (size && received_ != total_) {
      ++received_;
      missing_since_ = 0;
      return size;
    }
    if (size) break;  // the mark
    if (dead_) throw SystemError(ECONNRESET, "the writer has died without finishing");
    wait_for_more();
  }
  return std::nullopt;
}

void CountedReader::expect(std::uint64_t count) noexcept { at_least_ = std::max(at_least_, count); }

void CountedReader::listen() {
  while (const auto note = lifeline_.try_receive()) {
    if (note->kind == Note::finished) total_ = note->value;
    if (note->kind == Note::finished || note->kind == Note::sent) expect(note->value);
  }
  if (lifeline_.closed() && total_ == kUnknown) dead_ = true;
}

void CountedReader::wait_for_more() {
  listen();
  if (received_ == total_ || dead_) return;
  if (received_ >= at_least_) {
    sleep_on(fd_, POLLIN, lifeline_);
    return;
  }
  // Something is on its way and attempt() has waited for it.
  const std::int64_t now = monotonic_ns();
  if (missing_since_ == 0) missing_since_ = now;
  // It may have come while this thread had no processor: then it is there at the next look.
  const bool overdue = now - missing_since_ > kLostAfter;
  if (std::exchange(overdue_, overdue) && overdue)
    throw SystemError(ENOBUFS, "only " + std::to_string(received_) + " of " +
                                   std::to_string(at_least_) +
                                   " messages have come, the kernel has lost the others");
}

void CountedWriter::write_end() {
  if (lifeline_.send({.kind = Note::finished, .value = sent_})) post_mark();
  close_mechanism();
  lifeline_.close();
}

}  // namespace farcall::channel
