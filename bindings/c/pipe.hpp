// SPDX-License-Identifier: Apache-2.0
//
// A pipe: two rings of one kind, one each way. Each has a lifeline of its own: one thread may sleep
// in a send while another sleeps in a receive, and were there one socket for both, the one would
// take the doorbells of the other.
//
// Until it is first used an end belongs to nobody: forked children have it, too, and either side
// may go on with it. The first use makes it this process's alone; the ring that it writes keeps
// note of that for all who have the end. Its lifelines are closed in children from then on, so
// that a child that does not know of them does not hide this process's death from the peer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "farcall/farcall.h"
#include "farcall/memory.hpp"
#include "farcall/observe.hpp"
#include "farcall/ring.hpp"
#include "process/process.hpp"
#include "process/process_mutex.hpp"
#include "socket/doorbells.hpp"

namespace farcall::c {

// A descriptor that is everybody's first, and this process's from keep() on, with the same number.
class Lifeline {
 public:
  explicit Lifeline(UniqueFd fd) noexcept : fd_(std::move(fd)), number_(fd_.get()) {}
  [[nodiscard]] int get() const noexcept { return number_; }
  void keep() noexcept { kept_ = DoorbellSocket(process::PrivateFd(std::move(fd_))); }

 private:
  UniqueFd fd_;
  DoorbellSocket kept_;
  int number_;
};

// One half that sends, used by one thread at a time. `Writer` is that of a kind of ring.
template <class Writer>
class Sender {
 public:
  Sender(RingView ring, Waiter waiter) noexcept : ring_(ring, waiter) {}

  // Writes by `write`, which gets the ring, unless there is nobody to write to.
  template <class Write>
  Outcome send(Write write) {
    if (finished_) return Outcome::finished;
    if (ticks() - looked_ > kTicksPerLook && is_in_vain()) [[unlikely]]
      return Outcome::peer_gone;
    const Outcome outcome = write(ring_);
    if (outcome == Outcome::peer_gone) looked_ = 0;
    return outcome;
  }
  void finish() noexcept {
    if (!std::exchange(finished_, true)) ring_.finish();
  }
  Outcome prepare_poll() { return finished_ ? Outcome::ok : ring_.prepare_poll(); }
  bool finish_poll() noexcept { return ring_.finish_poll(); }
  void observe(observe::Half* half) noexcept { ring_.observe(half); }

 private:
  // Who finds room never waits, and so would not learn that the peer has died.
  static constexpr std::uint64_t kTicksPerLook = 20'000'000;  // 4 to 20 ms
  bool is_in_vain() noexcept {
    if (ring_.peer_gone()) return true;  // and so the next time, at once
    looked_ = ticks();
    return false;
  }

  Writer ring_;
  std::uint64_t looked_ = 0;
  bool finished_ = false;
};

// The other one, of messages; of bytes it is a ByteReader. What has been taken of a long message is
// kept where the caller does not come back for the rest with the same buffer.
class MessageReceiver {
 public:
  MessageReceiver(RingView ring, Waiter waiter) noexcept : ring_(ring, waiter) {}

  // `size` is set with ok and too_big. Throws std::bad_alloc, always again.
  Outcome receive(std::span<std::byte> into, std::size_t& size, Deadline deadline,
                  SignalCount since);
  void finish() noexcept { ring_.finish(); }
  Outcome prepare_poll() { return failed_ || lost_ ? Outcome::ok : ring_.prepare_poll(); }
  bool finish_poll() noexcept { return ring_.finish_poll(); }
  void observe(observe::Half* half) noexcept { ring_.observe(half); }

 private:
  Outcome fail() noexcept {
    failed_ = true;
    return Outcome::broken;
  }
  // The size of the message whose first piece this is, which is made the rest of that piece; 0 for
  // what is none.
  static std::size_t begin_long(std::span<const std::byte>& piece) noexcept;
  Outcome receive_long(std::span<const std::byte> piece, std::span<std::byte> into,
                       Deadline deadline, SignalCount since);
  void keep(std::span<const std::byte> received);

  MessageReader ring_;
  std::size_t total_ = 0;     // of the unfinished long message, or 0
  std::size_t received_ = 0;  // of it
  std::unique_ptr<std::byte[]> kept_;
  bool failed_ = false;
  bool lost_ = false;  // what was received, for want of memory
};

// What an end consists of, in the order of farcall_pipe_descriptors().
struct PipeParts {
  enum : std::size_t { kOut, kOutLifeline, kIn, kInLifeline, kCount };
  std::array<UniqueFd, kCount> fds;
};
// Two ends of a new pipe. Throws SystemError.
std::array<PipeParts, 2> make_pipe(std::size_t capacity, RingKind kind);

inline constexpr std::size_t kDefaultCapacity = std::size_t{256} << 10;
inline constexpr std::size_t kDefaultMost = std::size_t{1} << 30;
inline constexpr std::size_t kLargestCapacity = std::size_t{16} << 30;

// An end, but for what goes through it. What its constructor is given stays the caller's where it
// throws: SystemError, EPROTO for what is no end of a pipe, or of one of more than `most` bytes
// each way, EPROTOTYPE for what is one of another kind.
class Pipe {
 public:
  virtual ~Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] RingKind kind() const noexcept { return kind_; }
  // Bytes of what it sends.
  [[nodiscard]] std::size_t capacity() const noexcept { return out_memory_.view().capacity; }

  // Before each operation. Returns 0, or -EBUSY where another process uses it.
  [[nodiscard]] int use() noexcept {
    const std::uint64_t here = process::generation();
    // acquire: pairs with the release of who has used it first, on another thread.
    if (used_by_.load(std::memory_order_acquire) == here) [[likely]]
      return 0;
    return begin_use(here);
  }
  [[nodiscard]] bool is_used_here() const noexcept {
    return used_by_.load(std::memory_order_acquire) == process::generation();
  }
  // Tells the peer that nothing follows, now or with the first use: an end that others may use is
  // not taken from them for that.
  void close_sending() noexcept;
  // What who looks at the traffic sees; before the first use.
  void set_label(std::string_view name, observe::Role role) {
    name_ = name;
    role_ = role;
  }
  // Returns 0, or -EBUSY.
  int give_descriptors(int* descriptors) const noexcept;

  [[nodiscard]] int receive_descriptor() const noexcept { return in_lifeline_.get(); }
  [[nodiscard]] int send_descriptor() const noexcept { return out_lifeline_.get(); }

 protected:
  Pipe(PipeParts& parts, std::size_t most, RingKind kind);
  // The halves are told where they are counted, by the process that uses the end.
  virtual void observe(const observe::Entry& entry) noexcept = 0;
  virtual void finish_sending() noexcept = 0;
  // Whether the peer is to be told when this goes; else another process may go on with it.
  [[nodiscard]] bool is_its_last() const noexcept;
  [[nodiscard]] RingView out() const noexcept { return out_memory_.view(); }
  [[nodiscard]] RingView in() const noexcept { return in_memory_.view(); }

 private:
  struct Checked;
  Pipe(Checked&& checked, PipeParts& parts, RingKind kind) noexcept;
  [[nodiscard]] bool is_everybodys() const noexcept;
  int begin_use(std::uint64_t here) noexcept;

  RingMemory out_memory_;
  RingMemory in_memory_;
  UniqueFd out_file_;  // until the first use, as is the next
  UniqueFd in_file_;
  Lifeline out_lifeline_;
  Lifeline in_lifeline_;

  mutable process::ProcessMutex lock_;     // held by who uses the end first, or gives it away
  std::atomic<std::uint64_t> used_by_{0};  // the generation, of which 0 is none
  bool sends_ = true;                      // by lock_, until the first use
  const std::uint64_t made_in_ = process::generation();
  const std::uint64_t forks_before_;
  mutable std::atomic<bool> given_{false};  // whether others may have its descriptors
  const RingKind kind_;
  std::string name_;
  observe::Role role_ = observe::Role::none;
  observe::Entry entry_;  // once it is used
};

// The whole of it, by the halves of a kind of ring.
template <class Writer, class Receiver>
class PipeOf final : public Pipe {
 public:
  static constexpr RingKind kKind =
      std::is_same_v<Writer, ByteWriter> ? RingKind::bytes : RingKind::messages;

  PipeOf(PipeParts& parts, WaitMode mode, std::size_t most)
      : Pipe(parts, most, kKind),
        sender_(out(), Waiter(send_descriptor(), mode, kDoorbells)),
        receiver_(in(), Waiter(receive_descriptor(), mode, kDoorbells)) {}
  ~PipeOf() override {
    if (!is_its_last()) return;
    sender_.finish();
    receiver_.finish();
  }

  [[nodiscard]] Sender<Writer>& sender() noexcept { return sender_; }
  [[nodiscard]] Receiver& receiver() noexcept { return receiver_; }

 protected:
  void observe(const observe::Entry& entry) noexcept override {
    sender_.observe(entry.sent());
    receiver_.observe(entry.received());
  }
  void finish_sending() noexcept override { sender_.finish(); }

 private:
  // Two threads work on them.
  alignas(kFalseSharing) Sender<Writer> sender_;
  alignas(kFalseSharing) Receiver receiver_;
};
using MessagePipe = PipeOf<MessageWriter, MessageReceiver>;
using BytePipe = PipeOf<ByteWriter, ByteReader>;

// Calls `use` with the end as what it is.
template <class Use>
auto with_kind(Pipe& end, Use use) {
  if (end.kind() == RingKind::bytes) return use(static_cast<BytePipe&>(end));
  return use(static_cast<MessagePipe&>(end));
}

// What programs have of it is a pointer to a type that nobody knows.
inline Pipe* pipe_of(farcall_pipe* handle) noexcept { return reinterpret_cast<Pipe*>(handle); }
inline const Pipe* pipe_of(const farcall_pipe* handle) noexcept {
  return reinterpret_cast<const Pipe*>(handle);
}
inline farcall_pipe* handle_of(std::unique_ptr<Pipe> pipe) noexcept {
  return reinterpret_cast<farcall_pipe*>(pipe.release());
}

}  // namespace farcall::c
