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

PipeOptions PipeOptions::read(const farcall_pipe_options* given) {
  const farcall_pipe_options known = known_options(given);
  if (known.reserved != 0 || known.capacity > kLargestCapacity)
    throw SystemError(EINVAL, "options of a pipe");
  return {.capacity = ring_capacity(known.capacity == 0 ? kDefaultCapacity : known.capacity),
          .most = known.capacity == 0 ? kDefaultMost : ring_capacity(known.capacity),
          .wait = wait_mode_of(known.wait)};
}

namespace {

int send_error(Outcome outcome) noexcept {
  return outcome == Outcome::peer_gone ? -EPIPE : -to_errno(outcome);
}

// Poll of either half.
template <class Half>
int poll_begin(Pipe* end, Half& (Pipe::*half)() noexcept) noexcept {
  return translated([&]() -> int {
    if (end == nullptr) return -EINVAL;
    if (const int error = end->use(); error != 0) return error;
    return (end->*half)().prepare_poll() == Outcome::would_block ? 1 : 0;
  });
}

template <class Half>
void poll_end(Pipe* end, Half& (Pipe::*half)() noexcept) noexcept {
  if (end == nullptr || !end->is_used_here()) return;
  const int before = errno;
  (end->*half)().finish_poll();
  errno = before;
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;     // NOLINT(google-build-using-namespace): C functions follow
using namespace farcall::c;  // NOLINT(google-build-using-namespace)

int farcall_pipe_create(const farcall_pipe_options* options, farcall_pipe** one,
                        farcall_pipe** other) {
  return guarded([&] {
    if (one == nullptr || other == nullptr || one == other) return -EINVAL;
    const PipeOptions chosen = PipeOptions::read(options);
    std::array<PipeParts, 2> parts = make_pipe(chosen.capacity);
    auto first = std::make_unique<Pipe>(parts[0], chosen.wait, chosen.capacity);
    auto second = std::make_unique<Pipe>(parts[1], chosen.wait, chosen.capacity);
    *one = handle_of(std::move(first));
    *other = handle_of(std::move(second));
    return 0;
  });
}

int farcall_pipe_descriptors(const farcall_pipe* end, int descriptors[FARCALL_PIPE_DESCRIPTORS]) {
  static_assert(FARCALL_PIPE_DESCRIPTORS == PipeParts::kCount);
  if (end == nullptr || descriptors == nullptr) return -EINVAL;
  return pipe_of(end)->give_descriptors(descriptors);
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
      *end = handle_of(std::make_unique<Pipe>(parts, chosen.wait, chosen.most));
    } catch (...) {
      for (UniqueFd& fd : parts.fds) (void)fd.release();
      throw;
    }
    return 0;
  });
}

int farcall_pipe_finish(farcall_pipe* end) {
  return translated([&]() -> int {
    if (end == nullptr) return -EINVAL;
    if (const int error = pipe_of(end)->use(); error != 0) return error;
    pipe_of(end)->sender().finish();
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
    if (end == nullptr) return -EINVAL;
    check_buffer(bytes, size);
    if (const int error = pipe_of(end)->use(); error != 0) return error;
    order_for_sanitizer();
    return send_error(pipe_of(end)->sender().send(
        std::span(static_cast<const std::byte*>(bytes), size), deadline_of(timeout), since));
  });
}

std::int64_t farcall_pipe_receive(farcall_pipe* end, void* bytes, std::size_t room,
                                  std::size_t* needed, std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> std::int64_t {
    if (end == nullptr) return -EINVAL;
    check_buffer(bytes, room);
    if (const int error = pipe_of(end)->use(); error != 0) return error;
    std::size_t size = 0;
    const Outcome outcome = pipe_of(end)->receiver().receive(
        std::span(static_cast<std::byte*>(bytes), room), size, deadline_of(timeout), since);
    order_for_sanitizer();
    if (outcome == Outcome::ok) return static_cast<std::int64_t>(size);
    if (outcome == Outcome::too_big && needed != nullptr) *needed = size;
    return -to_errno(outcome);
  });
}

int farcall_pipe_poll_descriptor(const farcall_pipe* end) {
  return end == nullptr ? -EINVAL : pipe_of(end)->receive_descriptor();
}
int farcall_pipe_poll_begin(farcall_pipe* end) { return poll_begin(pipe_of(end), &Pipe::receiver); }
void farcall_pipe_poll_end(farcall_pipe* end) { poll_end(pipe_of(end), &Pipe::receiver); }

int farcall_pipe_send_poll_descriptor(const farcall_pipe* end) {
  return end == nullptr ? -EINVAL : pipe_of(end)->send_descriptor();
}
int farcall_pipe_send_poll_begin(farcall_pipe* end) {
  return poll_begin(pipe_of(end), &Pipe::sender);
}
void farcall_pipe_send_poll_end(farcall_pipe* end) { poll_end(pipe_of(end), &Pipe::sender); }
