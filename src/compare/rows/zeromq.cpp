// SPDX-License-Identifier: Apache-2.0
//
// ZeroMQ: a PAIR of sockets over its ipc transport, at a name in the abstract namespace, which
// goes with the process. Its threads do the transfer, on the processor of their side.
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "compare/rows/rows.hpp"

namespace farcall::compare {
namespace {

[[noreturn]] void fail(const char* what) {
  const int error = ::zmq_errno();
  throw SystemError(error, std::string(what) + ": " + ::zmq_strerror(error));
}

class ZeromqEnd final : public Endpoint {
 public:
  ZeromqEnd(const Conditions& conditions, Role role)
      : context_(::zmq_ctx_new()), socket_(::zmq_socket(context_, ZMQ_PAIR)) {
    if (socket_ == nullptr) fail("zmq_socket");
    if (conditions.depth_bytes != 0) {
      // Its limit counts messages, on each side.
      const int messages = static_cast<int>(
          std::clamp<std::size_t>(messages_in(conditions.depth_bytes, conditions) / 2, 1, 1 << 20));
      ::zmq_setsockopt(socket_, ZMQ_SNDHWM, &messages, sizeof messages);
      ::zmq_setsockopt(socket_, ZMQ_RCVHWM, &messages, sizeof messages);
    }
    const std::string address = "ipc://@" + conditions.name;
    const int result = role == Role::server ? ::zmq_bind(socket_, address.c_str())
                                            : ::zmq_connect(socket_, address.c_str());
    if (result != 0) fail("zmq_bind or zmq_connect");
    // Connecting happens in the background: a word each way shows that it is done.
    std::byte hello{};
    if (role == Role::client) {
      send({&hello, 1});
      receive({&hello, 1});
    } else {
      receive({&hello, 1});
      send({&hello, 1});
    }
  }
  ~ZeromqEnd() override {
    constexpr int kNoLinger = 0;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &kNoLinger, sizeof kNoLinger);
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }

  void send(std::span<const std::byte> message) override {
    while (::zmq_send(socket_, message.data(), message.size(), 0) < 0)
      if (::zmq_errno() != EINTR) fail("zmq_send");
  }
  void receive(std::span<std::byte> message) override {
    int received = 0;
    while ((received = ::zmq_recv(socket_, message.data(), message.size(), 0)) < 0)
      if (::zmq_errno() != EINTR) fail("zmq_recv");
    if (static_cast<std::size_t>(received) != message.size())
      throw SystemError(EPROTO, "zmq_recv: a message of another size");
  }

 private:
  void* context_;
  void* socket_;
};

class ZeromqConnection final : public Connection {
 public:
  explicit ZeromqConnection(Conditions conditions) : conditions_(std::move(conditions)) {}
  // Contexts do not survive a fork, so all is made here.
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<ZeromqEnd>(conditions_, role);
  }

 private:
  Conditions conditions_;
};

class ZeromqRow final : public Row {
 public:
  ZeromqRow()
      : Row({.mechanism = "zeromq",
             .engine = "library",
             .wait = "block",
             .description = "ZeroMQ, a PAIR over ipc"}) {}
  [[nodiscard]] std::unique_ptr<Connection> make(const Conditions& conditions) const override {
    return std::make_unique<ZeromqConnection>(conditions);
  }
};

}  // namespace

void add_zeromq(RowList& list) { list.add<ZeromqRow>(); }

}  // namespace farcall::compare
