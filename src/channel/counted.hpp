// SPDX-License-Identifier: Apache-2.0
//
// Ends of mechanisms made of messages that know neither end nor death: datagrams and queues.
//
// The writer counts what it sends and says over the lifeline how much it was; the reader has all
// when it has as many. To wake a reader that already waits in the mechanism, the writer sends an
// empty message after that, the mark: the reader that takes an empty message looks at the lifeline
// and tells by the count whether it was one of the user's. If the mechanism is full there is no
// need for a mark, nor room: the writer tries for kPatienceForMark, and at worst the reader looks
// at the lifeline by itself after kBriefly.
//
// A lifeline that ends without a count says that the writer died. What it sent is still there.
#pragma once

#include <cstdint>

#include "channel/lifeline.hpp"
#include "channel/record.hpp"

namespace farcall::channel {

inline constexpr int kPatienceForMark = 20;  // ms

class CountedReader : public RecordReader {
 protected:
  enum class Wait { no, briefly };

  // `fd` is what poll() takes for the mechanism; borrowed from the derived class.
  CountedReader(std::size_t longest, int fd, Lifeline lifeline)
      : RecordReader(longest), fd_(fd), lifeline_(std::move(lifeline)) {}

  // Takes a message as take() does; std::nullopt if none came at once, or within kBriefly.
  virtual std::optional<std::size_t> attempt(std::span<std::byte> into, std::span<std::byte> spill,
                                             Wait wait) = 0;

  // For a mechanism that may lose messages: there are at least so many.
  void expect(std::uint64_t count) noexcept;
  Lifeline& lifeline() noexcept { return lifeline_; }

  std::optional<std::size_t> take(std::span<std::byte> into, std::span<std::byte> spill) final;

 private:
  static constexpr std::uint64_t kUnknown = UINT64_MAX;

  void listen();
  void wait_for_more();

  int fd_;
  Lifeline lifeline_;
  std::uint64_t received_ = 0;
  std::uint64_t total_ = kUnknown;  // as the writer said when it finished
  std::uint64_t at_least_ = 0;      // sent, and so on its way if not received
  std::int64_t missing_since_ = 0;  // when we first waited for what was on its way; 0: we do not
  bool overdue_ = false;  // it has been missing for too long, and was looked for once more
  bool dead_ = false;
};

class CountedWriter : public RecordWriter {
 protected:
  CountedWriter(std::size_t longest, std::size_t piece, Lifeline lifeline)
      : RecordWriter(longest, piece), lifeline_(std::move(lifeline)) {}

  // Sends a message. Throws SystemError: EPIPE where the reader has gone.
  virtual void post(std::span<const std::byte> message) = 0;
  // Sends an empty message within kPatienceForMark if it can.
  virtual void post_mark() noexcept = 0;
  // Gives back what the mechanism holds.
  virtual void close_mechanism() noexcept = 0;

  Lifeline& lifeline() noexcept { return lifeline_; }
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }

  void write_message(std::span<const std::byte> message) final {
    post(message);
    ++sent_;
  }
  void write_end() final;

 private:
  Lifeline lifeline_;
  std::uint64_t sent_ = 0;
};

}  // namespace farcall::channel
