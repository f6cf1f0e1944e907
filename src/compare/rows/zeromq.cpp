// SPDX-License-Identifier: Apache-2.0
//
// ZeroMQ: a PAIR of sockets, or PUB and SUB from one to many, over its ipc transport, at a name in
// the abstract namespace, which goes with the process. Its threads do the transfer, on the
// processor of their side.
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

// Contexts do not survive a fork, so each process makes its own.
class Socket {
 public:
  explicit Socket(int type) : context_(::zmq_ctx_new()), socket_(::zmq_socket(context_, type)) {
    if (socket_ == nullptr) fail("zmq_socket");
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (left_open_) return;
    set(ZMQ_LINGER, 0);
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }

  // It is closed by the end of the process. Where peers go at the same time zmq_ctx_term() of 4.3.4
  // sometimes does not return.
  void leave_open() noexcept { left_open_ = true; }
  void set(int option, int value) { ::zmq_setsockopt(socket_, option, &value, sizeof value); }
  // Its limit counts messages, on each side.
  void set_depth(const Conditions& conditions) {
    if (conditions.depth_bytes == 0) return;
    const int messages = static_cast<int>(
        std::clamp<std::size_t>(messages_in(conditions.depth_bytes, conditions) / 2, 1, 1 << 20));
    set(ZMQ_SNDHWM, messages);
    set(ZMQ_RCVHWM, messages);
  }
  void bind(const std::string& address) {
    if (::zmq_bind(socket_, address.c_str()) != 0) fail("zmq_bind");
  }
  void connect(const std::string& address) {
    if (::zmq_connect(socket_, address.c_str()) != 0) fail("zmq_connect");
  }
  void subscribe() {
    if (::zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0) != 0) fail("zmq_setsockopt");
  }
  void send(std::span<const std::byte> message) {
    while (::zmq_send(socket_, message.data(), message.size(), 0) < 0)
      if (::zmq_errno() != EINTR) fail("zmq_send");
  }
  void receive(std::span<std::byte> message) {
    int received = 0;
    while ((received = ::zmq_recv(socket_, message.data(), message.size(), 0)) < 0)
      if (::zmq_errno() != EINTR) fail("zmq_recv");
    if (static_cast<std::size_t>(received) != message.size())
      throw SystemError(EPROTO, "zmq_recv: a message of another size");
  }

 private:
  void* context_;
  void* socket_;
  bool left_open_ = false;
};

std::string address_of(const Conditions& conditions) { return "ipc://@" + conditions.name; }

class ZeromqEnd final : public Endpoint {
 public:
  ZeromqEnd(const Conditions& conditions, Role role) {
    socket_.set_depth(conditions);
    if (role == Role::server)
      socket_.bind(address_of(conditions));
    else
      socket_.connect(address_of(conditions));
    // Connecting happens in the background.
    greet(*this, role);
  }
  void send(std::span<const std::byte> message) override { socket_.send(message); }
  void receive(std::span<std::byte> message) override { socket_.receive(message); }

 private:
  Socket socket_{ZMQ_PAIR};
};

class ZeromqConnection final : public Connection {
 public:
  explicit ZeromqConnection(Conditions conditions) : conditions_(std::move(conditions)) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<ZeromqEnd>(conditions_, role);
  }

 private:
  Conditions conditions_;
};

class ZeromqPublisher final : public WritingEnd {
 public:
  ZeromqPublisher(const Conditions& conditions, bool drops) {
    socket_.leave_open();
    socket_.set_depth(conditions);
    socket_.set(ZMQ_XPUB_NODROP, drops ? 0 : 1);
    // Who subscribes in the background is there when that wish has come, which is one byte for all.
    socket_.set(ZMQ_XPUB_VERBOSE, 1);
    socket_.bind(address_of(conditions));
    for (unsigned i = 0; i < conditions.readers; ++i) {
      std::byte wish{};
      socket_.receive({&wish, 1});
    }
  }
  void send(std::span<const std::byte> message) override { socket_.send(message); }

 private:
  Socket socket_{ZMQ_XPUB};
};

class ZeromqSubscriber final : public ReadingEnd {
 public:
  explicit ZeromqSubscriber(const Conditions& conditions) {
    socket_.leave_open();
    socket_.set_depth(conditions);
    socket_.subscribe();
    socket_.connect(address_of(conditions));
  }
  void receive(std::span<std::byte> message) override { socket_.receive(message); }

 private:
  Socket socket_{ZMQ_SUB};
};

class ZeromqBroadcast final : public Connection {
 public:
  ZeromqBroadcast(Conditions conditions, bool drops)
      : conditions_(std::move(conditions)), drops_(drops) {}
  std::unique_ptr<Endpoint> open(Role) override {
    return std::make_unique<ZeromqPublisher>(conditions_, drops_);
  }
  std::unique_ptr<Endpoint> open_reader(unsigned) override {
    return std::make_unique<ZeromqSubscriber>(conditions_);
  }

 private:
  Conditions conditions_;
  bool drops_;
};

}  // namespace

void add_zeromq(RowList& list) {
  list.add({.mechanism = "zeromq",
            .engine = "library",
            .wait = "block",
            .description = "ZeroMQ, a PAIR over ipc"},
           makes<ZeromqConnection>());
}

void add_zeromq_broadcast(RowList& list) {
  const auto add = [&](bool drops, const char* mechanism, const char* description) {
    list.add({.mechanism = mechanism,
              .engine = "library",
              .wait = "block",
              .description = description,
              .policy = drops ? "drop" : "block"},
             makes<ZeromqBroadcast>(drops));
  };
  add(false, "zeromq", "ZeroMQ, PUB and SUB over ipc; the writer waits for the slowest");
  add(true, "zeromq_drop", "ZeroMQ, PUB and SUB over ipc; slow readers miss what is new");
}

}  // namespace farcall::compare
