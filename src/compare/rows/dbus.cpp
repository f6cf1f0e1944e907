// SPDX-License-Identifier: Apache-2.0
//
// D-Bus (sd-bus): a method that takes an array of bytes and returns it, called by way of a
// dbus-daemon of its own, as services are.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>

#include "compare/pipe.hpp"
#include "compare/placement.hpp"
#include "compare/rows/own_folder.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"
#include "farcall/socket.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kName = "org.farcall.Compare";
constexpr const char* kPath = "/org/farcall/compare";

int must(int result, const char* what) {
  if (result < 0) throw SystemError(-result, what);
  return result;
}

struct BusDeleter {
  void operator()(sd_bus* bus) const { ::sd_bus_flush_close_unref(bus); }
};
using Bus = std::unique_ptr<sd_bus, BusDeleter>;
struct MessageDeleter {
  void operator()(sd_bus_message* message) const { ::sd_bus_message_unref(message); }
};
using Message = std::unique_ptr<sd_bus_message, MessageDeleter>;

Bus connect(const std::string& address) {
  sd_bus* made = nullptr;
  must(::sd_bus_new(&made), "sd_bus_new");
  Bus bus(made);
  must(::sd_bus_set_address(made, address.c_str()), "sd_bus_set_address");
  must(::sd_bus_set_bus_client(made, 1), "sd_bus_set_bus_client");
  must(::sd_bus_start(made), "sd_bus_start");
  return bus;
}

class DbusClient final : public CallingEnd {
 public:
  explicit DbusClient(const std::string& address) : bus_(connect(address)) {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    sd_bus_message* made = nullptr;
    must(::sd_bus_message_new_method_call(bus_.get(), &made, kName, kPath, kName, "echo"),
         "a method call");
    const Message call(made);
    must(::sd_bus_message_append_array(made, 'y', request.data(), request.size()), "append");
    sd_bus_message* came = nullptr;
    must(::sd_bus_call(bus_.get(), made, 0, nullptr, &came), "sd_bus_call");
    const Message answer(came);
    const void* data = nullptr;
    std::size_t size = 0;
    must(::sd_bus_message_read_array(came, 'y', &data, &size), "read");
    if (size != reply.size()) throw SystemError(EPROTO, "the reply has another size");
    if (size != 0) std::memcpy(reply.data(), data, size);
  }

 private:
  Bus bus_;
};

class DbusServer final : public ServingEnd {
 public:
  explicit DbusServer(const std::string& address) : bus_(connect(address)) {
    must(::sd_bus_add_object(bus_.get(), nullptr, kPath, echo, this), "sd_bus_add_object");
    must(::sd_bus_request_name(bus_.get(), kName, 0), "sd_bus_request_name");
  }
  void serve(Service& service, std::span<std::byte> message) override {
    service_ = &service;
    message_ = message;
    more_ = true;
    while (more_ && !error_) {
      const int done = ::sd_bus_process(bus_.get(), nullptr);
      if (!error_ && must(done, "sd_bus_process") == 0) {
        const int waited = ::sd_bus_wait(bus_.get(), UINT64_MAX);
        if (waited != -EINTR) must(waited, "sd_bus_wait");
      }
    }
    if (error_) std::rethrow_exception(error_);
    must(::sd_bus_flush(bus_.get()), "sd_bus_flush");
  }

 private:
  static int echo(sd_bus_message* call, void* self, sd_bus_error*) {
    auto& server = *static_cast<DbusServer*>(self);
    try {
      return server.answer(call);
    } catch (...) {
      server.error_ = std::current_exception();  // none crosses the library
      return -EIO;
    }
  }
  int answer(sd_bus_message* call) {
    if (::sd_bus_message_is_method_call(call, kName, "echo") == 0) return 0;
    const void* data = nullptr;
    std::size_t size = 0;
    must(::sd_bus_message_read_array(call, 'y', &data, &size), "read");
    if (size != message_.size()) throw SystemError(EPROTO, "a request of another size");
    if (size != 0) std::memcpy(message_.data(), data, size);
    more_ = service_->answer(message_);
    sd_bus_message* made = nullptr;
    must(::sd_bus_message_new_method_return(call, &made), "a method return");
    const Message reply(made);
    must(::sd_bus_message_append_array(made, 'y', message_.data(), message_.size()), "append");
    must(::sd_bus_message_send(made), "send");
    return 1;
  }

  Bus bus_;
  Service* service_ = nullptr;
  std::span<std::byte> message_;
  bool more_ = true;
  std::exception_ptr error_;
};

// A bus that ends with whoever has started it. Where that is killed, so is the bus, and something
// else removes its socket.
class Daemon {
 public:
  Daemon() {
    auto [out, in] = make_pipe();
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      unpin();
      if (::getppid() != parent) ::_exit(1);
      const int kept = ::dup(in.get());  // not close-on-exec
      // It complains of limits that a session does not need.
      ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
      const std::string address = "--address=unix:path=" + folder_.path() + "/bus";
      const std::string print = "--print-address=" + std::to_string(kept);
      ::execlp("dbus-daemon", "dbus-daemon", "--session", "--nofork", "--nopidfile",
               address.c_str(), print.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    in.reset();
    char byte = 0;
    while (::read(out.get(), &byte, 1) == 1 && byte != '\n') address_ += byte;
    if (address_.empty()) {
      end();
      throw SystemError(ENOENT, "start dbus-daemon");
    }
  }
  ~Daemon() { end(); }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  void end() noexcept {
    if (pid_ > 0 && owner_ == ::getpid()) {
      ::kill(pid_, SIGTERM);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  const OwnFolder folder_{"farcall-dbus-"};
  const pid_t owner_ = ::getpid();
  pid_t pid_ = -1;
  std::string address_;
};

class DbusConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    if (role == Role::server) {
      auto server = std::make_unique<DbusServer>(daemon_.address());
      send_fd_message(sockets_.second.get(), FdMessage{});
      return server;
    }
    constexpr auto kStart = std::chrono::seconds(10);
    if (!receive_fd_message(sockets_.first.get(), Deadline::after(kStart)))
      throw SystemError(EPROTO, "no server came");
    return std::make_unique<DbusClient>(daemon_.address());
  }
  [[nodiscard]] std::vector<pid_t> helpers() const override { return {daemon_.pid()}; }

 private:
  Daemon daemon_;
  std::pair<UniqueFd, UniqueFd> sockets_ = socket_pair();
};

}  // namespace

void add_dbus(RowList& list) {
  list.add({.mechanism = "dbus",
            .engine = "library",
            .wait = "block",
            .description = "D-Bus (sd-bus), a method call by way of a dbus-daemon",
            .streams = false,
            .helped = true},
           makes<DbusConnection>(), [](const Conditions& conditions) {
             constexpr std::size_t kMost = std::size_t{32}
                                           << 20;  // dbus-daemon's own limit is near
             return conditions.message_bytes > kMost ? "dbus-daemon takes no longer messages" : "";
           });
}

}  // namespace farcall::compare
