// SPDX-License-Identifier: Apache-2.0
//
// A call through a NATS server on 127.0.0.1, started for it: a bare request and reply of its client
// for C (`nats`), and a message of this library from one bridge to another (`bridge`).
#include <nats/nats.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "compare/placement.hpp"
#include "compare/rows/own_folder.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/message.h"
#include "farcall/wait.hpp"
#include "process/programs.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kServer = "/usr/sbin/nats-server";
constexpr auto kStart = std::chrono::seconds(20);

std::filesystem::path bridge_program() {
  return process::beside_program({"farcall-bridge", "../libexec/farcall/farcall-bridge"}, X_OK);
}

void must_succeed(natsStatus status, const char* what) {
  if (status != NATS_OK)
    throw SystemError(EIO, std::string(what) + ": " + ::natsStatus_GetText(status));
}

// A program that ends with its owner.
class Child {
 public:
  explicit Child(const std::vector<std::string>& words) {
    const pid_t parent = ::getpid();
    const std::vector<char*> arguments = process::arguments_of(words);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    unpin();
    if (::getppid() != parent || ::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(1);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_;
};

class NatsServer {
 public:
  NatsServer() {
    const Deadline deadline = Deadline::after(kStart);
    while (url_.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (monotonic_ns() > deadline.at()) throw SystemError(ETIMEDOUT, "start nats-server");
      read_port();
    }
  }
  NatsServer(const NatsServer&) = delete;
  NatsServer& operator=(const NatsServer&) = delete;
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] pid_t pid() const noexcept { return process_.pid(); }

 private:
  // {"nats":["nats://127.0.0.1:4222"]}
  void read_port() {
    for (const auto& file : std::filesystem::directory_iterator(ports_.path())) {
      std::string text;
      std::getline(std::ifstream(file.path()), text);
      const std::size_t begin = text.find("nats://");
      const std::size_t end = text.find('"', begin);
      if (begin != std::string::npos && end != std::string::npos)
        url_ = text.substr(begin, end - begin);
    }
  }

  const OwnFolder ports_{"farcall-nats-"};
  std::string url_;
  const Child process_{{kServer, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", ports_.path()}};
};

class NatsEndpoint final : public CallEndpoint {
 public:
  NatsEndpoint(const std::string& url, Role role) {
    natsOptions* options = nullptr;
    must_succeed(::natsOptions_Create(&options), "options");
    ::natsOptions_SetURL(options, url.c_str());
    ::natsOptions_SetSendAsap(options, true);
    const natsStatus status = ::natsConnection_Connect(&connection_, options);
    ::natsOptions_Destroy(options);
    must_succeed(status, "connect");
    if (role == Role::client) return;
    must_succeed(::natsConnection_SubscribeSync(&subscription_, connection_, "row"), "subscribe");
    must_succeed(::natsConnection_Flush(connection_), "subscribe");
  }
  ~NatsEndpoint() override {
    ::natsSubscription_Destroy(subscription_);
    ::natsConnection_Destroy(connection_);
  }
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    constexpr std::int64_t kPatienceMs = 20'000;
    natsMsg* message = nullptr;
    natsStatus status = NATS_NO_RESPONDERS;
    // At the start the other process may not listen yet.
    for (const Deadline start = Deadline::after(kStart);
         status == NATS_NO_RESPONDERS && monotonic_ns() < start.at();)
      status = ::natsConnection_Request(&message, connection_, "row", request.data(),
                                        static_cast<int>(request.size()), kPatienceMs);
    must_succeed(status, "request");
    std::memcpy(reply.data(), ::natsMsg_GetData(message),
                std::min(reply.size(), static_cast<std::size_t>(::natsMsg_GetDataLength(message))));
    ::natsMsg_Destroy(message);
  }
  void serve(Service& service, std::span<std::byte> memory) override {
    constexpr std::int64_t kForEver = 1'000'000'000;
    for (bool more = true; more;) {
      natsMsg* message = nullptr;
      must_succeed(::natsSubscription_NextMsg(&message, subscription_, kForEver), "receive");
      const auto size = static_cast<std::size_t>(::natsMsg_GetDataLength(message));
      std::memcpy(memory.data(), ::natsMsg_GetData(message), std::min(size, memory.size()));
      more = service.answer(memory);
      must_succeed(::natsConnection_Publish(connection_, ::natsMsg_GetReply(message), memory.data(),
                                            static_cast<int>(memory.size())),
                   "reply");
      ::natsMsg_Destroy(message);
    }
    must_succeed(::natsConnection_Flush(connection_), "reply");
  }

 private:
  natsConnection* connection_ = nullptr;
  natsSubscription* subscription_ = nullptr;
};

class NatsConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<NatsEndpoint>(server_.url(), role);
  }
  [[nodiscard]] std::vector<pid_t> helpers() const override { return {server_.pid()}; }

 private:
  const NatsServer server_;
};

class BridgeEndpoint final : public CallEndpoint {
 public:
  BridgeEndpoint(const std::string& name, Role role) : client_(role == Role::client) {
    const std::string own = client_ ? name + "-far" : name;
    for (const Deadline start = Deadline::after(kStart); number_ <= 0;) {
      number_ =
          client_ ? ::farcall_name_open(own.c_str()) : ::farcall_name_attach(own.c_str(), 0, 0600);
      if (number_ > 0) break;
      if (monotonic_ns() > start.at()) throw_errno("a channel's name");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~BridgeEndpoint() override {
    if (client_) ::farcall_disconnect(number_);
    // The last reply is on its way.
    if (!client_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!client_) ::farcall_channel_destroy(number_);
  }
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    int status = -1;
    for (const Deadline start = Deadline::after(kStart); status < 0;) {
      status = ::farcall_send(number_, request.data(), request.size(), reply.data(), reply.size());
      if (status < 0 && ((errno != EINTR && errno != ECONNREFUSED) || monotonic_ns() > start.at()))
        throw_errno("farcall_send");
    }
  }
  void serve(Service& service, std::span<std::byte> message) override {
    std::int64_t id = 0;
    for (bool more = true; more;) {
      id = ::farcall_reply_receive(id, 0, message.data(), id == 0 ? 0 : message.size(), number_,
                                   message.data(), message.size(), nullptr);
      if (id < 0 && errno != EINTR) throw_errno("farcall_reply_receive");
      if (id < 0) id = 0;
      if (id > FARCALL_ONE_WAY) more = service.answer(message);
    }
    ::farcall_reply(id, 0, message.data(), message.size());
  }

 private:
  const bool client_;
  int number_ = 0;
};

class BridgeConnection final : public Connection {
 public:
  BridgeConnection() : name_("compare-" + std::to_string(::getpid())), program_(bridge_program()) {
    const std::vector<std::string> common{program_.string(), "bridge", "--nats", server_.url()};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), common.begin(), common.end());
      return more;
    };
    exporter_ = std::make_unique<Child>(
        with({"--status-name", name_ + "-x", "--export", "channel:" + name_ + "=row"}));
    importer_ = std::make_unique<Child>(
        with({"--status-name", name_ + "-i", "--import", "row=channel:" + name_ + "-far"}));
  }
  std::unique_ptr<Endpoint> open(Role role) override {
    ::setenv("FARCALL_ENGINE", "shared", 1);
    return std::make_unique<BridgeEndpoint>(name_, role);
  }
  [[nodiscard]] std::vector<pid_t> helpers() const override {
    return {server_.pid(), exporter_->pid(), importer_->pid()};
  }

 private:
  const std::string name_;
  const std::filesystem::path program_;
  const NatsServer server_;
  std::unique_ptr<Child> exporter_;
  std::unique_ptr<Child> importer_;
};

std::string refuses(const Conditions& conditions, bool bridged) {
  constexpr std::size_t kMost = std::size_t{1} << 20;  // of one message, without configuration
  if (::access(kServer, X_OK) != 0) return "there is no nats-server; install it";
  if (bridged && bridge_program().empty()) return "the package farcall-bridge is not installed";
  if (!bridged && conditions.message_bytes > kMost) return "a message has at most 1 MiB";
  return {};
}

}  // namespace

void add_nats(RowList& list) {
  list.add({.mechanism = "nats",
            .engine = "library",
            .wait = "block",
            .description = "NATS, request and reply through a server",
            .streams = false,
            .helped = true},
           makes<NatsConnection>(),
           [](const Conditions& conditions) { return refuses(conditions, false); });
  list.add({.mechanism = "bridge",
            .engine = "shared",
            .wait = "adaptive",
            .description = "a message through two bridges and a NATS server",
            .streams = false,
            .helped = true},
           makes<BridgeConnection>(),
           [](const Conditions& conditions) { return refuses(conditions, true); });
}

}  // namespace farcall::compare
