// SPDX-License-Identifier: Apache-2.0
//
// ONC RPC (Sun RPC), as libtirpc has it: one procedure that takes opaque<> and returns it, called
// over a Unix stream socket. The ends are a pair of sockets, so neither a name nor rpcbind is
// needed. What rpcgen would write for
//
//   program FARCALL_ECHO { version FIRST { message ECHO(message) = 1; } = 1; } = 0x20465243;
//
// is written here by hand, because then request and reply are decoded straight into memory that
// is there, where rpcgen's code would allocate and free it in each call.
#include <poll.h>
#include <rpc/rpc.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "compare/rows/introduction.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

constexpr rpcprog_t kProgram = 0x20465243;  // of those that anybody may use
constexpr rpcvers_t kVersion = 1;
constexpr rpcproc_t kEcho = 1;
// A record longer than the buffers travels in fragments of their size, each with a mark in front.
// The client takes no larger ones.
constexpr u_int kBufferBytes = 256 << 10;
constexpr timeval kTimeout{.tv_sec = 25, .tv_usec = 0};  // as in rpcgen's clients

// An opaque<> in memory that is there: decoding fills it, and refuses more than it holds.
struct Opaque {
  char* data;
  u_int size;
  u_int most;

  explicit Opaque(std::span<std::byte> bytes)
      : data(reinterpret_cast<char*>(bytes.data())),
        size(static_cast<u_int>(bytes.size())),
        most(size) {}
};

extern "C" bool_t farcall_xdr_opaque(XDR* xdrs, ...) {
  va_list arguments;
  va_start(arguments, xdrs);
  auto& opaque = *va_arg(arguments, Opaque*);
  va_end(arguments);
  return ::xdr_bytes(xdrs, &opaque.data, &opaque.size, opaque.most);
}

class OncClient final : public CallingEnd {
 public:
  explicit OncClient(UniqueFd socket) : socket_(std::move(socket)) {
    sockaddr_un nobody{.sun_family = AF_UNIX, .sun_path = {}};
    // The socket is connected: the address is kept, and not used.
    const netbuf address{.maxlen = sizeof nobody, .len = sizeof nobody.sun_family, .buf = &nobody};
    client_ =
        ::clnt_vc_create(socket_.get(), &address, kProgram, kVersion, kBufferBytes, kBufferBytes);
    if (client_ == nullptr) throw std::runtime_error(::clnt_spcreateerror("clnt_vc_create"));
  }
  ~OncClient() override { clnt_destroy(client_); }

  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    // Encoding does not write to it.
    Opaque sent({const_cast<std::byte*>(request.data()), request.size()});
    Opaque received(reply);
    if (clnt_call(client_, kEcho, farcall_xdr_opaque, &sent, farcall_xdr_opaque, &received,
                  kTimeout) != RPC_SUCCESS)
      throw std::runtime_error(::clnt_sperror(client_, "clnt_call"));
    if (received.size != reply.size())
      throw SystemError(EPROTO, "clnt_call: a reply of another size");
  }

 private:
  UniqueFd socket_;
  CLIENT* client_ = nullptr;
};

// What the dispatch function works on: libtirpc calls it without a word of ours. Threads that
// serve have one each.
struct Serving {
  Service& service;
  std::span<std::byte> message;
  bool more = true;
  std::exception_ptr error;  // no exception crosses libtirpc
};
thread_local Serving* serving = nullptr;

void echo(SVCXPRT* transport) {
  Opaque request(serving->message);
  if (!svc_getargs(transport, farcall_xdr_opaque, &request))
    throw SystemError(EPROTO, "svc_getargs: the request cannot be decoded");
  if (request.size != serving->message.size())
    throw SystemError(EPROTO, "svc_getargs: a request of another size");
  serving->more = serving->service.answer(serving->message);
  if (!::svc_sendreply(transport, farcall_xdr_opaque, &request))
    throw SystemError(EPIPE, "svc_sendreply");
}

extern "C" void farcall_dispatch(svc_req* request, SVCXPRT* transport) {
  if (request->rq_proc != kEcho) return ::svcerr_noproc(transport);
  try {
    echo(transport);
  } catch (...) {
    serving->error = std::current_exception();
  }
}

class OncServer final : public ServingEnd {
 public:
  // The socket is the transport's, which closes it.
  explicit OncServer(UniqueFd socket) : socket_(socket.release()) {
    SVCXPRT* const transport = ::svc_fd_create(socket_, kBufferBytes, kBufferBytes);
    if (transport == nullptr)
      throw std::runtime_error("svc_fd_create: libtirpc takes no such socket");
    // Without a netconfig nobody is told of it: no rpcbind.
    if (!::svc_reg(transport, kProgram, kVersion, farcall_dispatch, nullptr))
      throw std::runtime_error("svc_reg: the program cannot be registered");
  }

  // As svc_run() does it, which only ends for good.
  void serve(Service& service, std::span<std::byte> message) override {
    Serving here{.service = service, .message = message, .more = true, .error = nullptr};
    serving = &here;
    std::vector<pollfd> polled;
    while (here.more && !here.error && connected()) {
      polled.assign(svc_pollfd, svc_pollfd + svc_max_pollfd);
      const int ready = ::poll(polled.data(), polled.size(), -1);
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) throw_errno("poll");
      ::svc_getreq_poll(polled.data(), ready);
    }
    serving = nullptr;
    if (here.error) std::rethrow_exception(here.error);
    if (here.more) throw SystemError(ECONNRESET, "the client has closed the connection");
  }

 private:
  // libtirpc destroys transports whose client has gone.
  [[nodiscard]] bool connected() const {
    return std::any_of(svc_pollfd, svc_pollfd + svc_max_pollfd,
                       [this](const pollfd& entry) { return entry.fd == socket_; });
  }

  int socket_;  // only to find it; its owner is the transport, which goes with the process
};

class OncConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    if (role == Role::client) return std::make_unique<OncClient>(sockets_.release(role));
    return std::make_unique<OncServer>(sockets_.release(role));
  }

 private:
  Introduction sockets_{SOCK_STREAM};
};

}  // namespace

void add_onc_rpc(RowList& list) {
  list.add({.mechanism = "onc_rpc",
            .engine = "library",
            .wait = "block",
            .description = "ONC RPC (libtirpc), a call over a Unix stream socket",
            .streams = false},
           makes<OncConnection>());
}

}  // namespace farcall::compare
