// SPDX-License-Identifier: Apache-2.0
#include "door/call.hpp"

#include <pthread.h>

#include <cerrno>
#include <optional>

#include "call/client_session.hpp"
#include "door/kernel_door.hpp"
#include "door/pages.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

namespace farcall::door {
namespace {

// Where the descriptors of a reply stand in its memory: after the data, at a multiple of their
// size.
std::size_t descriptors_at(std::size_t data_size) noexcept {
  constexpr std::size_t kUnit = sizeof(door_desc_t);
  return (data_size + kUnit - 1) / kUnit * kUnit;
}

int errno_of(Outcome outcome, const CallWait& wait) noexcept {
  switch (outcome) {
    case Outcome::interrupted: return Client::dispatched() ? EINTR : EAGAIN;
    case Outcome::timed_out:
    case Outcome::would_block: return ETIMEDOUT;
    case Outcome::too_big: return EOVERFLOW;
    default: return Client::dispatched() ? wait.no_answer : EBADF;
  }
}

int to_error(Outcome outcome, const CallWait& wait) noexcept {
  return outcome == Outcome::ok ? 0 : errno_of(outcome, wait);
}

// Puts descriptors behind the data, in memory of their own where there is no room in the caller's.
int place_descriptors(CallResults& results, door_arg_t& arguments) {
  const std::size_t count = results.descriptors.size();
  const std::size_t at = descriptors_at(results.data.size());
  const std::size_t needed = at + count * sizeof(door_desc_t);
  char* base = arguments.rbuf;
  if (results.large) base = reinterpret_cast<char*>(results.large.data());
  if (needed > (results.large ? results.large.size() : arguments.rsize)) {
    Mapping larger = Mapping::anonymous_private(needed);
    if (!larger) return EOVERFLOW;
    std::ranges::copy(results.data, larger.data());
    results.data = {larger.data(), results.data.size()};
    results.large = std::move(larger);
    base = reinterpret_cast<char*>(results.large.data());
  }
  // Aligned to 4, as the type is, wherever the caller's buffer begins at such an address.
  auto* into = reinterpret_cast<door_desc_t*>(base + at);
  hand_out(results.descriptors, into);
  arguments.desc_ptr = into;
  return 0;
}

// A reply of more than bytes in the caller's buffer.
int take_over(CallResults& results, door_arg_t& arguments) {
  arguments.desc_num = static_cast<uint_t>(results.descriptors.size());
  if (!results.descriptors.empty())
    if (const int error = place_descriptors(results, arguments); error != 0) return error;
  arguments.data_size = results.data.size();
  if (!results.data.empty()) arguments.data_ptr = reinterpret_cast<char*>(results.data.data());
  if (results.large) {
    // The caller's from now on, to be unmapped.
    arguments.rsize = results.large.size();
    arguments.rbuf = reinterpret_cast<char*>(results.large.release());
  }
  return 0;
}

// Arguments that cannot be passed: `error` says why. What is wrong with them is told when it would
// have been found out, after the wait for a thread.
int call_with_bad_arguments(int d, Handle& handle, std::uint64_t bytes, ArgumentSizes& sizes,
                            int error, Cancellable cancellable, const CallWait& wait) {
  CallResults results;
  try {
    const Outcome outcome = handle.client.call({.data = std::as_bytes(std::span(&bytes, 1)),
                                                .descriptors = {},
                                                .word = kBadArguments,
                                                .port = d,
                                                .cancellable = cancellable,
                                                .retry_policy = wait.retry_policy,
                                                .admission = &sizes},
                                               results, wait.deadline, wait.since);
    if (outcome != Outcome::ok) return to_error(outcome, wait);
  } catch (const SystemError& refusal) {
    if (refusal.code().value() != EFAULT) throw;
  }
  return error;
}

// What is wrong with the arguments; 0: nothing.
int validate(const door_arg_t& arguments, Outgoing* outgoing) {
  if (outgoing != nullptr && arguments.desc_num > kMostDescriptors) return E2BIG;
  if (!readable(arguments.data_ptr, arguments.data_size) ||
      !writable(arguments.rbuf, arguments.rsize))
    return EFAULT;
  if (outgoing == nullptr) return 0;
  return outgoing->add(arguments.desc_ptr, arguments.desc_num);
}

// What is no door of the library's may be one of the kernel's. `outgoing` as below.
[[gnu::noinline]] int call_by_kernel(int d, door_arg_t& params, Outgoing* outgoing,
                                     Cancellable cancellable, const CallWait& wait) {
  if (!kernel::may_be_door(d)) return EBADF;
  if (!wait.deadline.is_never()) return EOPNOTSUPP;
  const NoCancel guard;
  door_arg_t arguments = params;
  kernel::Passed passed{.descriptors = {}, .count = arguments.desc_num};
  if (outgoing != nullptr && arguments.desc_num <= kMostDescriptors) {
    passed.error = outgoing->add(arguments.desc_ptr, arguments.desc_num);
    if (passed.error == 0) outgoing->prepare();
    if (passed.error != EFAULT) passed.descriptors = outgoing->descriptors();
  }
  CallResults results;
  results.buffer = std::as_writable_bytes(std::span(arguments.rbuf, arguments.rsize));
  const bool may_be_cancelled =
      cancellable == Cancellable::yes ||
      (cancellable == Cancellable::if_permitted && guard.was_cancellable());
  int error = kernel::call(d, &arguments, passed, may_be_cancelled, results, wait.since);
  if (error == 0) error = take_over(results, arguments);
  if (error == 0) params = arguments;
  return error;
}

int call_kernel_without_arguments(int d, const CallWait& wait) {
  if (!kernel::may_be_door(d)) return EBADF;
  if (!wait.deadline.is_never()) return EOPNOTSUPP;
  const NoCancel guard;
  CallResults results;
  return kernel::call(d, nullptr, {}, guard.was_cancellable(), results, wait.since);
}

// `outgoing` gets the descriptors; null where there are none.
[[gnu::hot]] inline int call(int d, door_arg_t& params, Outgoing* outgoing, Cancellable cancellable,
                             const CallWait& wait) {
  const Borrowed handle = borrow(d);
  if (!handle) [[unlikely]]
    return call_by_kernel(d, params, outgoing, cancellable, wait);
  door_arg_t arguments = params;  // the reply may be written over it
  ArgumentSizes sizes(arguments.data_size, arguments.desc_num);
  if (const int error = validate(arguments, outgoing); error != 0)
    return call_with_bad_arguments(d, *handle, arguments.data_size, sizes, error, cancellable,
                                   wait);
  sizes.set_outgoing(outgoing);
  std::optional<NoCancel> guard;  // outlives what the results hold
  CallResults results;
  results.buffer = std::as_writable_bytes(std::span(arguments.rbuf, arguments.rsize));
  int error = to_error(
      handle->client.call(
          {.data = std::as_bytes(std::span(arguments.data_ptr, arguments.data_size)),
           .descriptors = outgoing != nullptr ? outgoing->descriptors() : std::span<const int>(),
           .port = d,
           .cancellable = cancellable,
           .retry_policy = wait.retry_policy,
           .admission = &sizes},
          results, wait.deadline, wait.since),
      wait);
  if (error != 0) return error;
  arguments.desc_num = 0;
  arguments.data_size = results.data.size();
  if (!results.data.empty()) arguments.data_ptr = reinterpret_cast<char*>(results.data.data());
  if (results.large || !results.descriptors.empty()) [[unlikely]] {
    guard.emplace();
    error = take_over(results, arguments);
  }
  if (error == 0) params = arguments;
  return error;
}

// Whether a call that failed so takes the descriptors all the same: where the server's procedure
// has had them, the server had no room for them, or one of them cannot be passed.
bool took_descriptors(const SystemError& failure) noexcept {
  const int error = failure.code().value();
  if (error == EMFILE) return Client::dispatched();
  if (const auto* refusal = dynamic_cast<const call::RefusedRequest*>(&failure))
    return refusal->handed_over;
  return error == EINVAL;
}

// Only where there are descriptors does the library do here what could be cancelled in between.
int call_with_descriptors(int d, door_arg_t& params, const CallWait& wait) {
  const NoCancel guard;
  Outgoing outgoing;
  int error = 0;
  Client::forget_dispatched();  // of an earlier call: this one may fail before it asks the client
  try {
    error = call(d, params, &outgoing, guard.was_cancellable() ? Cancellable::yes : Cancellable::no,
                 wait);
  } catch (const SystemError& failure) {
    if (took_descriptors(failure)) outgoing.release();
    throw;
  } catch (...) {  // the thread is cancelled
    if (Client::dispatched()) outgoing.release();
    throw;
  }
  // What fails once a server thread has been found takes them all the same, as on illumos.
  const bool taken = error == 0 || error == EINTR || error == wait.no_answer ||
                     error == EOVERFLOW || error == EINVAL || error == EMFILE;
  if (taken) outgoing.release();
  return error;
}

int call_without_arguments(int d, const CallWait& wait) {
  const Borrowed handle = borrow(d);
  if (!handle) return call_kernel_without_arguments(d, wait);
  CallResults results;
  ArgumentSizes none(0);
  return to_error(handle->client.call({.data = {},
                                       .descriptors = {},
                                       .word = kNoArguments,
                                       .port = d,
                                       .cancellable = Cancellable::if_permitted,
                                       .retry_policy = wait.retry_policy,
                                       .admission = &none},
                                      results, wait.deadline, wait.since),
                  wait);
}

std::shared_ptr<Handle> handle_for_async(int d, std::span<const std::byte> request) {
  if (left_alone) ask_before_waiting();
  auto handle = Process::here().find(d);
  if (!handle) throw SystemError(kernel::may_be_door(d) ? EOPNOTSUPP : EBADF, "call");
  if (!readable(request.data(), request.size())) throw SystemError(EFAULT, "call");
  return handle;
}

}  // namespace

int ArgumentSizes::admit(LiveTerms terms) {
  if (bytes_ < terms[kDataMin] || bytes_ > terms[kDataMax]) return ENOBUFS;
  if (descriptors_ == 0) return 0;
  if ((terms[kDescMax] >> 32 & DOOR_REFUSE_DESC) != 0) return ENOTSUP;
  if (descriptors_ > (terms[kDescMax] & UINT32_MAX)) return ENFILE;
  // Not before: what nobody takes is no reference that came and went.
  if (outgoing_ != nullptr) outgoing_->prepare();
  return 0;
}

AsyncCall::AsyncCall(int d, std::span<const std::byte> request)
    : handle_(handle_for_async(d, request)),
      sizes_(request.size()),
      call_(handle_->client,
            {.data = request, .descriptors = {}, .port = d, .admission = &sizes_}) {}

[[gnu::hot]] int call(int d, door_arg_t* params, const CallWait& wait) {
  if (left_alone) [[unlikely]]
    ask_before_waiting();
  if (params == nullptr) return call_without_arguments(d, wait);
  if (!writable(params, sizeof *params)) return EFAULT;
  if (params->desc_num != 0) return call_with_descriptors(d, *params, wait);
  return call(d, *params, nullptr, Cancellable::if_permitted, wait);
}

void close(int d) noexcept {
  closing(d, [d] { return real::close(d); });
}

}  // namespace farcall::door

namespace farcall::door {
namespace {

[[gnu::noinline, gnu::hot]] int call_deferred(int d, door_arg_t* params, const CallWait& wait) {
  ::pthread_testcancel();
  const int error = guarded([&] { return call(d, params, wait); });
  if (error < 0) return -1;
  if (error == 0) return 0;
  if (error == EINTR || error == EAGAIN) ::pthread_testcancel();
  return fail(error);
}

}  // namespace
}  // namespace farcall::door

// A thread that can be cancelled between any two instructions is cancelled where others are. Has
// nothing to clean up: it could not be unwound.
extern "C" int door_call(int d, door_arg_t* params) {
  using namespace farcall::door;
  const CallWait wait{.since = farcall::SignalCount::now()};  // first of all
  int type = PTHREAD_CANCEL_DEFERRED;
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  const int result = call_deferred(d, params, wait);
  if (type != PTHREAD_CANCEL_DEFERRED) ::pthread_setcanceltype(type, nullptr);
  return result;
}
