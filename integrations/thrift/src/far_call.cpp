// SPDX-License-Identifier: Apache-2.0
#include "far_call.hpp"

#include <atomic>
#include <cerrno>

#include "farcall/error.hpp"
#include "farcall/thrift/transport.hpp"
#include "one_way.hpp"
#include "protocol.hpp"
#include "serving.hpp"

namespace farcall::thrift {
namespace {

// What a call takes beside its own bytes: memory for what is read and written, and of the thread
// that serves it. Who sends one-way calls waits for none of them.
constexpr std::size_t kBytesOfCall = std::size_t{256} << 10;

// Held as long as the call is.
struct Held {
  process::Charge thread;  // counts as a descriptor, of which there are as few
  process::Charge bytes;
  explicit operator bool() const noexcept { return thread && bytes; }
};

Held held_for(const farcall_info& call) noexcept {
  return {.thread = charged(process::Resource::descriptors, call.uid, 1),
          .bytes = charged(process::Resource::bytes, call.uid, kBytesOfCall + call.length)};
}

class FarCall final : public MessageTransport {
 public:
  // `held` is for this call.
  FarCall(ReceivedMessage message, Held held)
      : MessageTransport(nullptr), held_(std::move(held)), message_(std::move(message)) {
    message_.drop_descriptors();
    const std::size_t length = message_.info().length - sizeof kFar;
    make_room(length);
    if (message_.read(sizeof kFar, room().first(length)) != length)
      throw SystemError(ESRCH, "read a call");
    received(length);
    if (is_one_way({rBase_, length})) answer(message_, {}, kWhole);
  }
  FarCall(const FarCall&) = delete;
  FarCall& operator=(const FarCall&) = delete;
  ~FarCall() override { finish(); }

  [[nodiscard]] bool isOpen() const override { return open_; }
  bool peek() override { return rBase_ != rBound_; }
  void open() override {}
  void close() override { finish(); }
  [[nodiscard]] const std::string getOrigin() const override { return "a bridge"; }

  void flush() override {
    const auto reply = written();
    // More calls came with this one, and their replies go along.
    if (message_ && unread() != 0) return;
    if (!message_ && answered_ && !reply.empty()) {
      forget_written();
      open_ = false;
      throw apache::thrift::transport::TTransportException(
          apache::thrift::transport::TTransportException::CORRUPTED_DATA,
          getOrigin() + ": a further reply to one message");
    }
    answered_ = static_cast<bool>(message_);
    if (message_ && reply.size() <= message_.info().room) answer(message_, reply, kWhole);
    if (message_) answer(message_, {}, kLonger);
    forget_written();
  }

 protected:
  bool fill() override {
    finish();
    return false;
  }

 private:
  // Nobody wrote an answer: it was one-way.
  void finish() noexcept {
    open_ = false;
    if (message_) answer(message_, {}, kWhole);
  }

  const Held held_;
  ReceivedMessage message_;
  std::atomic<bool> open_{true};
  bool answered_ = false;
};

}  // namespace

std::shared_ptr<apache::thrift::transport::TTransport> accept_far_call(ReceivedMessage message) {
  Held held = held_for(message.info());
  if (held) return std::make_shared<FarCall>(std::move(message), std::move(held));
  (void)farcall_error(message.release(), EAGAIN);
  return nullptr;
}

}  // namespace farcall::thrift
