// SPDX-License-Identifier: Apache-2.0
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/local_server.hpp"
#include "farcall/message.h"

namespace farcall::bridge {
namespace {

class Link {
 public:
  explicit Link(int number) noexcept : number_(number) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { ::farcall_disconnect(number_); }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  const int number_;
};

// Tells of the death of servers: a channel of this process's own, that nobody else knows.
class Deaths {
 public:
  Deaths() : channel_(::farcall_channel_create(0)) {}
  ~Deaths() { ::farcall_channel_destroy(channel_); }
  Deaths(const Deaths&) = delete;
  Deaths& operator=(const Deaths&) = delete;
  // From now on `value` is told when that server goes.
  void watch(int connection, std::int64_t value) const {
    (void)::farcall_watch_death(connection, channel_, value);
  }
  // The last server that has gone since, or 0.
  [[nodiscard]] std::int64_t gone() const {
    std::int64_t last = 0;
    farcall_info info{};
    for (;;) {
      ::farcall_timeout(0);
      if (::farcall_receive(channel_, nullptr, 0, &info) != 0) return last;
      if (info.code == FARCALL_PULSE_DEATH) last = std::max(last, info.value);
    }
  }

 private:
  const int channel_;
};

class LocalChannel final : public LocalServer {
 public:
  explicit LocalChannel(std::string name) : name_(std::move(name)) {}

  bool present() override {
    {
      const std::lock_guard guard(lock_);
      if (link_ && deaths_.gone() < opened_) return true;
    }
    return reopen(current()) != nullptr;
  }
  LocalAnswer call(Worker& worker, const Header& header, std::span<const std::byte> data,
                   const std::atomic<bool>& cancelled) override;
  int one_way(Worker& worker, const Header& header, std::span<const std::byte> data) override {
    worker.take_priority(header.priority);
    return with_link([&](int connection) {
      return ::farcall_send_one_way(connection, data.data(), data.size());
    });
  }
  int pulse(const Header& header) override {
    return with_link([&](int connection) {
      return ::farcall_pulse(connection, std::min(header.priority, ::farcall_priority()),
                             header.code, header.value);
    });
  }

 private:
  using Handle = std::shared_ptr<Link>;
  Handle current() {
    const std::lock_guard guard(lock_);
    return link_;
  }
  // Another one than `stale`, or null: also where the server does not say anything.
  Handle reopen(const Handle& stale) {
    constexpr std::int64_t kPatience = 1'000'000'000;
    {
      const std::lock_guard guard(lock_);
      if (link_ != stale) return link_;
      link_ = nullptr;
    }
    ::farcall_timeout(kPatience);
    const int number = ::farcall_name_open(name_.c_str());
    if (number < 0) return nullptr;
    auto made = std::make_shared<Link>(number);
    const std::lock_guard guard(lock_);
    if (link_) return link_;  // another thread's
    link_ = std::move(made);
    deaths_.watch(number, ++opened_);
    return link_;
  }
  template <class Send>
  int with_link(const Send& send) {
    Handle link = current();
    if (!link) link = reopen(nullptr);
    if (!link) return ECONNREFUSED;
    const int result = send(link->number());
    const int error = result < 0 ? errno : 0;
    if (error != ESRCH) return error;
    // Whether the server had received it is not known.
    reopen(link);
    return ECONNRESET;
  }

  const std::string name_;
  const Deaths deaths_;
  std::mutex lock_;  // protects what follows
  Handle link_;
  std::int64_t opened_ = 0;  // how often
};

LocalAnswer LocalChannel::call(Worker& worker, const Header& header,
                               std::span<const std::byte> data,
                               const std::atomic<bool>& cancelled) {
  Handle link = current();
  if (!link) link = reopen(nullptr);
  if (!link) return {.error = ECONNREFUSED, .status = 0, .not_taken = true, .data = {}};
  worker.take_priority(header.priority);
  // Only a message says how much room there is for its reply.
  const std::span<std::byte> room =
      worker.room(header.message ? std::min(header.room, kLongest) : kLongest);
  const iovec out{.iov_base = const_cast<std::byte*>(data.data()), .iov_len = data.size()};
  const iovec in{.iov_base = room.data(), .iov_len = room.size()};
  farcall_message message{};
  message.send = &out;
  message.send_count = 1;
  message.reply = &in;
  message.reply_count = 1;
  const int status = ::farcall_send_message(link->number(), &message);
  if (status >= 0) {
    worker.used(message.replied);
    return {.error = 0, .status = status, .data = room.first(message.replied)};
  }
  const int error = errno;
  worker.used(room.size());  // perhaps
  if (error == EINTR && !cancelled) return {.error = ECONNRESET};
  if (error != ESRCH) return {.error = error};
  // Whether the server had received it is not known.
  reopen(link);
  return {.error = ECONNRESET};
}

}  // namespace

std::unique_ptr<LocalServer> local_channel(const std::string& name) {
  return std::make_unique<LocalChannel>(name);
}

}  // namespace farcall::bridge
