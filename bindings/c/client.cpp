// SPDX-License-Identifier: Apache-2.0
//
// The C functions of those who call.
#include "c/client.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <span>

#include "c/translate.hpp"
#include "door/call.hpp"
#include "door/paths.hpp"
#include "farcall/error.hpp"
#include "farcall/farcall.h"
#include "farcall/socket.hpp"
#include "process/background.hpp"

namespace farcall::c {
namespace {

struct OpenDoor {
  explicit OpenDoor(int descriptor) noexcept : door(descriptor) {}
  ~OpenDoor() { door::close(door); }
  OpenDoor(const OpenDoor&) = delete;
  OpenDoor& operator=(const OpenDoor&) = delete;

  const int door;
};

// What programs have of it is a pointer to a type that nobody knows.
OpenDoor* of(farcall_client* handle) noexcept { return reinterpret_cast<OpenDoor*>(handle); }

constexpr std::int64_t kLongestPause = 20'000'000;

// Until there is a door, the time is up, or a signal has come. The descriptor, or a negative errno.
int open(const char* path, Deadline deadline, SignalCount since) {
  std::int64_t pause = kLongestPause / 64;
  for (;;) {
    const int fd = door::open_door(path, O_RDONLY | O_CLOEXEC,
                                   deadline.is_now() ? Deadline::never() : deadline);
    if (fd >= 0) return fd;
    if (errno == EAGAIN) return -EUSERS;
    const int error = errno == EINVAL ? ECONNREFUSED : errno;
    if (error != ENOENT && error != ECONNREFUSED && error != ETIMEDOUT) return -error;
    const std::int64_t now = monotonic_ns();
    if (deadline.is_now() || now >= deadline.at()) return -error;
    if (SignalCount::now() != since) return -EINTR;
    const std::int64_t left = deadline.is_never() ? pause : deadline.at() - now;
    const timespec nap{.tv_sec = 0, .tv_nsec = std::min(pause, left)};
    ::nanosleep(&nap, nullptr);
    pause = std::min(2 * pause, kLongestPause);
  }
}

// A call, as long as its program wants to wait for it.
class Call final : public RetryPolicy {
 public:
  explicit Call(const farcall_call_options& options, SignalCount since) noexcept
      : options_(options), since_(since), end_(deadline_of(options.timeout)) {
    if (options.give_up != nullptr && options.ask_after > 0)
      ask_at_ = Deadline::after(std::chrono::nanoseconds(options.ask_after));
  }

  // Returns 0 or an errno value.
  int run(int door, door_arg_t& arguments) {
    for (;;) {
      const int error = door::call(door, &arguments,
                                   {.since = since_,
                                    .deadline = std::min(end_, ask_at_),
                                    .retry_policy = this,
                                    .no_answer = ECONNABORTED});
      if (gave_up_) return EINTR;
      if (error != EAGAIN && error != ETIMEDOUT) return error;
      // No server has been sent the request yet: the wait for one can go on.
      Deadline deadline = end_;
      const Outcome why = error == EAGAIN ? Outcome::interrupted : Outcome::timed_out;
      if (!stay(why, deadline)) return gave_up_ ? EINTR : ETIMEDOUT;
    }
  }

  bool stay(Outcome outcome, Deadline& deadline) override {
    if (outcome == Outcome::timed_out && monotonic_ns() >= end_.at()) return false;
    since_ = SignalCount::now();
    if (outcome == Outcome::timed_out) ask_at_ = Deadline::never();
    gave_up_ = options_.give_up == nullptr || options_.give_up(options_.context) != 0;
    deadline = std::min(end_, ask_at_);
    return !gave_up_;
  }
  // A request that has been sent may be taken at any time.
  [[nodiscard]] bool before_dispatch() const noexcept override { return true; }

 private:
  const farcall_call_options& options_;
  SignalCount since_;
  const Deadline end_;
  Deadline ask_at_ = Deadline::never();
  bool gave_up_ = false;
};

// Whom a door belongs to; of the kernel's that is not known.
uid_t server_of(int door) noexcept {
  try {
    return peer_credentials(door).uid;
  } catch (const SystemError&) {
    return static_cast<uid_t>(-1);
  }
}

// A door may send descriptors, which nobody wants here, and which may be long in closing.
void drop(uid_t sender, std::span<const door_desc_t> descriptors) noexcept {
  for (const door_desc_t& descriptor : descriptors)
    process::close_later(sender, UniqueFd(descriptor.d_data.d_desc.d_descriptor));
}

int call_door(int door, std::span<const std::byte> request, farcall_answer& answer,
              const farcall_call_options& options, SignalCount since) {
  // A door does not write to requests.
  auto* const data = const_cast<char*>(reinterpret_cast<const char*>(request.data()));
  door_arg_t arguments{.data_ptr = data,
                       .data_size = request.size(),
                       .desc_ptr = nullptr,
                       .desc_num = 0,
                       .rbuf = static_cast<char*>(answer.bytes),
                       .rsize = answer.room};
  try {
    const int error = Call(options, since).run(door, arguments);
    if (error != 0) return refusal(error);
  } catch (const SystemError& error) {
    return refusal(error);
  }
  if (arguments.desc_num != 0) drop(server_of(door), {arguments.desc_ptr, arguments.desc_num});
  if (arguments.rbuf != answer.bytes) {
    answer.bytes = answer.memory = arguments.rbuf;
    answer.memory_size = arguments.rsize;
  }
  answer.length = arguments.data_size;
  return 0;
}

}  // namespace

int door_of(const farcall_client* client) noexcept {
  return reinterpret_cast<const OpenDoor*>(client)->door;
}

}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_client_open(const char* path, int64_t timeout, farcall_client** client) {
  const SignalCount since = SignalCount::now();
  return guarded([&] {
    if (path == nullptr || client == nullptr) return -EINVAL;
    const Deadline deadline = timeout == 0 ? Deadline::now() : deadline_of(timeout);
    const int door = open(path, deadline, since);
    if (door < 0) return door;
    auto* const made = new (std::nothrow) OpenDoor(door);
    if (made == nullptr) {
      door::close(door);
      return -ENOMEM;
    }
    *client = reinterpret_cast<farcall_client*>(made);
    return 0;
  });
}

void farcall_client_close(farcall_client* client) {
  guarded([&] {
    delete of(client);
    return 0;
  });
}

int farcall_client_call(farcall_client* client, const void* request, size_t size,
                        farcall_answer* answer, const farcall_call_options* options) {
  const SignalCount since = SignalCount::now();
  return guarded([&] {
    if (client == nullptr) return -EINVAL;
    check_answer(answer);
    check_buffer(request, size);
    check_buffer(answer->bytes, answer->room);
    farcall_call_options known = known_options(options);
    if (options == nullptr) known.timeout = FARCALL_FOREVER;
    answer->memory = nullptr;
    answer->length = 0;
    return call_door(of(client)->door, {static_cast<const std::byte*>(request), size}, *answer,
                     known, since);
  });
}

void farcall_answer_free(farcall_answer* answer) {
  if (answer == nullptr || answer->memory == nullptr) return;
  ::munmap(answer->memory, answer->memory_size);
  answer->memory = answer->bytes = nullptr;
  answer->room = 0;  // it was of other memory
}
