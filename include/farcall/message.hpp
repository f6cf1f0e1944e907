// SPDX-License-Identifier: Apache-2.0
//
// Send / Receive / Reply for C++: owners for what farcall/message.h numbers, errors as exceptions.
// Header only; it needs the library farcall-messages and nothing else.
//
//   farcall::MessageChannel channel("clock");            farcall::MessageConnection clock("clock");
//   for (;;) {                                            std::int64_t time = 0;
//     auto message = channel.receive(buffer);             clock.send(question, bytes_of(time));
//     if (message) message.reply(bytes_of(now()));
//   }
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "farcall/message.h"

namespace farcall {

// Throws std::system_error where a call of farcall/message.h has failed.
template <class Result>
Result checked_message(Result result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Something that was received: a message, which wants an answer unless it came one way, or a pulse.
// A message that is destroyed without an answer is answered with ECANCELED, and the descriptors
// that came along are closed with it, by farcall_drop_descriptors().
class ReceivedMessage {
 public:
  ReceivedMessage() = default;
  // Takes the descriptors in `about` over.
  ReceivedMessage(std::int64_t id, const farcall_info& about) : id_(id), info_(about) {}
  ReceivedMessage(ReceivedMessage&& other) noexcept
      : id_(std::exchange(other.id_, 0)), info_(other.info_) {
    other.info_.descriptor_count = 0;
  }
  ReceivedMessage& operator=(ReceivedMessage&& other) noexcept {
    if (this != &other) {
      abandon();
      id_ = std::exchange(other.id_, 0);
      info_ = other.info_;
      other.info_.descriptor_count = 0;
    }
    return *this;
  }
  ~ReceivedMessage() { abandon(); }

  // Whether somebody waits for an answer.
  explicit operator bool() const noexcept { return id_ > FARCALL_ONE_WAY; }
  [[nodiscard]] bool is_pulse() const noexcept { return id_ == 0; }
  [[nodiscard]] bool is_one_way() const noexcept { return id_ == FARCALL_ONE_WAY; }
  [[nodiscard]] std::int64_t id() const noexcept { return id_; }
  [[nodiscard]] const farcall_info& info() const noexcept { return info_; }

  // What came along. They stay the message's; duplicate those that are to outlive it.
  [[nodiscard]] std::span<const int> descriptors() const noexcept {
    return {info_.descriptors, info_.descriptor_count};
  }
  // The caller's from now on; the message has none any more.
  [[nodiscard]] std::vector<int> take_descriptors() {
    std::vector<int> taken(info_.descriptors, info_.descriptors + info_.descriptor_count);
    info_.descriptor_count = 0;
    return taken;
  }
  // Closes them now, where the message is to live on.
  void drop_descriptors() noexcept {
    if (info_.descriptor_count != 0) (void)farcall_drop_descriptors(&info_);
  }

  // Each ends the client's wait, once. All throw std::system_error: with ESRCH where the client has
  // gone; after any other error the client waits on, and another answer may be tried.
  void reply(std::span<const std::byte> data = {}, int status = 0) {
    answered(farcall_reply(id_, status, data.data(), data.size()), "reply");
  }
  void error(int error_number) {
    answered(farcall_error(id_, error_number), "reply with an error");
  }
  // Somebody else answers, by the id.
  std::int64_t release() noexcept { return std::exchange(id_, 0); }

  std::size_t read(std::size_t offset, std::span<std::byte> to) const {
    return static_cast<std::size_t>(
        checked_message(farcall_read(id_, offset, to.data(), to.size()), "read"));
  }
  std::size_t write(std::size_t offset, std::span<const std::byte> from) const {
    return static_cast<std::size_t>(
        checked_message(farcall_write(id_, offset, from.data(), from.size()), "write"));
  }

 private:
  void answered(int result, const char* what) {
    if (result == 0 || errno == ESRCH) id_ = 0;
    checked_message(result, what);
  }
  void abandon() noexcept {
    if (id_ > FARCALL_ONE_WAY) (void)farcall_error(id_, ECANCELED);
    id_ = 0;
    drop_descriptors();
  }

  std::int64_t id_ = 0;
  farcall_info info_{};
};

// For the next call of this thread.
inline void set_message_timeout(std::chrono::nanoseconds time) { farcall_timeout(time.count()); }

class MessageConnection {
 public:
  MessageConnection() = default;
  explicit MessageConnection(const std::string& name)
      : MessageConnection(checked_message(farcall_name_open(name.c_str()), "open a name")) {}
  // Takes the connection over.
  explicit MessageConnection(int number) noexcept : number_(number) {}
  MessageConnection(MessageConnection&& other) noexcept
      : number_(std::exchange(other.number_, 0)) {}
  MessageConnection& operator=(MessageConnection&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~MessageConnection() {
    if (number_ > 0) farcall_disconnect(number_);
  }

  explicit operator bool() const noexcept { return number_ > 0; }
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int descriptor() const {
    return checked_message(farcall_connection_descriptor(number_), "a connection's descriptor");
  }

  struct Reply {
    int status;
    std::span<std::byte> data;  // of the room that was given
  };
  Reply send(std::span<const std::byte> data, std::span<std::byte> room = {},
             std::span<const int> descriptors = {}) const {
    const iovec out{.iov_base = const_cast<std::byte*>(data.data()), .iov_len = data.size()};
    const iovec in{.iov_base = room.data(), .iov_len = room.size()};
    farcall_message message{};
    message.send = &out;
    message.send_count = 1;
    message.reply = &in;
    message.reply_count = 1;
    message.descriptors = descriptors.data();
    message.descriptor_count = static_cast<unsigned>(descriptors.size());
    const int status = checked_message(farcall_send_message(number_, &message), "send");
    return {.status = status, .data = room.first(message.replied)};
  }
  void send_one_way(std::span<const std::byte> data) const {
    checked_message(farcall_send_one_way(number_, data.data(), data.size()), "send");
  }
  void pulse(int code, std::int64_t value = 0, int priority = 0) const {
    checked_message(farcall_pulse(number_, priority, code, value), "pulse");
  }

 private:
  int number_ = 0;
};

class MessageChannel {
 public:
  explicit MessageChannel(unsigned flags = 0)
      : number_(checked_message(farcall_channel_create(flags), "make a channel")) {}
  explicit MessageChannel(const std::string& name, unsigned flags = 0, mode_t mode = 0600)
      : number_(checked_message(farcall_name_attach(name.c_str(), flags, mode), "attach a name")) {}
  MessageChannel(MessageChannel&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  MessageChannel& operator=(MessageChannel&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~MessageChannel() {
    if (number_ > 0) farcall_channel_destroy(number_);
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int descriptor() const {
    return checked_message(farcall_channel_descriptor(number_), "a channel's descriptor");
  }
  [[nodiscard]] MessageConnection connect() const {
    return MessageConnection(checked_message(farcall_connect(number_), "connect"));
  }
  // Waits for something. Throws std::system_error: EINTR, ETIMEDOUT, EBADF.
  ReceivedMessage receive(std::span<std::byte> into) const {
    farcall_info info{};
    const std::int64_t id =
        checked_message(farcall_receive(number_, into.data(), into.size(), &info), "receive");
    return {id, info};
  }
  // Answers `last`, if it wants an answer, and waits: the quickest way to serve. Throws
  // std::system_error: EINTR and ETIMEDOUT, with `last` answered, or what reply() throws, and then
  // nothing was received and `last` wants its answer still. With EBADF either may be so.
  ReceivedMessage reply_receive(ReceivedMessage& last, std::span<const std::byte> reply,
                                std::span<std::byte> into, int status = 0) const {
    farcall_info info{};
    const std::int64_t id =
        farcall_reply_receive(last ? last.id() : 0, status, reply.data(), reply.size(), number_,
                              into.data(), into.size(), &info);
    if (id >= 0 || errno == EINTR || errno == ETIMEDOUT) (void)last.release();
    return {checked_message(id, "reply and receive"), info};
  }

 private:
  int number_ = 0;
};

}  // namespace farcall
