// SPDX-License-Identifier: Apache-2.0
//
// nng: a pair of sockets over its ipc transport, at a name in the abstract namespace, which goes
// with the process.
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "compare/rows/rows.hpp"

namespace farcall::compare {
namespace {

void check(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string(what) + ": " + ::nng_strerror(result));
}

class NngEnd final : public Endpoint {
 public:
  NngEnd(const Conditions& conditions, Role role) {
    check(::nng_pair0_open(&socket_), "nng_pair0_open");
    // Its queues count messages; without them each message waits for the other side.
    constexpr std::size_t kMostMessages = 8192;
    const int messages = static_cast<int>(std::clamp<std::size_t>(
        messages_in(default_depth(conditions), conditions) / 2, 1, kMostMessages));
    check(::nng_socket_set_int(socket_, NNG_OPT_SENDBUF, messages), NNG_OPT_SENDBUF);
    check(::nng_socket_set_int(socket_, NNG_OPT_RECVBUF, messages), NNG_OPT_RECVBUF);
    const std::string address = "abstract://" + conditions.name;
    if (role == Role::server)
      check(::nng_listen(socket_, address.c_str(), nullptr, 0), "nng_listen");
    else
      dial(address);
    greet(*this, role);
  }
  ~NngEnd() override { ::nng_close(socket_); }

  void send(std::span<const std::byte> message) override {
    check(::nng_send(socket_, const_cast<std::byte*>(message.data()), message.size(), 0),
          "nng_send");
  }
  void receive(std::span<std::byte> message) override {
    std::size_t received = message.size();
    check(::nng_recv(socket_, message.data(), &received, 0), "nng_recv");
    if (received != message.size())
      throw SystemError(EPROTO, "nng_recv: a message of another size");
  }

 private:
  // The server may not listen yet; nng's own retries would come 100 ms later.
  void dial(const std::string& address) {
    for (;;) {
      const int result = ::nng_dial(socket_, address.c_str(), nullptr, 0);
      if (result == 0) return;
      if (result != NNG_ECONNREFUSED) check(result, "nng_dial");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  nng_socket socket_ = NNG_SOCKET_INITIALIZER;
};

class NngConnection final : public Connection {
 public:
  explicit NngConnection(Conditions conditions) : conditions_(std::move(conditions)) {}
  // Its threads do not survive a fork, so all is made here.
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<NngEnd>(conditions_, role);
  }

 private:
  Conditions conditions_;
};

}  // namespace

void add_nng(RowList& list) {
  list.add({.mechanism = "nng",
            .engine = "library",
            .wait = "block",
            .description = "nng (nanomsg), a pair over ipc"},
           makes<NngConnection>());
}

}  // namespace farcall::compare
