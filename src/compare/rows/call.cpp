// SPDX-License-Identifier: Apache-2.0
//
// Calls of this library: a request and its reply through a session, served by one thread.
#include "farcall/call.hpp"

#include <unistd.h>

#include <cerrno>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

void must_be_ok(Outcome outcome, const char* what) {
  if (outcome != Outcome::ok) throw SystemError(to_errno(outcome), what);
}

class Caller final : public CallingEnd {
 public:
  Caller(int port, WaitMode wait) : client_(port, wait) {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    CallResults results;
    results.buffer = reply;
    must_be_ok(client_.call({.data = request, .descriptors = {}}, results, Deadline::never()),
               "call");
    if (results.data.size() != reply.size()) throw SystemError(EPROTO, "the reply came short");
  }

 private:
  Client client_;
};

class Callee final : public ServingEnd {
 public:
  // Sends what clients need through `socket`.
  Callee(int socket, const Conditions& conditions, WaitMode wait) : thread_(port_, wait) {
    hand_out(socket, port_.descriptor(), conditions);
  }
  void serve(Service& service, std::span<std::byte>) override {
    bool more = true;
    while (more) {
      Outcome outcome = Outcome::interrupted;  // as when the tool begins to trace this process
      while (outcome == Outcome::interrupted)
        outcome = thread_.receive(incoming_, Deadline::never());
      must_be_ok(outcome, "receive");
      more = service.answer(incoming_.data());
      must_be_ok(thread_.reply(incoming_, incoming_.data()), "reply");
    }
  }

 private:
  Port port_;
  ServerThread thread_;
  Incoming incoming_;
};

class CallConnection final : public Connection {
 public:
  CallConnection(const Conditions& conditions, WaitMode wait)
      : conditions_(conditions), wait_(wait) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    if (role == Role::server)
      return std::make_unique<Callee>(sockets_.second.get(), conditions_, wait_);
    return std::make_unique<Caller>(take_descriptor(sockets_.first.get()).get(), wait_);
  }

 private:
  std::pair<UniqueFd, UniqueFd> sockets_ = socket_pair();
  Conditions conditions_;
  WaitMode wait_;
};

void add(RowList& list, WaitMode wait) {
  list.add({.mechanism = "call",
            .engine = "shared",
            .wait = std::string(to_string(wait)),
            .description = "a call to a port of this library",
            .streams = false,
            .waits = true},
           makes<CallConnection>(wait));
}

}  // namespace

void add_call(RowList& list) {
  for (const WaitMode wait : kAllWaits) add(list, wait);
}

void add_call_of_many(RowList& list) {
  for (const WaitMode wait : {WaitMode::adaptive, WaitMode::block}) add(list, wait);
}

}  // namespace farcall::compare
