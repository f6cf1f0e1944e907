// SPDX-License-Identifier: Apache-2.0
//
// One writer, up to 64 readers in other processes, each at its own pace.
//
//   Publisher steps("step", {.slow = SlowReader::overwrite});    // one process
//   steps.write(bytes, Deadline::now());
//
//   auto steps = Subscriber::open("step", {}, Deadline::never());  // others of the same user
//   while (steps.read(into, size, missed, Deadline::never()) == Outcome::ok) ...
//
// Readers map the messages read-only, and share a page each with the writer, so that none can hurt
// another. They may come and go at any time, also while the writer does nothing. A reader that dies
// is noticed by the kernel's word and holds nobody up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall {

namespace broadcast {
class PublisherState;
struct SubscriberState;
}  // namespace broadcast

// What becomes of a reader that is slow.
enum class SlowReader : std::uint8_t {
  block,      // the writer waits for it, until its deadline
  overwrite,  // it misses messages, and learns how many
  drop,       // it is a reader no longer: `dropped`
};

// Used by one thread at a time, but for readers() and invite().
class Publisher {
 public:
  static constexpr unsigned kMostReaders = 64;
  struct Options {
    std::size_t capacity = std::size_t{1} << 20;  // bytes; rounded up to a power of two
    SlowReader slow = SlowReader::block;
    WaitMode wait = WaitMode::adaptive;  // of a writer that waits for readers
    unsigned readers = kMostReaders;     // at most
  };

  // For those who are invited. Throws SystemError; MisuseError for more than kMostReaders.
  explicit Publisher(const Options& options);
  // For subscribers of this user, by name. Throws SystemError: EADDRINUSE if somebody
  // serves that name, EINVAL if it is empty or too long.
  Publisher(std::string_view name, const Options& options);
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) noexcept;
  // Its readers end when they have read all there is. In a forked child nothing happens.
  ~Publisher();

  // A descriptor for Subscriber::adopt(), in whatever process. Its holder counts as a reader from
  // now on. Throws SystemError: EUSERS if there are too many, EMFILE.
  UniqueFd invite();
  // Outcomes: ok; too_big for more than longest() bytes; and, where readers are waited for,
  // would_block, timed_out, interrupted: then nothing was written. A signal that was caught after
  // `since` interrupts.
  Outcome write(std::span<const std::byte> message, Deadline deadline,
                std::optional<SignalCount> since = std::nullopt);
  // The longest message, in bytes: somewhat less than a quarter of the capacity.
  [[nodiscard]] std::size_t longest() const noexcept;
  [[nodiscard]] unsigned readers() const noexcept;

  // For poll and epoll: after prepare_poll() returned would_block, the descriptor becomes readable
  // when there may be room for the message that write() has refused last, or where it has refused
  // none for the longest. It is ok where nobody is waited for. Call finish_poll() before the next
  // operation. Throws SystemError: ENOMEM.
  Outcome prepare_poll();
  void finish_poll() noexcept;
  [[nodiscard]] int poll_descriptor() const noexcept;

 private:
  std::shared_ptr<broadcast::PublisherState> state_;
};

// Used by one thread at a time.
class Subscriber {
 public:
  enum class Start : std::uint8_t {
    newest,  // with what is written from now on
    oldest,  // with the oldest message that is still there; with SlowReader::drop, as newest where
             // that one is written over before the reader has begun
  };
  struct Options {
    Start start = Start::newest;
    WaitMode wait = WaitMode::adaptive;
    std::size_t most = std::size_t{1} << 30;  // of the publisher's capacity, bytes: else EPROTO
  };

  // The publisher's process answers, which takes it a moment: hardly ever is that there by
  // Deadline::now(). A publisher that closes or dies meanwhile, or has no descriptor left to let
  // this in, is none. Throws SystemError: ECONNREFUSED if nobody publishes it by the deadline,
  // ETIMEDOUT if somebody does and has not answered (it may be stopped), EPERM if another user
  // does, EUSERS if there are too many readers, EPROTO for what is no publisher, EINTR where a
  // signal has been caught after `since`.
  static Subscriber open(std::string_view name, const Options& options, Deadline deadline,
                         std::optional<SignalCount> since = std::nullopt);
  // Takes over what invite() gave. Throws SystemError; then the descriptor stays the caller's.
  static Subscriber adopt(UniqueFd&& invitation, const Options& options);
  Subscriber(Subscriber&&) noexcept;
  Subscriber& operator=(Subscriber&&) noexcept;
  ~Subscriber();

  // Reads one message. `missed`: how many before it have been written over since the last one.
  // Outcomes: ok, would_block, timed_out, interrupted; too_big where `into` is smaller than `size`:
  // the message is then still there; finished, peer_gone, broken and dropped are final.
  Outcome read(std::span<std::byte> into, std::size_t& size, std::uint64_t& missed,
               Deadline deadline, SignalCount since = SignalCount::now());

  // For poll and epoll, see Waiter::prepare_poll().
  Outcome prepare_poll();
  void finish_poll() noexcept;
  [[nodiscard]] int poll_descriptor() const noexcept;

 private:
  explicit Subscriber(std::unique_ptr<broadcast::SubscriberState> state) noexcept;

  std::unique_ptr<broadcast::SubscriberState> state_;
};

}  // namespace farcall
