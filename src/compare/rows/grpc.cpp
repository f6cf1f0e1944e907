// SPDX-License-Identifier: Apache-2.0
//
// gRPC over a Unix socket at a name in the abstract namespace, with its generic stub and service:
// what is called takes bytes and returns bytes, as a service with a message of one field would, but
// nothing is encoded. Each side has one completion queue, which the thread that measures empties
// itself; that is what its documentation advises where latency matters. The rest is as it comes,
// but for the longest message, which is 4 MiB otherwise.
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "compare/rows/module.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kMethod = "/farcall.Compare/Answer";

constexpr const char* kLoopback = "127.0.0.1:0";

grpc::ByteBuffer buffer_of(std::span<const std::byte> message) {
  const grpc::Slice slice(message.data(), message.size());
  return {&slice, 1};
}

void copy(const grpc::ByteBuffer& buffer, std::span<std::byte> message) {
  if (buffer.Length() != message.size())
    throw SystemError(EPROTO, "grpc: a message of another size");
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) throw SystemError(EPROTO, "grpc: a message without bytes");
  std::size_t done = 0;
  for (const grpc::Slice& slice : slices) {
    std::memcpy(message.data() + done, slice.begin(), slice.size());
    done += slice.size();
  }
}

// Waits for the one operation that is under way; `ok` as gRPC tells it.
bool succeeds(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  if (!queue.Next(&tag, &ok)) throw SystemError(ECONNRESET, "grpc: the queue has ended");
  return ok;
}
void finish(grpc::CompletionQueue& queue, const char* what) {
  if (!succeeds(queue)) throw SystemError(ECONNRESET, std::string("grpc: ") + what);
}

class Client {
 public:
  explicit Client(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    const auto channel =
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    constexpr auto kPatience = std::chrono::seconds(10);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + kPatience))
      throw SystemError(ETIMEDOUT, "grpc: connect");
    stub_.emplace(channel);
  }
  grpc::GenericStub& stub() { return *stub_; }
  grpc::CompletionQueue& queue() { return queue_; }

 private:
  grpc::CompletionQueue queue_;
  std::optional<grpc::GenericStub> stub_;
};

class Server {
 public:
  explicit Server(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (!server_) throw SystemError(EADDRINUSE, "grpc: listen");
    address_ = address == kLoopback ? "127.0.0.1:" + std::to_string(port) : address;
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
    }
  }
  // Where it listens.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  // Waits for the next call.
  void accept(grpc::GenericServerContext& context, grpc::GenericServerAsyncReaderWriter& call) {
    service_.RequestCall(&context, &call, queue_.get(), queue_.get(), this);
    finish(*queue_, "await a call");
  }
  grpc::CompletionQueue& queue() { return *queue_; }

 private:
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class UnaryClient final : public CallingEnd {
 public:
  explicit UnaryClient(const std::string& address) : client_(address) {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    grpc::Status status;
    const auto call =
        client_.stub().PrepareUnaryCall(&context, kMethod, buffer_of(request), &client_.queue());
    call->StartCall();
    call->Finish(&answer, &status, this);
    finish(client_.queue(), "a call");
    if (!status.ok()) throw std::runtime_error("grpc: " + status.error_message());
    copy(answer, reply);
  }

 private:
  Client client_;
};

class UnaryServer final : public ServingEnd {
 public:
  explicit UnaryServer(const std::string& address) : server_(address) {}
  [[nodiscard]] const std::string& address() const noexcept { return server_.address(); }
  void serve(Service& service, std::span<std::byte> message) override {
    for (bool more = true; more;) {
      grpc::GenericServerContext context;
      grpc::GenericServerAsyncReaderWriter call(&context);
      server_.accept(context, call);
      grpc::ByteBuffer request;
      call.Read(&request, this);
      finish(server_.queue(), "read a request");
      copy(request, message);
      more = service.answer(message);
      call.WriteAndFinish(buffer_of(message), {}, grpc::Status::OK, this);
      finish(server_.queue(), "reply");
    }
  }

 private:
  Server server_;
};

// Both sides of a stream have the same four functions, without a common class.
template <class Side, class Context, class Stream>
class StreamEnd : public Endpoint {
 public:
  void send(std::span<const std::byte> message) override {
    stream_->Write(buffer_of(message), this);
    finish(side_.queue(), "write to a stream");
  }
  void receive(std::span<std::byte> message) override {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, this);
    finish(side_.queue(), "read a stream");
    copy(buffer, message);
  }

 protected:
  explicit StreamEnd(const std::string& address) : side_(address) {}
  Side side_;
  Context context_;
  std::unique_ptr<Stream> stream_;  // lies in memory of the context
};

class ClientStream final
    : public StreamEnd<Client, grpc::ClientContext, grpc::GenericClientAsyncReaderWriter> {
 public:
  explicit ClientStream(const std::string& address) : StreamEnd(address) {
    stream_ = side_.stub().PrepareCall(&context_, kMethod, &side_.queue());
    stream_->StartCall(this);
    finish(side_.queue(), "open a stream");
  }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;
  ~ClientStream() override { context_.TryCancel(); }
};

class ServerStream final
    : public StreamEnd<Server, grpc::GenericServerContext, grpc::GenericServerAsyncReaderWriter> {
 public:
  explicit ServerStream(const std::string& address) : StreamEnd(address) {
    stream_ = std::make_unique<grpc::GenericServerAsyncReaderWriter>(&context_);
  }
  void accept() { side_.accept(context_, *stream_); }
  [[nodiscard]] const std::string& address() const noexcept { return side_.address(); }
};

// Its threads do not survive a fork, so all is made in open().
class GrpcConnection final : public Connection {
 public:
  GrpcConnection(std::string address, bool streams)
      : address_(std::move(address)), streams_(streams) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    introduction_.take(role);
    return role == Role::client ? open_calling() : open_serving();
  }

 private:
  // Who dials in vain tries again a second later, so the client waits for the server's word.
  std::unique_ptr<Endpoint> open_calling() {
    const std::vector<std::byte> words = introduction_.receive();
    const std::string address(reinterpret_cast<const char*>(words.data()), words.size());
    if (!streams_) return std::make_unique<UnaryClient>(address);
    return std::make_unique<ClientStream>(address);
  }
  std::unique_ptr<Endpoint> open_serving() {
    if (!streams_) {
      auto end = std::make_unique<UnaryServer>(address_);
      introduction_.send(std::as_bytes(std::span(end->address())));
      return end;
    }
    auto end = std::make_unique<ServerStream>(address_);
    introduction_.send(std::as_bytes(std::span(end->address())));
    end->accept();
    return end;
  }

  const std::string address_;  // to listen at
  const bool streams_;
  Introduction introduction_;
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions& conditions, const farcall::compare::RowInfo& row) {
  return new farcall::compare::GrpcConnection(row.mechanism == "grpc_tcp"
                                                  ? farcall::compare::kLoopback
                                                  : "unix-abstract:" + conditions.name,
                                              row.mechanism == "grpc_stream");
}
