// SPDX-License-Identifier: Apache-2.0
//
// farcall channel send: standard input to a channel, its reply to standard output.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "farcall/message.hpp"
#include "tool/channel/channel.hpp"
#include "tool/exit_code.hpp"
#include "tool/say.hpp"
#include "tool/standard_input.hpp"

namespace farcall::tool::channel {
namespace {

// May be more than there are nanoseconds to count.
std::chrono::nanoseconds duration_of(double seconds) {
  constexpr std::chrono::seconds kMost = std::chrono::hours(24 * 365 * 100);
  if (!(seconds < static_cast<double>(kMost.count()))) return kMost;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// For the longest reply that there is: reserved, and touched only as far as the reply goes. Where a
// process may not have so much of its address space, for a shorter one.
class Room {
 public:
  Room() {
    constexpr std::size_t kLeast = std::size_t{1} << 20;
    for (;;) {
      memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory_ != MAP_FAILED) return;
      if (size_ <= kLeast) throw_errno("reserve room for the reply");
      size_ /= 2;
    }
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { ::munmap(memory_, size_); }
  [[nodiscard]] std::span<std::byte> get() const noexcept {
    return {static_cast<std::byte*>(memory_), size_};
  }
  [[nodiscard]] bool may_have_cut(std::size_t reply) const noexcept {
    return reply == size_ && size_ < FARCALL_MESSAGE_MAX;
  }

 private:
  std::size_t size_ = FARCALL_MESSAGE_MAX;
  void* memory_ = MAP_FAILED;
};

}  // namespace

int send(const Send& send) {
  const std::chrono::nanoseconds timeout = duration_of(send.timeout_s);
  try {
    set_message_timeout(timeout);
    const MessageConnection connection(send.name);
    if (send.pulse) {
      connection.pulse(*send.pulse, send.value);
      return kSuccess;
    }
    const std::string data = send.data ? *send.data : standard_input();
    set_message_timeout(timeout);
    if (send.one_way) {
      connection.send_one_way(bytes_of(data));
      return kSuccess;
    }
    const Room room;
    const auto reply = connection.send(bytes_of(data), room.get());
    if (room.may_have_cut(reply.data.size())) {
      say("farcall: {}: EMSGSIZE: the reply may be longer than {} bytes, for which alone there is "
          "memory here\n",
          send.name, room.get().size());
      return kFailure;
    }
    if (std::fwrite(reply.data.data(), 1, reply.data.size(), stdout) != reply.data.size() ||
        std::fflush(stdout) != 0)
      throw_errno("write standard output");
    if (reply.status == 0) return kSuccess;
    say("farcall: {}: the status is {}\n", send.name, reply.status);
    return kFailure;
  } catch (const std::system_error& error) {
    say("farcall: {}: {}: {}\n", send.name, errno_name(error.code().value()), error.what());
    return kFailure;
  }
}

}  // namespace farcall::tool::channel
