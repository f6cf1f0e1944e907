// SPDX-License-Identifier: Apache-2.0
//
// Transports of Apache Thrift over farcall's messages: usable wherever a TTransport or a
// TServerTransport is, with any protocol, alone or below a TFramedTransport or TBufferedTransport.
//
//   auto transport = std::make_shared<farcall::thrift::TFarcallTransport>("calculator");
//   CalculatorClient client(std::make_shared<TBinaryProtocol>(transport));
//   transport->open();
//
//   TThreadedServer server(processor,
//                          std::make_shared<farcall::thrift::TFarcallServerTransport>("calculator"),
//                          std::make_shared<TTransportFactory>(),
//                          std::make_shared<TBinaryProtocolFactory>());
//
// A call is one message and its reply, whatever their sizes. A one-way call is a message without a
// reply: it returns when the server's thread has taken it, and does not wait for what that does. It
// is known by its first bytes, in the binary, compact and JSON protocols, framed or not; in others
// a one-way call waits until it has been served.
//
// A call may be sent (flush()) before the reply to the one before it is read: each waits for its
// own reply, and they are read in order. More than 1 MiB of replies that nobody has read is too
// much: flush() fails with BAD_ARGS, and sends nothing. Several calls that are flushed at once are
// answered at once, where the server reads this transport itself or frames; a transport that reads
// ahead there (TBufferedTransport) answers the first, and the server closes the connection
// (END_OF_FILE) rather than drop the others' replies. A one-way call is flushed by itself.
//
// Over a name that a bridge has imported (farcall-bridge(1)) all is the same, but that each call
// may find another server of that name, and is at most 64 MiB long.
//
// Like others, these transports are used by one thread at a time, and an open one by a parent or by
// its forked child. Errors are TTransportException:
//   NOT_OPEN     no server has that name, or a bridge finds none; not opened; closed
//   END_OF_FILE  the other side has closed or died
//   TIMED_OUT    the timeout has passed; the connection is of no use any more
//   INTERRUPTED  interrupt() or interruptChildren() of the server
#pragma once

#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerTransport.h>
#include <thrift/transport/TTransportException.h>
#include <thrift/transport/TVirtualTransport.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "farcall/message.hpp"

namespace farcall::thrift {

class Within;

// What both ends have in common: memory for what is written and for what came.
class MessageTransport
    : public apache::thrift::transport::TVirtualTransport<MessageTransport,
                                                          apache::thrift::transport::TBufferBase> {
 public:
  explicit MessageTransport(std::shared_ptr<apache::thrift::TConfiguration> config);

  // A message has been read: the memory of a long one is not kept.
  std::uint32_t readEnd() override;

 protected:
  std::uint32_t readSlow(std::uint8_t* buffer, std::uint32_t length) override;
  void writeSlow(const std::uint8_t* buffer, std::uint32_t length) override;
  const std::uint8_t* borrowSlow(std::uint8_t* buffer, std::uint32_t* length) override;

  // Gets the next message into `in_`, or returns false where there will be none.
  virtual bool fill() = 0;

  [[nodiscard]] std::span<const std::byte> written() const noexcept;
  void forget_written() noexcept;
  void received(std::size_t bytes);
  [[nodiscard]] std::span<std::byte> room() noexcept {
    return std::as_writable_bytes(std::span(in_));
  }
  void make_room(std::size_t bytes);
  // Of what came.
  [[nodiscard]] std::size_t unread() const noexcept {
    return static_cast<std::size_t>(rBound_ - rBase_);
  }
  // Puts that at the beginning of the room, with some behind it. Returns how much it is.
  std::size_t keep_unread();
  // Lets go what is more than a connection keeps, once all of a message has been read.
  void give_room_back() noexcept;

 private:
  std::vector<std::uint8_t> out_;
  std::vector<std::uint8_t> in_;
};

// The client's end.
class TFarcallTransport final : public MessageTransport {
 public:
  explicit TFarcallTransport(std::string name,
                             std::shared_ptr<apache::thrift::TConfiguration> config = nullptr);
  ~TFarcallTransport() override;

  // How long open() and each call may take; 0 is for ever.
  void setTimeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  [[nodiscard]] bool isOpen() const override { return static_cast<bool>(connection_); }
  bool peek() override;
  void open() override;
  void close() override;
  // Sends what was written; of a call that has a reply, waits for it.
  void flush() override;
  [[nodiscard]] const std::string getOrigin() const override { return name_; }

 protected:
  bool fill() override { return false; }

 private:
  class FarRoom;

  void open_far(MessageConnection listener, const Within& within);
  void call(std::span<const std::byte> request);
  void call_far(std::span<const std::byte> request);
  [[noreturn]] void fail(const std::system_error& error);

  const std::string name_;
  std::chrono::milliseconds timeout_{0};
  MessageConnection connection_;
  std::unique_ptr<FarRoom> far_;  // of a name that leads to another machine
};

// The server's: a channel with a name. Each client that opens a transport is accepted once, and has
// a channel of its own from then on, so that clients do not wait for each other.
class TFarcallServerTransport final : public apache::thrift::transport::TServerTransport {
 public:
  // `mode` says who may connect, as for farcall_name_attach().
  explicit TFarcallServerTransport(std::string name, mode_t mode = 0600);
  ~TFarcallServerTransport() override;

  // How long a thread waits for the next call of its client; 0 is for ever.
  void setReceiveTimeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  [[nodiscard]] bool isOpen() const override;
  void listen() override;
  void interrupt() override;
  // Those that are accepted until the next listen() are interrupted as well.
  void interruptChildren() override;
  void close() override;

 protected:
  std::shared_ptr<apache::thrift::transport::TTransport> acceptImpl() override;

 private:
  class Accepted;
  struct Listening;

  [[nodiscard]] std::shared_ptr<Listening> listening() const;
  // Null: there is nobody to serve. Throws where the client has gone, or there is no room for it.
  std::shared_ptr<apache::thrift::transport::TTransport> accept_one(ReceivedMessage message,
                                                                    std::uint32_t hello);

  const std::string name_;
  const mode_t mode_;
  std::chrono::milliseconds timeout_{0};
  mutable std::mutex lock_;  // protects what follows
  std::shared_ptr<Listening> listening_;
  std::vector<std::weak_ptr<Accepted>> children_;
  bool no_more_children_ = false;
};

}  // namespace farcall::thrift
