// SPDX-License-Identifier: Apache-2.0
//
// Asio over a pair of Unix stream sockets, in two ways: with its blocking functions (`asio_sync`),
// and with what it is made for, completions that its loop runs (`asio`), here one at a time.
#include <sys/socket.h>

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <string>

#include "compare/rows/introduction.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

using Socket = asio::local::stream_protocol::socket;

void check(const std::error_code& error, const char* what) {
  if (error) throw SystemError(EIO, std::string(what) + ": " + error.message());
}

class SyncEnd final : public Endpoint {
 public:
  explicit SyncEnd(UniqueFd socket)
      : socket_(context_, asio::local::stream_protocol(), socket.release()) {}
  void send(std::span<const std::byte> message) override {
    std::error_code error;
    asio::write(socket_, asio::buffer(message.data(), message.size()), error);
    check(error, "asio::write");
  }
  void receive(std::span<std::byte> message) override {
    std::error_code error;
    asio::read(socket_, asio::buffer(message.data(), message.size()), error);
    check(error, "asio::read");
  }

 private:
  asio::io_context context_{1};
  Socket socket_;
};

class LoopEnd final : public Endpoint {
 public:
  explicit LoopEnd(UniqueFd socket)
      : socket_(context_, asio::local::stream_protocol(), socket.release()) {}
  void send(std::span<const std::byte> message) override {
    std::error_code error;
    asio::async_write(socket_, asio::buffer(message.data(), message.size()),
                      [&error](const std::error_code& result, std::size_t) { error = result; });
    run();
    check(error, "asio::async_write");
  }
  void receive(std::span<std::byte> message) override {
    std::error_code error;
    asio::async_read(socket_, asio::buffer(message.data(), message.size()),
                     [&error](const std::error_code& result, std::size_t) { error = result; });
    run();
    check(error, "asio::async_read");
  }

 private:
  // Until nothing is left to do.
  void run() {
    context_.restart();
    context_.run();
  }

  asio::io_context context_{1};
  Socket socket_;
};

class AsioConnection final : public Connection {
 public:
  explicit AsioConnection(bool loops) : loops_(loops) {}
  // A loop has descriptors that a fork would share, so it is made here.
  std::unique_ptr<Endpoint> open(Role role) override {
    if (loops_) return std::make_unique<LoopEnd>(sockets_.release(role));
    return std::make_unique<SyncEnd>(sockets_.release(role));
  }

 private:
  bool loops_;
  Introduction sockets_{SOCK_STREAM};
};

}  // namespace

void add_asio(RowList& list) {
  const auto add = [&](bool loops, const char* mechanism, const char* description) {
    list.add(
        {.mechanism = mechanism, .engine = "library", .wait = "block", .description = description},
        makes<AsioConnection>(loops), refuses_empty);
  };
  add(true, "asio", "Asio, its loop over a Unix stream socket");
  add(false, "asio_sync", "Asio, blocking functions over a Unix stream socket");
}

}  // namespace farcall::compare
