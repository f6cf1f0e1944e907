// SPDX-License-Identifier: Apache-2.0
//
// Messages, through <farcall/message.h> as programs use them. `message_call` sends, and gets the
// message back as the reply; `message_send` sends one way, which returns when it has been received.
#include "farcall/message.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

template <class Result>
Result must_work(Result result, const char* what) {
  if (result < 0) throw_errno(what);
  return result;
}

// A channel of this process, and the connection to it that other processes get.
void offer_channel(int socket, int channel, const Conditions& conditions) {
  const int connection = must_work(farcall_connect(channel), "farcall_connect");
  hand_out(socket,
           must_work(farcall_connection_descriptor(connection), "a connection's descriptor"),
           conditions);
  farcall_disconnect(connection);
}

int take_connection(int socket) {
  return must_work(farcall_adopt(take_descriptor(socket).release()), "farcall_adopt");
}

class Caller final : public CallingEnd {
 public:
  explicit Caller(int socket) : connection_(take_connection(socket)) {}
  ~Caller() override { farcall_disconnect(connection_); }
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    int status = -1;
    do
      status =
          farcall_send(connection_, request.data(), request.size(), reply.data(), reply.size());
    while (status < 0 && errno == EINTR);
    must_work(status, "farcall_send");
  }

 private:
  int connection_;
};

class Callee final : public ServingEnd {
 public:
  Callee(int socket, const Conditions& conditions)
      : channel_(must_work(farcall_channel_create(0), "make a channel")) {
    offer_channel(socket, channel_, conditions);
  }
  ~Callee() override { farcall_channel_destroy(channel_); }
  void serve(Service& service, std::span<std::byte> message) override {
    std::int64_t id = 0;
    for (bool more = true; more;) {
      id = farcall_reply_receive(id, 0, message.data(), id == 0 ? 0 : message.size(), channel_,
                                 message.data(), message.size(), nullptr);
      if (id < 0 && errno == EINTR) id = 0;  // as when the tool begins to trace this process
      if (must_work(id, "farcall_reply_receive") > FARCALL_ONE_WAY) more = service.answer(message);
    }
    must_work(farcall_reply(id, 0, message.data(), message.size()), "farcall_reply");
  }

 private:
  int channel_;
};

// Both have a channel; what one sends the other receives.
class Correspondent final : public Endpoint {
 public:
  Correspondent(int socket, const Conditions& conditions)
      : channel_(must_work(farcall_channel_create(0), "make a channel")) {
    offer_channel(socket, channel_, conditions);
    connection_ = take_connection(socket);
  }
  ~Correspondent() override {
    farcall_disconnect(connection_);
    farcall_channel_destroy(channel_);
  }
  void send(std::span<const std::byte> message) override {
    int result = -1;
    do result = farcall_send_one_way(connection_, message.data(), message.size());
    while (result < 0 && errno == EINTR);
    must_work(result, "farcall_send_one_way");
  }
  void receive(std::span<std::byte> message) override {
    std::int64_t id = -1;
    do id = farcall_receive(channel_, message.data(), message.size(), nullptr);
    while (id < 0 && errno == EINTR);
    must_work(id, "farcall_receive");
  }

 private:
  int channel_;
  int connection_ = 0;
};

class MessageConnection final : public Connection {
 public:
  MessageConnection(const Conditions& conditions, std::string wait, bool one_way)
      : wait_(std::move(wait)), conditions_(conditions), one_way_(one_way) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    // Read by the library when this process first has to do with messages, which is now.
    ::setenv("FARCALL_WAIT", wait_.c_str(), 1);
    ::setenv("FARCALL_ENGINE", "shared", 1);
    const int socket = role == Role::server ? sockets_.second.get() : sockets_.first.get();
    if (one_way_) return std::make_unique<Correspondent>(socket, conditions_);
    if (role == Role::server) return std::make_unique<Callee>(socket, conditions_);
    return std::make_unique<Caller>(socket);
  }

 private:
  std::pair<UniqueFd, UniqueFd> sockets_ = socket_pair();
  std::string wait_;
  Conditions conditions_;
  bool one_way_;
};

void add(RowList& list, const char* mechanism, const char* description, WaitMode wait,
         bool one_way) {
  list.add({.mechanism = mechanism,
            .engine = "shared",
            .wait = std::string(to_string(wait)),
            .description = description,
            .streams = one_way,
            .waits = true},
           makes<MessageConnection>(std::string(to_string(wait)), one_way));
}

}  // namespace

void add_message(RowList& list) {
  for (const WaitMode wait : kAllWaits)
    add(list, "message_call", "send, receive and reply, the message there and back", wait, false);
  for (const WaitMode wait : kAllWaits)
    add(list, "message_send", "messages that want no reply, through channels", wait, true);
}

void add_message_of_many(RowList& list) {
  for (const WaitMode wait : {WaitMode::adaptive, WaitMode::block})
    add(list, "message_call", "messages to one channel of a server, one thread", wait, false);
}

}  // namespace farcall::compare
