// SPDX-License-Identifier: Apache-2.0
//
// Messages over stplr.ko: channels and connections are its descriptors.
#pragma once

#include <libstplr.h>

#include <bit>
#include <mutex>
#include <vector>

#include "farcall/error.hpp"
#include "message/engine.hpp"
#include "message/pending_reply.hpp"
#include "wait/sleeper.hpp"

namespace farcall::message {

class KernelChannel;

// Functions of libstplr have the names of these.
using ReceiveArguments = struct ::stplr_receive;
using SendArguments = struct ::stplr_send;
using ReplyArguments = struct ::stplr_reply;
using ReplyReceiveArguments = struct ::stplr_reply_receive;
using PulseArguments = struct ::stplr_pulse;

class KernelPendingReply final : public PendingReply {
 public:
  explicit KernelPendingReply(KernelChannel& of) : channel(of) {}
  void reply(int status, int error, Buffers data, bool coming_back) override;
  std::size_t read(std::size_t offset, Buffers to) override;
  std::size_t write(std::size_t offset, Buffers from) override;
  [[nodiscard]] bool is_of(const Channel& that) const noexcept override;
  void done() noexcept override;

  KernelChannel& channel;
};

class KernelChannel final : public Channel, public std::enable_shared_from_this<KernelChannel> {
 public:
  KernelChannel(const char* name, unsigned flags, mode_t mode);
  ~KernelChannel() override;
  std::int64_t receive(Buffers into, Deadline deadline, farcall_info* info,
                       SignalCount since) override;
  std::int64_t reply_receive(std::int64_t id, int status, Buffers reply, Buffers into,
                             Deadline deadline, farcall_info* info, SignalCount since) override;
  int descriptor() override { return fd_.get(); }
  UniqueFd connect() override;
  void post(int priority, int code, std::int64_t value) override;
  void close() noexcept override;
  void give_back(KernelPendingReply& pending) noexcept;

 private:
  class Expected;
  class Answered;
  std::int64_t take(const ReceiveArguments& received, Expected& expected,
                    const std::vector<std::int32_t>& files, farcall_info* info);
  void check_received(int result) const;
  [[nodiscard]] bool owes(std::int64_t id) const noexcept;
  KernelPendingReply& free_pending();

  process::PrivateFd fd_;  // a child that had it would keep the channel open
  std::atomic<std::int64_t> next_label_;
  std::mutex lock_;  // protects what follows
  std::vector<std::unique_ptr<KernelPendingReply>> all_pending_;
  std::vector<KernelPendingReply*> free_pending_;
};

class KernelConnection final : public Connection {
 public:
  explicit KernelConnection(UniqueFd fd) : fd_(std::move(fd)) {}
  int send(Sending& sending, Deadline deadline) override;
  int pulse(int priority, int code, std::int64_t value) override;
  void watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) override;
  int descriptor() override { return fd_.get(); }
  void close() noexcept override;

 private:
  void check(int result, const char* what) const;

  UniqueFd fd_;
  std::atomic<std::uint64_t> watched_by_{0};  // the process that has asked for the server's death
};

// The kernel's view of buffers, good as long as both live.
class KernelBuffer {
 public:
  explicit KernelBuffer(Buffers buffers);
  [[nodiscard]] stplr_buffer get() const noexcept { return buffer_; }

 private:
  std::vector<struct stplr_part> parts_;
  stplr_buffer buffer_{};
};

// One wait in the kernel until a deadline, or until a signal is caught after `since`: be it before
// the kernel has the call, or with SA_RESTART, which has it made again. Of a wait with an end, the
// kernel alone knows of those that are caught once it has begun. It says which it was, for a
// server may answer with the same error.
class KernelWait {
 public:
  KernelWait(__s64& timeout, Deadline deadline, SignalCount since) noexcept;

 private:
  static_assert(WaitState::kOnFutex == static_cast<std::uint32_t>(STPLR_ARMED));
  static_assert(WaitState::kAwake == static_cast<std::uint32_t>(STPLR_DISARMED));
  static std::atomic<std::uint32_t>& lower_half(__s64& timeout) noexcept {
    auto* halves = reinterpret_cast<std::atomic<std::uint32_t>*>(&timeout);
    return halves[std::endian::native == std::endian::little ? 0 : 1];
  }
  static std::atomic<std::uint32_t>& arm(__s64& timeout, Deadline deadline) noexcept;

  const Sleeper sleeper_;
};

// Throws SystemError where `result` is a negative errno.
ssize_t checked(ssize_t result, const char* what);

}  // namespace farcall::message
