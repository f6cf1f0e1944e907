// SPDX-License-Identifier: Apache-2.0
//
// Cap'n Proto RPC between two parties over a pair of Unix sockets: one method that takes bytes and
// returns bytes, see capnp.capnp. As it comes, but that a message may be longer than 64 MiB, which
// its readers take for an attack.
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>

#include "capnp.capnp.h"
#include "compare/rows/module.hpp"

namespace farcall::compare {
namespace {

constexpr capnp::ReaderOptions kAnyLength{
    .traversalLimitInWords = std::numeric_limits<std::uint64_t>::max(), .nestingLimit = 64};

void copy(capnp::Data::Reader data, std::span<std::byte> message) {
  if (data.size() != message.size()) throw SystemError(EPROTO, "capnp: a message of another size");
  if (!message.empty()) std::memcpy(message.data(), data.begin(), data.size());
}

// What the server does with a call, for as long as a phase lasts.
struct Phase {
  Service& service;
  std::span<std::byte> message;
  std::exception_ptr error = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> over = {};
};

// The phase that goes on, and the call of the next one that came before that has begun: while the
// last reply is being written, say.
struct Phases {
  Phase* now = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> next = {};
};

// Its destructor is protected where it has to be; the generated class says nothing of it.
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"
class Answerer final : public schema::Answerer::Server {
 public:
  explicit Answerer(Phases& phases) : phases_(phases) {}

 private:
  kj::Promise<void> answer(AnswerContext context) override {
    if (phases_.now != nullptr) {
      answer_now(context);
      return kj::READY_NOW;
    }
    auto begun = kj::newPromiseAndFulfiller<void>();
    phases_.next = kj::mv(begun.fulfiller);
    return begun.promise.then([this, context]() mutable { answer_now(context); });
  }
  void answer_now(AnswerContext& context) {
    Phase& phase = *phases_.now;
    bool more = false;
    try {
      copy(context.getParams().getRequest(), phase.message);
      more = phase.service.answer(phase.message);
      auto reply = context.getResults().initReply(static_cast<unsigned>(phase.message.size()));
      if (reply.size() != 0) std::memcpy(reply.begin(), phase.message.data(), reply.size());
    } catch (const std::exception&) {
      phase.error = std::current_exception();  // none crosses the library
    }
    if (more) return;
    phases_.now = nullptr;
    phase.over->fulfill();
  }

  Phases& phases_;
};

// What both sides have.
class Party {
 public:
  Party(UniqueFd socket, capnp::rpc::twoparty::Side side)
      : io_(kj::setupAsyncIo()),
        stream_(io_.lowLevelProvider->wrapSocketFd(
            socket.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                  kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC)),
        network_(*stream_, side, kAnyLength) {}
  capnp::TwoPartyVatNetwork& network() { return network_; }
  kj::WaitScope& scope() { return io_.waitScope; }
  // Until all that was said has been written.
  void flush() {
    io_.waitScope.poll();
    while (network_.getCurrentQueueSize() != 0)
      io_.provider->getTimer().afterDelay(kPause).wait(io_.waitScope);
  }

 private:
  static constexpr auto kPause = 50 * kj::MICROSECONDS;

  kj::AsyncIoContext io_;
  kj::Own<kj::AsyncIoStream> stream_;
  capnp::TwoPartyVatNetwork network_;
};

// What kj says of an exception is several lines, with a backtrace; its description is one.
template <class Body>
void translated(Body body) {
  try {
    body();
  } catch (const kj::Exception& error) {
    throw std::runtime_error(std::string("capnp: ") + error.getDescription().cStr());
  }
}

class CapnpClient final : public CallingEnd {
 public:
  explicit CapnpClient(UniqueFd socket)
      : party_(std::move(socket), capnp::rpc::twoparty::Side::CLIENT),
        system_(capnp::makeRpcClient(party_.network())) {
    capnp::MallocMessageBuilder memory;
    auto name = memory.initRoot<capnp::rpc::twoparty::VatId>();
    name.setSide(capnp::rpc::twoparty::Side::SERVER);
    answerer_.emplace(system_.bootstrap(name).castAs<schema::Answerer>());
  }
  void round_trip(std::span<const std::byte> message, std::span<std::byte> reply) override {
    translated([&] {
      // A hint of the size lets the message be made in one piece.
      auto request =
          answerer_->answerRequest(capnp::MessageSize{message.size() / sizeof(capnp::word) + 8, 0});
      request.setRequest({reinterpret_cast<const kj::byte*>(message.data()), message.size()});
      const auto response = request.send().wait(party_.scope());
      copy(response.getReply(), reply);
    });
  }
  // What it holds may throw when it goes; there is nobody to tell.
  ~CapnpClient() noexcept override = default;

 private:
  Party party_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
  std::optional<schema::Answerer::Client> answerer_;
};

class CapnpServer final : public ServingEnd {
 public:
  explicit CapnpServer(UniqueFd socket)
      : party_(std::move(socket), capnp::rpc::twoparty::Side::SERVER),
        system_(capnp::makeRpcServer(party_.network(), kj::heap<Answerer>(phases_))) {}
  ~CapnpServer() noexcept override = default;
  void serve(Service& service, std::span<std::byte> message) override {
    translated([&] {
      Phase phase{.service = service, .message = message};
      auto end = kj::newPromiseAndFulfiller<void>();
      phase.over = kj::mv(end.fulfiller);
      phases_.now = &phase;
      if (phases_.next.get() != nullptr) {
        phases_.next->fulfill();
        phases_.next = nullptr;
      }
      // Who closes the connection ends the phase, too.
      auto gone = party_.network().onDisconnect().then([&phase] {
        phase.error = std::make_exception_ptr(SystemError(ECONNRESET, "the client has gone"));
      });
      end.promise.exclusiveJoin(kj::mv(gone)).wait(party_.scope());
      phases_.now = nullptr;
      if (!phase.error) party_.flush();
      if (phase.error) std::rethrow_exception(phase.error);
    });
  }

 private:
  Phases phases_;
  Party party_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
};

class CapnpConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    if (role == Role::client) return std::make_unique<CapnpClient>(sockets_.release(role));
    return std::make_unique<CapnpServer>(sockets_.release(role));
  }

 private:
  Introduction sockets_{SOCK_STREAM};
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions&, const farcall::compare::RowInfo&) {
  return new farcall::compare::CapnpConnection;
}
