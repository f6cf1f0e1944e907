// SPDX-License-Identifier: Apache-2.0
//
// Apache Thrift, as its binary protocol has it: one method that takes binary and returns it, over a
// TCP socket (`thrift_tsocket`) and over messages of this library (`thrift_farcall`). What its
// compiler would write is written here by hand.
#include <stdlib.h>
#include <sys/socket.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/thrift/transport.hpp"

namespace farcall::compare {
namespace {

using apache::thrift::protocol::T_CALL;
using apache::thrift::protocol::T_REPLY;
using apache::thrift::protocol::T_STOP;
using apache::thrift::protocol::T_STRING;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::protocol::TMessageType;
using apache::thrift::protocol::TType;
using apache::thrift::transport::TBufferedTransport;
using apache::thrift::transport::TServerSocket;
using apache::thrift::transport::TServerTransport;
using apache::thrift::transport::TSocket;
using apache::thrift::transport::TTransport;

// One message with one field, which is all that a call of one argument or its result are.
void write(TBinaryProtocol& protocol, TMessageType type, std::int16_t field,
           const std::string& data) {
  protocol.writeMessageBegin("echo", type, 0);
  protocol.writeStructBegin("echo");
  protocol.writeFieldBegin("data", T_STRING, field);
  protocol.writeBinary(data);
  protocol.writeFieldEnd();
  protocol.writeFieldStop();
  protocol.writeStructEnd();
  protocol.writeMessageEnd();
  protocol.getTransport()->writeEnd();
  protocol.getTransport()->flush();
}

void read(TBinaryProtocol& protocol, std::string& data) {
  std::string name;
  TMessageType type = T_CALL;
  std::int32_t number = 0;
  protocol.readMessageBegin(name, type, number);
  protocol.readStructBegin(name);
  for (;;) {
    TType field_type = T_STOP;
    std::int16_t field = 0;
    protocol.readFieldBegin(name, field_type, field);
    if (field_type == T_STOP) break;
    protocol.readBinary(data);
    protocol.readFieldEnd();
  }
  protocol.readStructEnd();
  protocol.readMessageEnd();
  protocol.getTransport()->readEnd();
}

class ThriftClient final : public CallingEnd {
 public:
  explicit ThriftClient(const std::shared_ptr<TTransport>& transport) : protocol_(transport) {
    transport->open();
  }
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    data_.assign(reinterpret_cast<const char*>(request.data()), request.size());
    write(protocol_, T_CALL, 1, data_);
    read(protocol_, data_);
    if (data_.size() != reply.size()) throw SystemError(EPROTO, "the reply has another size");
    std::ranges::copy(std::as_bytes(std::span(data_)), reply.begin());
  }

 private:
  TBinaryProtocol protocol_;
  std::string data_;
};

class ThriftServer final : public ServingEnd {
 public:
  explicit ThriftServer(std::unique_ptr<TServerTransport> listener, bool buffered)
      : listener_(std::move(listener)) {
    std::shared_ptr<TTransport> transport = listener_->accept();
    if (buffered) transport = std::make_shared<TBufferedTransport>(transport);
    protocol_ = std::make_unique<TBinaryProtocol>(transport);
  }
  void serve(Service& service, std::span<std::byte>) override {
    for (bool more = true; more;) {
      read(*protocol_, data_);
      more = service.answer(std::as_writable_bytes(std::span(data_)));
      write(*protocol_, T_REPLY, 0, data_);
    }
  }

 private:
  std::unique_ptr<TServerTransport> listener_;
  std::unique_ptr<TBinaryProtocol> protocol_;
  std::string data_;
};

class ThriftConnection final : public Connection {
 public:
  ThriftConnection(const Conditions& conditions, bool over_farcall)
      : name_(conditions.name), over_farcall_(over_farcall) {
    // Only the last part: a name here has no slashes, and is short.
    name_ = name_.substr(name_.size() > 40 ? name_.size() - 40 : 0);
    std::ranges::replace(name_, '/', '-');
  }
  std::unique_ptr<Endpoint> open(Role role) override {
    ::setenv("FARCALL_ENGINE", "shared", 1);
    if (role == Role::server) return serve();
    // Where the server listens, when it does.
    const auto message = receive_fd_message(sockets_.first.get(), Deadline::after(kStart));
    if (!message || message->bytes.size() != sizeof(int))
      throw SystemError(EPROTO, "no server came");
    if (over_farcall_)
      return std::make_unique<ThriftClient>(std::make_shared<thrift::TFarcallTransport>(name_));
    int port = 0;
    std::memcpy(&port, message->bytes.data(), sizeof port);
    auto socket = std::make_shared<TSocket>("127.0.0.1", port);
    socket->setNoDelay(true);
    return std::make_unique<ThriftClient>(std::make_shared<TBufferedTransport>(socket));
  }

 private:
  static constexpr auto kStart = std::chrono::seconds(10);

  std::unique_ptr<Endpoint> serve() {
    std::unique_ptr<TServerTransport> listener;
    int port = 0;
    if (over_farcall_) {
      listener = std::make_unique<thrift::TFarcallServerTransport>(name_);
      listener->listen();
    } else {
      auto socket = std::make_unique<TServerSocket>("127.0.0.1", 0);
      socket->listen();
      port = socket->getPort();
      listener = std::move(socket);
    }
    FdMessage message;
    message.bytes.resize(sizeof port);
    std::memcpy(message.bytes.data(), &port, sizeof port);
    send_fd_message(sockets_.second.get(), message);
    return std::make_unique<ThriftServer>(std::move(listener), !over_farcall_);
  }

  std::pair<UniqueFd, UniqueFd> sockets_ = socket_pair();
  std::string name_;
  bool over_farcall_;
};

}  // namespace

void add_thrift(RowList& list) {
  list.add({.mechanism = "thrift_tsocket",
            .engine = "library",
            .wait = "block",
            .description = "Apache Thrift, a call over a TCP socket",
            .streams = false},
           makes<ThriftConnection>(false));
  list.add({.mechanism = "thrift_farcall",
            .engine = "shared",
            .wait = "adaptive",
            .description = "Apache Thrift, a call over messages of this library",
            .streams = false},
           makes<ThriftConnection>(true));
}

}  // namespace farcall::compare
