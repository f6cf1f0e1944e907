// SPDX-License-Identifier: Apache-2.0
//
// Clients whose message was received and that wait for a reply, and the ids by which they are
// answered.
//
//   id   bits 62..20                     19..0
//        how often the place was used    place in the table
//
// An id is good for one answer. Whoever uses one holds its place meanwhile, so that the client
// cannot be answered, nor the channel go, under its hands.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "message/buffers.hpp"
#include "process/process.hpp"

namespace farcall::message {

class Channel;

class PendingReply {
 public:
  PendingReply();
  virtual ~PendingReply();
  PendingReply(const PendingReply&) = delete;
  PendingReply& operator=(const PendingReply&) = delete;

  // Answer with a status, or with an errno where `error` is not 0. Throw SystemError: ESRCH where
  // the client has gone; after any other error it waits on.
  // `coming_back`: the thread goes on to receive from the same channel at once.
  virtual void reply(int status, int error, Buffers data, bool coming_back) = 0;
  virtual std::size_t read(std::size_t offset, Buffers to) = 0;
  virtual std::size_t write(std::size_t offset, Buffers from) = 0;
  [[nodiscard]] virtual bool is_of(const Channel& that) const noexcept = 0;
  // It has been answered, or cannot be any more: may be used for another client.
  virtual void done() noexcept = 0;

  // From now on it has an id.
  std::int64_t give_id() noexcept;
  // 0: none.
  [[nodiscard]] std::int64_t id() const noexcept;
  // The one that Use::withdraw() has taken is good again.
  void give_id_again(std::int64_t id) noexcept;
  // What was received is not to be answered after all. True if it had an id.
  bool take_id() noexcept;
  // For who uses its id: what may not go before it is let go of.
  void let_go_after_use(std::shared_ptr<void> object) noexcept;

 private:
  friend class Use;
  struct Place;
  struct Places;
  static process::MadeOnce<Places> places_;
  static const bool registered_;
  static Place* place(std::int64_t id) noexcept;
  Place* place_;
  const std::uint64_t generation_;
};

// The client with that id, for as long as this lives. Throws SystemError: ESRCH.
class Use {
 public:
  explicit Use(std::int64_t id);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  PendingReply* operator->() const noexcept { return pending_; }
  [[nodiscard]] PendingReply* get() const noexcept { return pending_; }
  // The id is good no more.
  void end() noexcept;
  // Nor is it from here on, but it may be given again; else the caller says that it is done().
  PendingReply* withdraw() noexcept;

 private:
  PendingReply::Place* place_;
  PendingReply* pending_;
  bool ended_ = false;
};

}  // namespace farcall::message
