// SPDX-License-Identifier: Apache-2.0
//
// What a row of the comparison is: the one interface that each measured mechanism implements.
//
//   the tool                  client process                     server process
//   Row::refuses(conditions)
//      fork ------------------ Row::make -> Connection
//                                 fork ---------------------------- Connection
//                              Connection::open -> Endpoint        Connection::open -> Endpoint
//                              round_trip(), send() ...            serve(), receive() ...
//
// In a broadcast there is one server process for each reader, and the client is the writer:
// Connection::open_reader() -> Endpoint, which receives; nothing comes back by it.
//
// With many clients each has a process, and opens its end by Connection::open_client(). The server
// has one connection to all of them, and serves until the last has said its last.
//
// A new mechanism is one file in rows/ and one line in rows/all.cpp.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farcall/error.hpp"

namespace farcall::compare {

enum class Role { client, server };

// What a row is called and how it is grouped. `wait` is "spin", "adaptive" or "block".
struct RowInfo {
  std::string mechanism;        // as in --rows and in the JSON
  std::string engine;           // "control", "linux", "shared", "kernel" or "library"
  std::string wait;             //
  std::string description;      // one line
  std::size_t fixed_bytes = 0;  // what one message is if the size cannot be chosen, else 0
  bool one_process = false;     // there is nobody at the other end: an empty call, a copy
  bool streams = true;          // has messages without replies; else calls are counted
  bool waits = false;           // has one row per way of waiting
  bool preloaded = false;       // its processes carry the preload library
  bool helped = false;          // further processes carry its messages: Connection::helpers()
  // Of a broadcast: what becomes of a reader that is slow, "block" (the writer waits for it),
  // "overwrite" or "drop" (it misses what is old, or what is new). Else empty.
  std::string policy = {};
};

// Who calls whom when there are many: each server has as many of the clients as any other.
struct Crowd {
  unsigned clients = 0;  // 0: there is no crowd
  unsigned servers = 0;
  unsigned idle = 0;  // further connections to the one server, which nobody uses

  bool operator==(const Crowd&) const = default;
  [[nodiscard]] unsigned clients_of_each() const noexcept { return clients / servers; }
};
inline constexpr unsigned kMostClients = 64;
inline constexpr unsigned kMostIdle = 100'000;

struct Conditions {
  std::size_t message_bytes = 0;
  std::size_t depth_bytes = 0;  // how much the channel holds, roughly; 0: its own default
  std::string name;             // unique on this machine, for what needs a name
  unsigned readers = 0;         // of a broadcast; 0: there are two sides
  Crowd crowd = {};             // of a connection: its one server and that server's clients
};
inline constexpr unsigned kMostReaders = 64;

// What a server does with a request.
class Service {
 public:
  // Turns the request into the reply, in place. Returns false with the last request of a phase:
  // its reply is still sent. Throws PayloadError.
  virtual bool answer(std::span<std::byte> message) = 0;

 protected:
  ~Service() = default;
};

// One end of a connection, in the process that uses it. Messages all have the size that the
// conditions named. Errors are exceptions and end the measurement of this row.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint() = default;

  virtual void send(std::span<const std::byte> message) = 0;
  virtual void receive(std::span<std::byte> message) = 0;  // returns when all of it has come

  // The client's part of a call. A mechanism made for calls overrides it and serve().
  virtual void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) {
    send(request);
    receive(reply);
  }
  // The server's part: answers until service.answer() has returned false. `message` is memory
  // that it may use for that.
  virtual void serve(Service& service, std::span<std::byte> message) {
    bool more = true;
    while (more) {
      receive(message);
      more = service.answer(message);
      send(message);
    }
  }
  // The mechanism keeps messages apart, but these are too long and travel in several.
  [[nodiscard]] virtual bool fragmented() const { return false; }
  // Of a reader of a broadcast: how many messages it was told that it has missed before the last
  // one that it received; nothing where the mechanism does not tell.
  [[nodiscard]] virtual std::optional<std::uint64_t> told_missed() const { return std::nullopt; }
};

// An end that has calls only; its row says `streams = false`.
class CallEndpoint : public Endpoint {
 public:
  void send(std::span<const std::byte>) final { refuse(); }
  void receive(std::span<std::byte>) final { refuse(); }
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override = 0;
  void serve(Service& service, std::span<std::byte> message) override = 0;

 private:
  [[noreturn]] static void refuse() { throw MisuseError("this row has calls only"); }
};
// The halves of one whose sides are different.
class CallingEnd : public CallEndpoint {
 public:
  void serve(Service&, std::span<std::byte>) final {
    throw MisuseError("the client does not serve");
  }
};
class ServingEnd : public CallEndpoint {
 public:
  void round_trip(std::span<const std::byte>, std::span<std::byte>) final {
    throw MisuseError("the server does not call");
  }
};

// The ends of a broadcast.
class WritingEnd : public Endpoint {
 public:
  void receive(std::span<std::byte>) final { throw MisuseError("the writer does not read"); }
};
class ReadingEnd : public Endpoint {
 public:
  void send(std::span<const std::byte>) final { throw MisuseError("a reader does not write"); }
};

// What both processes know before they part. Made in the client; open() is called once in each
// process, at the same time, and returns when the first message can be sent.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;
  virtual std::unique_ptr<Endpoint> open(Role role) = 0;
  // Of a broadcast, in the process of its reader `index`, counted from 0.
  virtual std::unique_ptr<Endpoint> open_reader([[maybe_unused]] unsigned index) {
    return open(Role::server);
  }
  // With many clients, in the process of client `index`, counted from 0. The idle ones follow.
  virtual std::unique_ptr<Endpoint> open_client([[maybe_unused]] unsigned index) {
    return open(Role::client);
  }
  // Further processes without which no message arrives, such as a daemon that it has started. What
  // they use belongs to the row; they run where the scheduler places them. At most kMostHelpers.
  [[nodiscard]] virtual std::vector<pid_t> helpers() const { return {}; }
};
inline constexpr std::size_t kMostHelpers = 4;

// A mechanism and a way of waiting for it. What it is made of may throw.
class Row {
 public:
  using Make = std::function<std::unique_ptr<Connection>(const Conditions&)>;
  // Why it cannot be measured under these conditions; empty if it can.
  using Refuses = std::function<std::string(const Conditions&)>;
  // Loads what it needs, in the client's process; its time is not that of setting up.
  using Prepare = std::function<void()>;

  Row(RowInfo info, Make make, Refuses refuses = {}, Prepare prepare = {})
      : info_(std::move(info)),
        make_(std::move(make)),
        refuses_(std::move(refuses)),
        prepare_(std::move(prepare)) {}
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  [[nodiscard]] const RowInfo& info() const noexcept { return info_; }
  [[nodiscard]] std::string refuses(const Conditions& conditions) const {
    return refuses_ ? refuses_(conditions) : "";
  }
  void prepare() const {
    if (prepare_) prepare_();
  }
  [[nodiscard]] std::unique_ptr<Connection> make(const Conditions& conditions) const {
    return make_(conditions);
  }

 private:
  RowInfo info_;
  Make make_;
  Refuses refuses_;
  Prepare prepare_;
};

struct AbsentRow {
  std::string mechanism;
  std::string reason;              // with the Debian package that brings it
  std::string engine = "library";  // as of a row
};

struct RowList {
  std::vector<std::unique_ptr<Row>> rows;
  std::vector<AbsentRow> absent;

  void add(RowInfo info, Row::Make make, Row::Refuses refuses = {}, Row::Prepare prepare = {}) {
    rows.push_back(std::make_unique<Row>(std::move(info), std::move(make), std::move(refuses),
                                         std::move(prepare)));
  }
};

// What is measured: calls and streams between two processes, what one process tells many, how many
// do beside each other, or what becomes of a client whose server is killed.
enum class Workload { pair, broadcast, scaling, dead_peer };

// Every row there is, from rows/all.cpp.
RowList all_rows(Workload workload = Workload::pair);

}  // namespace farcall::compare
