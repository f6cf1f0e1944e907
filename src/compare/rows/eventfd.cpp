// SPDX-License-Identifier: Apache-2.0
//
// Shared memory whose sides wake each other by eventfds, the usual way to do it with what the
// kernel offers: slots in shared memory, and two counters of the kernel per direction, one of
// messages that wait to be read and one of slots that are free again.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

UniqueFd counter() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  if (!fd) throw_errno("eventfd");
  return fd;
}

void add_to(const UniqueFd& counter, std::uint64_t count) {
  if (::write(counter.get(), &count, sizeof count) != sizeof count) throw_errno("eventfd write");
}

// All that was added since the last time; sleeps while that is nothing.
std::uint64_t take_from(const UniqueFd& counter) {
  std::uint64_t count = 0;
  while (::read(counter.get(), &count, sizeof count) != sizeof count)
    if (errno != EINTR) throw_errno("eventfd read");
  return count;
}

// One direction. Each side keeps its own position and how many slots it may use without asking.
class Direction {
 public:
  Direction(std::size_t slots, std::size_t slot_bytes)
      : slots_(slots),
        slot_bytes_(slot_bytes),
        memory_(Mapping::anonymous_shared(slots * slot_bytes)) {}

  void write(std::span<const std::byte> message, std::uint64_t& position, std::uint64_t& usable) {
    if (usable == 0) usable = take_from(free_);
    --usable;
    std::memcpy(slot(position++), message.data(), message.size());
    add_to(filled_, 1);
  }
  void read(std::span<std::byte> message, std::uint64_t& position, std::uint64_t& usable) {
    if (usable == 0) usable = take_from(filled_);
    --usable;
    std::memcpy(message.data(), slot(position++), message.size());
    // Slots go back in batches: each system call here costs as much as a small message.
    const std::size_t batch = slots_ / 2;
    if (position % batch == 0) add_to(free_, batch);
  }
  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }

 private:
  [[nodiscard]] std::byte* slot(std::uint64_t position) const noexcept {
    return memory_.data() + (position % slots_) * slot_bytes_;
  }

  std::size_t slots_;
  std::size_t slot_bytes_;
  Mapping memory_;
  UniqueFd filled_ = counter();
  UniqueFd free_ = counter();
};

class EventfdEnd final : public Endpoint {
 public:
  EventfdEnd(Direction& out, Direction& in) : out_(out), in_(in), writable_(out.slots()) {}
  void send(std::span<const std::byte> message) override {
    out_.write(message, written_, writable_);
  }
  void receive(std::span<std::byte> message) override { in_.read(message, read_, readable_); }

 private:
  Direction& out_;
  Direction& in_;
  std::uint64_t written_ = 0;
  std::uint64_t writable_;
  std::uint64_t read_ = 0;
  std::uint64_t readable_ = 0;
};

class EventfdConnection final : public Connection {
 public:
  EventfdConnection(std::size_t slots, std::size_t slot_bytes)
      : forth_(slots, slot_bytes), back_(slots, slot_bytes) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    return role == Role::client ? std::make_unique<EventfdEnd>(forth_, back_)
                                : std::make_unique<EventfdEnd>(back_, forth_);
  }

 private:
  Direction forth_;
  Direction back_;
};

}  // namespace

void add_eventfd(RowList& list) {
  list.add({.mechanism = "eventfd",
            .engine = "linux",
            .wait = "block",
            .description = "slots in shared memory, both sides woken by eventfds"},
           [](const Conditions& conditions) {
             const std::size_t slot_bytes =
                 (std::max<std::size_t>(conditions.message_bytes, 1) + 63) / 64 * 64;
             const std::size_t slots =
                 std::max<std::size_t>(default_depth(conditions) / slot_bytes, 2);
             return std::make_unique<EventfdConnection>(slots / 2 * 2, slot_bytes);
           });
}

}  // namespace farcall::compare
