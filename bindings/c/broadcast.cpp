// SPDX-License-Identifier: Apache-2.0
//
// The C functions of broadcasts.
#include "farcall/broadcast.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "c/translate.hpp"
#include "farcall/error.hpp"
#include "farcall/farcall.h"
#include "process/process.hpp"

namespace farcall::c {
namespace {

// What a process has made is not its forked child's: there it may only be closed.
template <class T>
class Owned {
 public:
  explicit Owned(T&& object) : object_(std::move(object)) {}
  // 0, or -EBUSY.
  [[nodiscard]] int use() const noexcept { return made_in_ == process::generation() ? 0 : -EBUSY; }
  T* operator->() noexcept { return &object_; }
  const T* operator->() const noexcept { return &object_; }

  std::uint64_t missed = 0;  // by a subscriber, since the last message that it received

 private:
  T object_;
  std::uint64_t made_in_ = process::generation();
};
using OwnedPublisher = Owned<Publisher>;
using OwnedSubscriber = Owned<Subscriber>;

// What programs have of them is a pointer to a type that nobody knows.
OwnedPublisher* of(farcall_publisher* handle) noexcept {
  return reinterpret_cast<OwnedPublisher*>(handle);
}
const OwnedPublisher* of(const farcall_publisher* handle) noexcept {
  return reinterpret_cast<const OwnedPublisher*>(handle);
}
OwnedSubscriber* of(farcall_subscriber* handle) noexcept {
  return reinterpret_cast<OwnedSubscriber*>(handle);
}
const OwnedSubscriber* of(const farcall_subscriber* handle) noexcept {
  return reinterpret_cast<const OwnedSubscriber*>(handle);
}
farcall_subscriber* handle_of(Subscriber&& subscriber) {
  return reinterpret_cast<farcall_subscriber*>(new OwnedSubscriber(std::move(subscriber)));
}

constexpr std::size_t kLargestCapacity = std::size_t{16} << 30;

SlowReader policy_of(int policy) {
  switch (policy) {
    case FARCALL_BLOCK: return SlowReader::block;
    case FARCALL_OVERWRITE: return SlowReader::overwrite;
    case FARCALL_DROP_READER: return SlowReader::drop;
    default: throw SystemError(EINVAL, "what becomes of slow readers");
  }
}

Publisher::Options read(const farcall_publisher_options* given) {
  const farcall_publisher_options known = known_options(given);
  Publisher::Options options;
  if (known.reserved != 0 || known.capacity > kLargestCapacity ||
      known.readers > Publisher::kMostReaders)
    throw SystemError(EINVAL, "options of a publisher");
  if (known.capacity != 0) options.capacity = known.capacity;
  if (known.readers != 0) options.readers = known.readers;
  options.slow = policy_of(known.policy);
  options.wait = wait_mode_of(known.wait);
  return options;
}

Subscriber::Options read(const farcall_subscriber_options* given) {
  const farcall_subscriber_options known = known_options(given);
  if (known.start != FARCALL_NEWEST && known.start != FARCALL_OLDEST)
    throw SystemError(EINVAL, "where to begin");
  Subscriber::Options options;
  if (known.start == FARCALL_OLDEST) options.start = Subscriber::Start::oldest;
  if (known.most != 0) options.most = known.most;
  options.wait = wait_mode_of(known.wait);
  return options;
}

// Poll of either side.
template <class Side>
int poll_descriptor(const Owned<Side>* side) noexcept {
  return side == nullptr ? -EINVAL : (*side)->poll_descriptor();
}

template <class Side>
int poll_begin(Owned<Side>* side) noexcept {
  return translated([&]() -> int {
    if (side == nullptr) return -EINVAL;
    if (const int error = side->use(); error != 0) return error;
    return (*side)->prepare_poll() == Outcome::would_block ? 1 : 0;
  });
}

template <class Side>
void poll_end(Owned<Side>* side) noexcept {
  if (side == nullptr || side->use() != 0) return;
  const int before = errno;
  (*side)->finish_poll();
  errno = before;
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_publisher_create(const char* name, const farcall_publisher_options* options,
                             farcall_publisher** publisher) {
  return guarded([&] {
    if (publisher == nullptr) return -EINVAL;
    const Publisher::Options chosen = read(options);
    *publisher = reinterpret_cast<farcall_publisher*>(new OwnedPublisher(
        name == nullptr ? Publisher(chosen) : Publisher(std::string_view(name), chosen)));
    return 0;
  });
}

int farcall_publisher_invite(farcall_publisher* publisher) {
  return guarded([&] {
    if (publisher == nullptr) return -EINVAL;
    if (const int error = of(publisher)->use(); error != 0) return error;
    return (*of(publisher))->invite().release();
  });
}

void farcall_publisher_close(farcall_publisher* publisher) {
  guarded([&] {
    delete of(publisher);
    return 0;
  });
}

int farcall_publisher_send(farcall_publisher* publisher, const void* bytes, std::size_t size,
                           std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> int {
    if (publisher == nullptr) return -EINVAL;
    check_buffer(bytes, size);
    if (const int error = of(publisher)->use(); error != 0) return error;
    order_for_sanitizer();
    const Outcome outcome = (*of(publisher))
                                ->write(std::span(static_cast<const std::byte*>(bytes), size),
                                        deadline_of(timeout), since);
    return outcome == Outcome::peer_gone ? -EPIPE : -to_errno(outcome);
  });
}

std::size_t farcall_publisher_longest(const farcall_publisher* publisher) {
  return publisher == nullptr ? 0 : (*of(publisher))->longest();
}

unsigned farcall_publisher_readers(const farcall_publisher* publisher) {
  if (publisher == nullptr || of(publisher)->use() != 0) return 0;
  return (*of(publisher))->readers();
}

int farcall_subscriber_open(const char* name, const farcall_subscriber_options* options,
                            std::int64_t timeout, farcall_subscriber** subscriber) {
  const SignalCount since = SignalCount::now();
  const int result = guarded([&] {
    if (name == nullptr || subscriber == nullptr) return -EINVAL;
    const Subscriber::Options chosen = read(options);
    *subscriber = handle_of(Subscriber::open(name, chosen, deadline_of(timeout), since));
    return 0;
  });
  return unless_now(result, timeout);
}

int farcall_subscriber_adopt(int descriptor, const farcall_subscriber_options* options,
                             farcall_subscriber** subscriber) {
  return guarded([&] {
    if (subscriber == nullptr) return -EINVAL;
    if (descriptor < 0) return -EBADF;
    const Subscriber::Options chosen = read(options);
    UniqueFd invitation(descriptor);
    try {
      *subscriber = handle_of(Subscriber::adopt(std::move(invitation), chosen));
    } catch (const SystemError& error) {
      (void)invitation.release();
      // What is no socket, or says nothing.
      const int value = error.code().value();
      return value == ENOTSOCK || value == ETIMEDOUT || value == EPERM ? -EPROTO : -value;
    } catch (...) {
      (void)invitation.release();
      throw;
    }
    return 0;
  });
}

void farcall_subscriber_close(farcall_subscriber* subscriber) {
  guarded([&] {
    delete of(subscriber);
    return 0;
  });
}

std::int64_t farcall_subscriber_receive(farcall_subscriber* subscriber, void* bytes,
                                        std::size_t room, std::size_t* needed,
                                        std::uint64_t* missed, std::int64_t timeout) {
  const SignalCount since = SignalCount::now();
  return translated([&]() -> std::int64_t {
    if (subscriber == nullptr) return -EINVAL;
    check_buffer(bytes, room);
    if (const int error = of(subscriber)->use(); error != 0) return error;
    std::size_t size = 0;
    std::uint64_t lost = 0;
    const Outcome outcome = (*of(subscriber))
                                ->read(std::span(static_cast<std::byte*>(bytes), room), size, lost,
                                       deadline_of(timeout), since);
    order_for_sanitizer();
    of(subscriber)->missed += lost;
    if (outcome == Outcome::too_big && needed != nullptr) *needed = size;
    if (outcome != Outcome::ok) return -to_errno(outcome);
    const std::uint64_t all = std::exchange(of(subscriber)->missed, 0);
    if (missed != nullptr) *missed = all;
    return static_cast<std::int64_t>(size);
  });
}

int farcall_publisher_poll_descriptor(const farcall_publisher* publisher) {
  return poll_descriptor(of(publisher));
}
int farcall_publisher_poll_begin(farcall_publisher* publisher) { return poll_begin(of(publisher)); }
void farcall_publisher_poll_end(farcall_publisher* publisher) { poll_end(of(publisher)); }

int farcall_subscriber_poll_descriptor(const farcall_subscriber* subscriber) {
  return poll_descriptor(of(subscriber));
}
int farcall_subscriber_poll_begin(farcall_subscriber* subscriber) {
  return poll_begin(of(subscriber));
}
void farcall_subscriber_poll_end(farcall_subscriber* subscriber) { poll_end(of(subscriber)); }
