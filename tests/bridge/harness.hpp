// SPDX-License-Identifier: Apache-2.0
//
// Machines for bridges to run on: NATS servers, bridges as users start them, and a server of a door
// and a channel whose counters the test sees.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/eventually.hpp"
#include "harness/scratch.hpp"

namespace farcall::test {

// A bridge comes back after seconds.
template <class Condition>
bool comes_true(Condition condition, std::chrono::seconds time = 20s) {
  return eventually(condition, time);
}
void nap(int milliseconds);

// A network namespace, as a machine of its own; empty: this one.
using Machine = std::string;

// A program that goes when its owner goes. What it says is in a file.
class Program {
 public:
  Program(const std::vector<std::string>& words, const std::string& log, const Machine& on = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();
  // With SIGSTOP it returns when nothing of it runs any more.
  void kill(int signal) const;
  // The exit status, or 128 + the signal; -1: it still runs after that time.
  int wait(std::chrono::seconds time = 20s);
  [[nodiscard]] std::string said() const;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
  std::string log_;
  int status_ = -1;
};

// nats-server, on a port of its own. The skip reason where there is none.
std::string no_nats();
class Nats {
 public:
  // `configuration`: more of it, behind the port.
  explicit Nats(const ScratchDirectory& scratch, const std::string& configuration = {},
                const Machine& on = {}, const std::string& address = "127.0.0.1", int port = 0,
                const std::string& name = "nats");
  [[nodiscard]] std::string url(const std::string& scheme = "nats") const;
  [[nodiscard]] int port() const noexcept { return port_; }
  void kill(int signal) const { program_->kill(signal); }
  void stop();
  void start();

 private:
  // Whether it listens. Somebody else may have been given the port meanwhile.
  bool try_to_start();
  const ScratchDirectory& scratch_;
  const std::string name_;
  const std::string address_;
  const Machine on_;
  int port_;
  std::unique_ptr<Program> program_;
};

// farcall bridge. Returns when it serves, or has ended.
std::unique_ptr<Program> start_bridge(const ScratchDirectory& scratch, const std::string& name,
                                      const std::vector<std::string>& options,
                                      const Machine& on = {});
std::string bridge_status(const std::string& name, const Machine& on = {});

// What a server has seen, in memory that it shares with the test.
struct Seen {
  std::atomic<int> ready{0};
  std::atomic<int> calls{0};
  std::atomic<int> sleeping{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> one_way{0};
  std::atomic<int> out_of_order{0};
  std::atomic<int> last_sequence{-1};
  std::atomic<int> pulses{0};
  std::atomic<int> pulse_code{0};
  std::atomic<std::int64_t> pulse_value{0};
  std::atomic<int> priority{-1};
  std::atomic<int> caller{0};  // process
};
// How often each numbered request was served, by whatever server: what proves "at most once". Made
// by the process that forks all the others.
struct Ledger {
  static constexpr std::uint32_t kMost = 4'000'000;
  std::atomic<std::uint8_t> served[kMost];
  std::atomic<std::uint32_t> by_server[8];
};
Ledger& ledger();

// A process that serves a door at `path` and, unless it is empty, a channel. A request is text:
// "sleep" is not answered, and counts who gives up; "die" ends the server; "fd" is answered with a
// descriptor, by the door "fd N" with that one, which it keeps no longer; "big N" with N bytes; by
// the door "nap N" after so many milliseconds;
// "anew" is refused by the door with EBADF when another has taken its place;
// "errno N", by the channel, with that; anything else with itself (by the channel with status 7).
// One-way messages are numbers that count up. "id N" is entered into the ledger, and answered with
// "done N".
class Service {
 public:
  Service(const std::string& path, const std::string& channel, const Machine& on = {},
          unsigned number = 0);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service();
  void kill(int signal) const;
  [[nodiscard]] Seen& seen() const noexcept { return *seen_; }

 private:
  void run(const std::string& path, const std::string& channel) const;
  Seen* seen_;
  const unsigned number_;
  pid_t pid_ = -1;
};

// The calling thread, and what it forks, is on that machine from now on.
void move_to(const Machine& machine);
// Calls a door, which it opens for the first call and after each that has failed.
class DoorClient {
 public:
  explicit DoorClient(std::string path) : path_(std::move(path)) {}
  DoorClient(const DoorClient&) = delete;
  DoorClient& operator=(const DoorClient&) = delete;
  ~DoorClient() { close(); }
  // The reply, or "!" and the name of the errno.
  std::string call(const std::string& request);

 private:
  void close();
  const std::string path_;
  int door_ = -1;
};
// The same, once.
std::string call_door(const std::string& path, const std::string& request);
// Sends to a channel. The reply behind its status and a space, or "!" and the name of the errno.
std::string send_to(const std::string& channel, const std::string& request, double timeout_s = 0);

}  // namespace farcall::test
