// SPDX-License-Identifier: Apache-2.0
//
// The C functions of calls that nobody waits in.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>

#include "c/client.hpp"
#include "c/translate.hpp"
#include "door/call.hpp"
#include "farcall/error.hpp"
#include "farcall/farcall.h"

namespace farcall::c {
namespace {

struct Begun {
  Begun(int door, std::span<const std::byte> request, Deadline until)
      : call(door, request), end(until) {}
  // 0, or -EBUSY.
  [[nodiscard]] int use() const noexcept { return made_in == process::generation() ? 0 : -EBUSY; }

  door::AsyncCall call;
  const Deadline end;
  const std::uint64_t made_in = process::generation();
  bool over = false;
};

// What programs have of it is a pointer to a type that nobody knows.
Begun* of(farcall_call* handle) noexcept { return reinterpret_cast<Begun*>(handle); }
const Begun* of(const farcall_call* handle) noexcept {
  return reinterpret_cast<const Begun*>(handle);
}

bool is_up(Deadline end) noexcept { return !end.is_never() && monotonic_ns() >= end.at(); }

int take(Begun& begun, farcall_answer& answer, Deadline until, SignalCount since) {
  CallResults results;
  results.buffer = {static_cast<std::byte*>(answer.bytes), answer.room};
  Outcome outcome = Outcome::ok;
  try {
    outcome = (*begun.call).take(results, std::min(until, begun.end), since);
  } catch (const SystemError& error) {
    begun.over = true;
    return refusal(error);
  }
  switch (outcome) {
    case Outcome::interrupted: return -EINTR;
    case Outcome::timed_out:
    case Outcome::would_block:
      begun.over = is_up(begun.end);
      return begun.over ? -ETIMEDOUT : -EAGAIN;
    default: begun.over = true;
  }
  if (outcome == Outcome::too_big) return -ENOMEM;
  if (outcome != Outcome::ok) return (*begun.call).dispatched() ? -ECONNABORTED : -EPIPE;
  answer.length = results.data.size();
  if (results.large) {
    answer.memory_size = results.large.size();
    answer.bytes = answer.memory = results.large.release();
  }
  return 0;
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_client_begin(farcall_client* client, const void* request, size_t size,
                         const farcall_call_options* options, farcall_call** call) {
  return guarded([&] {
    if (client == nullptr || call == nullptr) return -EINVAL;
    check_buffer(request, size);
    farcall_call_options known = known_options(options);
    if (options == nullptr) known.timeout = FARCALL_FOREVER;
    if (known.give_up != nullptr || known.context != nullptr || known.ask_after != 0)
      return -EINVAL;
    try {
      auto begun = std::make_unique<Begun>(door_of(client),
                                           std::span(static_cast<const std::byte*>(request), size),
                                           deadline_of(known.timeout));
      *call = reinterpret_cast<farcall_call*>(begun.release());
    } catch (const SystemError& error) {
      return refusal(error);
    }
    return 0;
  });
}

int farcall_call_poll_descriptor(const farcall_call* call) {
  if (call == nullptr) return -EINVAL;
  if (const int error = of(call)->use(); error != 0) return error;
  const int descriptor = (*of(call)->call).poll_descriptor();
  return descriptor < 0 ? -EINVAL : descriptor;
}

int farcall_call_poll_begin(farcall_call* call) {
  return guarded([&]() -> int {
    if (call == nullptr) return -EINVAL;
    if (const int error = of(call)->use(); error != 0) return error;
    if (of(call)->over || is_up(of(call)->end)) return 0;
    return (*of(call)->call).prepare_poll() == Outcome::would_block ? 1 : 0;
  });
}

void farcall_call_poll_end(farcall_call* call) {
  guarded([&] {
    if (call != nullptr && of(call)->use() == 0) (*of(call)->call).finish_poll();
    return 0;
  });
}

int farcall_call_take(farcall_call* call, farcall_answer* answer, int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return guarded([&]() -> int {
    if (call == nullptr) return -EINVAL;
    check_answer(answer);
    check_buffer(answer->bytes, answer->room);
    if (const int error = of(call)->use(); error != 0) return error;
    if (of(call)->over) return -EINVAL;
    answer->memory = nullptr;
    answer->length = 0;
    return take(*of(call), *answer, deadline_of(timeout), since);
  });
}

void farcall_call_close(farcall_call* call) {
  guarded([&] {
    // After a fork its session is the parent's: it stays where it is, untouched.
    if (call != nullptr && of(call)->use() == 0) delete of(call);
    return 0;
  });
}
