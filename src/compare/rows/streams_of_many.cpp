// SPDX-License-Identifier: Apache-2.0
//
// A server with one thread and epoll, as servers of streams are written, and its many clients. What
// the sockets of two of these rows go through is the preload library's business: nothing here knows
// of it.
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "compare/pipe.hpp"
#include "compare/preload_library.hpp"
#include "compare/rows/rows.hpp"
#include "compare/rows/sockets.hpp"
#include "compare/sides.hpp"
#include "memory/write_all.hpp"

namespace farcall::compare {
namespace {

// How many bytes there were, at most as many as asked for; 0 after the last.
std::size_t read_some(int fd, std::span<std::byte> memory) {
  ssize_t got = -1;
  do got = ::read(fd, memory.data(), memory.size());
  while (got < 0 && errno == EINTR);
  if (got < 0) throw_errno("read");
  return static_cast<std::size_t>(got);
}

// Where a client's requests come and its replies go; a socket is both.
struct Stream {
  UniqueFd in;
  UniqueFd out;  // none: `in`
  [[nodiscard]] int reply() const { return out ? out.get() : in.get(); }
};

class PipeEnd final : public Endpoint {
 public:
  explicit PipeEnd(Stream stream) : stream_(std::move(stream)) {}
  void send(std::span<const std::byte> message) override {
    write_all(stream_.reply(), message, "write");
  }
  void receive(std::span<std::byte> message) override {
    while (!message.empty()) {
      const std::size_t got = read_some(stream_.in.get(), message);
      if (got == 0) throw SystemError(ECONNRESET, "read: the other end has closed");
      message = message.subspan(got);
    }
  }

 private:
  Stream stream_;
};

class ManyStreams final : public ServingEnd {
 public:
  ManyStreams(std::vector<Stream> streams, std::size_t message_bytes)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)), message_bytes_(message_bytes) {
    if (!epoll_) throw_errno("epoll_create1");
    for (Stream& one : streams) peers_.push_back({.stream = std::move(one)});
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peers_[i].stream.in.get(), &event) != 0)
        throw_errno("epoll_ctl");
    }
  }
  void serve(Service& service, std::span<std::byte>) override {
    std::array<epoll_event, kMostClients> events{};
    for (bool more = true; more;) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno("epoll_wait");
      for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count)))
        more = attend(peers_[event.data.u64], service) && more;
    }
  }

 private:
  struct Peer {
    Stream stream;
    std::vector<std::byte> message = {};  // made when the first of it comes: idle ones have none
    std::size_t got = 0;
  };

  // What has come is read once, which does not block; the client waits for its reply and reads.
  bool attend(Peer& peer, Service& service) const {
    peer.message.resize(message_bytes_);
    const std::span<std::byte> message(peer.message);
    const std::size_t got = read_some(peer.stream.in.get(), message.subspan(peer.got));
    if (got == 0) {  // who has nothing more to ask closes while others still do
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.stream.in.get(), nullptr);
      return true;
    }
    peer.got += got;
    if (peer.got < message.size()) return true;
    peer.got = 0;
    const bool more = service.answer(message);
    write_all(peer.stream.reply(), message, "write");
    return more;
  }

  UniqueFd epoll_;
  std::size_t message_bytes_;
  std::vector<Peer> peers_;
};

template <class Listener>
class ManySockets final : public Connection {
 public:
  static constexpr bool kAccepts = true;
  explicit ManySockets(const Conditions& conditions)
      : conditions_(conditions), listener_(static_cast<int>(kMostClients)) {}
  std::unique_ptr<Endpoint> open(Role) override {
    std::vector<Stream> streams;
    const unsigned all = conditions_.crowd.clients + conditions_.crowd.idle;
    for (unsigned i = 0; i < all; ++i) streams.push_back({.in = listener_.accept(), .out = {}});
    return std::make_unique<ManyStreams>(std::move(streams), conditions_.message_bytes);
  }
  std::unique_ptr<Endpoint> open_client(unsigned) override {
    return std::make_unique<StreamEnd>(listener_.connect());
  }

 private:
  Conditions conditions_;
  Listener listener_;
};

class PipePairs final : public Connection {
 public:
  static constexpr bool kAccepts = false;
  explicit PipePairs(const Conditions& conditions) : message_bytes_(conditions.message_bytes) {
    for (unsigned i = 0; i < conditions.crowd.clients; ++i) {
      auto [request_out, request_in] = make_pipe();
      auto [reply_out, reply_in] = make_pipe();
      servers_.push_back({.in = std::move(request_out), .out = std::move(reply_in)});
      clients_.push_back({.in = std::move(reply_out), .out = std::move(request_in)});
    }
  }
  std::unique_ptr<Endpoint> open(Role) override {
    clients_.clear();
    return std::make_unique<ManyStreams>(std::move(servers_), message_bytes_);
  }
  std::unique_ptr<Endpoint> open_client(unsigned index) override {
    Stream mine = std::move(clients_[index]);
    clients_.clear();  // so that the end of each is seen
    servers_.clear();
    return std::make_unique<PipeEnd>(std::move(mine));
  }

 private:
  std::size_t message_bytes_;
  std::vector<Stream> servers_;
  std::vector<Stream> clients_;
};

using Tcp = ManySockets<TcpListener>;
using Unix = ManySockets<UnixListener<SOCK_STREAM>>;

template <class Made>
void add(RowList& list, const char* mechanism, const char* description, bool preloaded = false) {
  list.add({.mechanism = mechanism,
            .engine = preloaded ? "shared" : "linux",
            .wait = preloaded ? "adaptive" : "block",
            .description = description,
            .streams = false,
            .preloaded = preloaded},
           makes<Made>(), [preloaded](const Conditions& conditions) -> std::string {
             if (conditions.crowd.idle != 0 && !Made::kAccepts)
               return "pipes are made before a server has clients";
             return preloaded ? why_no_library() : "";
           });
}

}  // namespace

void add_streams_of_many(RowList& list) {
  add<Tcp>(list, "tcp", "TCP loopback, a server with epoll");
  add<Unix>(list, "unix_stream", "Unix streams, a server with epoll");
  add<PipePairs>(list, "pipe", "a pair of pipes for each client, a server with epoll");
#ifdef FARCALL_HAVE_PRELOAD
  add<Tcp>(list, "tcp_accelerated", "the same as tcp under farcall run", true);
  add<Unix>(list, "unix_accelerated", "the same as unix_stream under farcall run", true);
#else
  for (const char* const name : {"tcp_accelerated", "unix_accelerated"})
    list.absent.push_back({name, "farcall was built without the preload library"});
#endif
}

}  // namespace farcall::compare
