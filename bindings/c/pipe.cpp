// SPDX-License-Identifier: Apache-2.0
//
// The C functions of pipes, but for those with names.
#include "c/pipe.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>

#include "c/pipe_options.hpp"
#include "c/translate.hpp"
#include "farcall/error.hpp"

namespace farcall::c {

namespace {

RingKind ring_kind_of(int kind) {
  switch (kind) {
    case FARCALL_PIPE_MESSAGES: return RingKind::messages;
    case FARCALL_PIPE_BYTES: return RingKind::bytes;
    default: throw SystemError(EINVAL, "what a pipe carries");
  }
}

}  // namespace

PipeOptions PipeOptions::read(const farcall_pipe_options* given) {
  const farcall_pipe_options known = known_options(given);
  if (known.capacity > kLargestCapacity) throw SystemError(EINVAL, "options of a pipe");
  return {.capacity = ring_capacity(known.capacity == 0 ? kDefaultCapacity : known.capacity),
          .most = known.capacity == 0 ? kDefaultMost : ring_capacity(known.capacity),
          .wait = wait_mode_of(known.wait),
          .kind = ring_kind_of(known.kind)};
}

namespace {

MessagePipe& message_pipe_of(farcall_pipe* end) noexcept {
  return static_cast<MessagePipe&>(*pipe_of(end));
}
BytePipe& byte_pipe_of(farcall_pipe* end) noexcept { return static_cast<BytePipe&>(*pipe_of(end)); }

int send_error(Outcome outcome) noexcept {
  return outcome == Outcome::peer_gone ? -EPIPE : -to_errno(outcome);
}

// Returns 0, or why an end cannot be used as one of that kind.
int use_as(Pipe* end, RingKind kind) noexcept {
  if (end == nullptr) return -EINVAL;
  if (end->kind() != kind) return -EOPNOTSUPP;
  return end->use();
}

// Poll of either half.
constexpr auto kSenderOf = [](auto& pipe) -> auto& { return pipe.sender(); };
constexpr auto kReceiverOf = [](auto& pipe) -> auto& { return pipe.receiver(); };

template <class Half>
int poll_begin(Pipe* end, Half half) noexcept {
  return translated([&]() -> int {
    if (end == nullptr) return -EINVAL;
    if (const int error = end->use(); error != 0) return error;
    return with_kind(*end, [&](auto& pipe) { return half(pipe).prepare_poll(); }) ==
                   Outcome::would_block
               ? 1
               : 0;
  });
}

template <class Half>
int poll_end(Pipe* end, Half half) noexcept {
  if (end == nullptr || !end->is_used_here()) return 0;
  const int before = errno;
  const bool due = with_kind(*end, [&](auto& pipe) { return half(pipe).finish_poll(); });
  errno = before;
  return due ? 1 : 0;
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_pipe_create(const farcall_pipe_options* options, farcall_pipe** one,
                        farcall_pipe** other) {
  return guarded([&] {
    if (one == nullptr || other == nullptr || one == other) return -EINVAL;
    const PipeOptions chosen = PipeOptions::read(options);
    std::array<PipeParts, 2> parts = make_pipe(chosen.capacity, chosen.kind);
    auto first = chosen.make(parts[0], chosen.capacity);
    auto second = chosen.make(parts[1], chosen.capacity);
    *one = handle_of(std::move(first));
    *other = handle_of(std::move(second));
    return 0;
  });
}

int farcall_pipe_descriptors(const farcall_pipe* end, int descriptors[FARCALL_PIPE_DESCRIPTORS]) {
  static_assert(FARCALL_PIPE_DESCRIPTORS == PipeParts::kCount);
  return translated([&]() -> int {
    if (end == nullptr || descriptors == nullptr) return -EINVAL;
    return pipe_of(end)->give_descriptors(descriptors);
  });
}

int farcall_pipe_adopt(const int descriptors[FARCALL_PIPE_DESCRIPTORS],
                       const farcall_pipe_options* options, farcall_pipe** end) {
  return guarded([&] {
    if (descriptors == nullptr || end == nullptr) return -EINVAL;
    const PipeOptions chosen = PipeOptions::read(options);
    const std::span given(descriptors, PipeParts::kCount);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i] < 0) return -EBADF;
      // Each is closed once.
      for (std::size_t k = 0; k < i; ++k)
        if (given[k] == given[i]) return -EINVAL;
    }
    PipeParts parts;
    for (std::size_t i = 0; i < given.size(); ++i) parts.fds[i].reset(given[i]);
    try {
      *end = handle_of(chosen.make(parts, chosen.most));
    } catch (...) {
      for (UniqueFd& fd : parts.fds) (void)fd.release();
      throw;
    }
    return 0;
  });
}

std::size_t farcall_pipe_capacity(const farcall_pipe* end) {
  return end == nullptr ? 0 : pipe_of(end)->capacity();
}

int farcall_pipe_finish(farcall_pipe* end) {
  return translated([&]() -> int {
    if (end == nullptr) return -EINVAL;
    if (const int error = pipe_of(end)->use(); error != 0) return error;
    with_kind(*pipe_of(end), [](auto& pipe) { pipe.sender().finish(); });
    return 0;
  });
}

void farcall_pipe_close_sending(farcall_pipe* end) {
  translated([&] {
    if (end != nullptr) pipe_of(end)->close_sending();
    return 0;
  });
}

void farcall_pipe_close(farcall_pipe* end) {
  guarded([&] {
    delete pipe_of(end);
    return 0;
  });
}

int farcall_pipe_send(farcall_pipe* end, const void* bytes, std::size_t size,
                      std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> int {
    check_buffer(bytes, size);
    if (const int error = use_as(pipe_of(end), RingKind::messages); error != 0) return error;
    order_for_sanitizer();
    return send_error(message_pipe_of(end).sender().send([&](MessageWriter& ring) {
      return ring.write(std::span(static_cast<const std::byte*>(bytes), size), deadline_of(timeout),
                        since);
    }));
  });
}

std::int64_t farcall_pipe_receive(farcall_pipe* end, void* bytes, std::size_t room,
                                  std::size_t* needed, std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> std::int64_t {
    check_buffer(bytes, room);
    if (const int error = use_as(pipe_of(end), RingKind::messages); error != 0) return error;
    std::size_t size = 0;
    const Outcome outcome = message_pipe_of(end).receiver().receive(
        std::span(static_cast<std::byte*>(bytes), room), size, deadline_of(timeout), since);
    order_for_sanitizer();
    if (outcome == Outcome::ok) return static_cast<std::int64_t>(size);
    if (outcome == Outcome::too_big && needed != nullptr) *needed = size;
    return -to_errno(outcome);
  });
}

std::int64_t farcall_pipe_write(farcall_pipe* end, const void* bytes, std::size_t size,
                                std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> std::int64_t {
    check_buffer(bytes, size);
    if (const int error = use_as(pipe_of(end), RingKind::bytes); error != 0) return error;
    order_for_sanitizer();
    std::size_t written = 0;
    const Outcome outcome = byte_pipe_of(end).sender().send([&](ByteWriter& ring) {
      return ring.write(std::span(static_cast<const std::byte*>(bytes), size), written,
                        deadline_of(timeout), since);
    });
    // What has gone has gone; the next write tells why it was not more.
    if (written != 0) return static_cast<std::int64_t>(written);
    return send_error(outcome);
  });
}

std::int64_t farcall_pipe_read(farcall_pipe* end, void* bytes, std::size_t room,
                               std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> std::int64_t {
    check_buffer(bytes, room);
    if (const int error = use_as(pipe_of(end), RingKind::bytes); error != 0) return error;
    std::size_t count = 0;
    const Outcome outcome = byte_pipe_of(end).receiver().read_some(
        std::span(static_cast<std::byte*>(bytes), room), count, deadline_of(timeout), since);
    order_for_sanitizer();
    if (outcome == Outcome::ok) return static_cast<std::int64_t>(count);
    return outcome == Outcome::finished ? 0 : -to_errno(outcome);
  });
}

int farcall_pipe_poll_descriptor(const farcall_pipe* end) {
  return end == nullptr ? -EINVAL : pipe_of(end)->receive_descriptor();
}
int farcall_pipe_poll_begin(farcall_pipe* end) { return poll_begin(pipe_of(end), kReceiverOf); }
int farcall_pipe_poll_end(farcall_pipe* end) { return poll_end(pipe_of(end), kReceiverOf); }

int farcall_pipe_send_poll_descriptor(const farcall_pipe* end) {
  return end == nullptr ? -EINVAL : pipe_of(end)->send_descriptor();
}
int farcall_pipe_send_poll_begin(farcall_pipe* end) { return poll_begin(pipe_of(end), kSenderOf); }
void farcall_pipe_send_poll_end(farcall_pipe* end) { poll_end(pipe_of(end), kSenderOf); }
