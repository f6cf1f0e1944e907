// SPDX-License-Identifier: Apache-2.0
//
// Doors, through <door.h> as programs use them: a procedure in the server, door_call() in the
// client. `door_call` passes the message there and back; `door_null` passes no arguments at all.
#include <door.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

void must_work(int result, const char* what) {
  if (result < 0) throw_errno(what);
}

class Caller final : public CallingEnd {
 public:
  Caller(UniqueFd door, bool with_arguments)
      : door_(std::move(door)), with_arguments_(with_arguments) {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    if (!with_arguments_) {
      must_work(::door_call(door_.get(), nullptr), "door_call");
      return;
    }
    // door_call() does not write to the request, but its interface is older than const.
    door_arg_t arguments{
        .data_ptr = reinterpret_cast<char*>(const_cast<std::byte*>(request.data())),
        .data_size = request.size(),
        .desc_ptr = nullptr,
        .desc_num = 0,
        .rbuf = reinterpret_cast<char*>(reply.data()),
        .rsize = reply.size()};
    must_work(::door_call(door_.get(), &arguments), "door_call");
    if (arguments.data_size != reply.size() || arguments.rsize != reply.size())
      throw SystemError(EPROTO, "the reply has another size");
  }

 private:
  UniqueFd door_;
  bool with_arguments_;
};

// The procedure runs on threads of the library; the process's own waits for the phase to end.
class Callee final : public ServingEnd {
 public:
  Callee(int socket, const Conditions& conditions) {
    ::sem_init(&ended_, 0, 0);
    offer(socket, conditions);
    if (conditions.crowd.idle == 0) return;
    // A process has one session with a door that it calls by one thread: idle ones are of others.
    // Not before they are asked for: what they cost is measured from then on.
    char asked = 0;
    while (::read(socket, &asked, 1) < 0)
      if (errno != EINTR) throw_errno("wait until idle doors are asked for");
    for (unsigned i = 0; i < conditions.crowd.idle; ++i) offer(socket, {});
  }
  ~Callee() override {
    for (UniqueFd& door : doors_) ::door_revoke(door.release());
  }
  void serve(Service& service, std::span<std::byte>) override {
    // release: pairs with the procedure's acquire.
    service_.store(&service, std::memory_order_release);
    while (::sem_wait(&ended_) != 0 && errno == EINTR) {
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void offer(int socket, Conditions conditions) {
    conditions.crowd.idle = 0;
    const UniqueFd& door = doors_.emplace_back(::door_create(procedure, this, 0));
    must_work(door.get(), "door_create");
    hand_out(socket, door.get(), conditions);
  }
  static void procedure(void* self, char* data, size_t size, door_desc_t*, uint_t) {
    static_cast<Callee*>(self)->answer(std::as_writable_bytes(std::span(data, size)));
    ::door_return(data, size, nullptr, 0);
  }
  void answer(std::span<std::byte> message) noexcept {
    // Calls may come before the process's own thread is ready for them.
    Service* service = nullptr;
    while ((service = service_.load(std::memory_order_acquire)) == nullptr) relax();
    try {
      if (service->answer(message)) return;
    } catch (const std::exception&) {
      error_ = std::current_exception();
    }
    service_.store(nullptr, std::memory_order_relaxed);
    ::sem_post(&ended_);
  }

  std::vector<UniqueFd> doors_;
  std::atomic<Service*> service_{nullptr};
  std::exception_ptr error_;
  sem_t ended_;
};

class DoorConnection final : public Connection {
 public:
  DoorConnection(const Conditions& conditions, const RowInfo& row, bool with_arguments)
      : engine_(row.engine),
        wait_(row.wait),
        conditions_(conditions),
        with_arguments_(with_arguments) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    // Read by the library when this process first has to do with a door, which is now.
    ::setenv("FARCALL_WAIT", wait_.c_str(), 1);
    ::setenv("FARCALL_ENGINE", engine_.c_str(), 1);
    if (role == Role::server) return std::make_unique<Callee>(sockets_.second.get(), conditions_);
    return std::make_unique<Caller>(take_descriptor(sockets_.first.get()), with_arguments_);
  }
  std::unique_ptr<Endpoint> open_client(unsigned index) override {
    const char ask = 0;
    if (index == conditions_.crowd.clients && ::write(sockets_.first.get(), &ask, 1) != 1)
      throw_errno("ask for idle doors");
    return open(Role::client);
  }

 private:
  std::pair<UniqueFd, UniqueFd> sockets_ = socket_pair();
  std::string engine_;
  std::string wait_;
  Conditions conditions_;
  bool with_arguments_;
};

void add(RowList& list, const char* mechanism, const char* description, WaitMode wait,
         bool with_arguments = true, const char* engine = "shared") {
  const RowInfo info{.mechanism = mechanism,
                     .engine = engine,
                     .wait = std::string(to_string(wait)),
                     .description = description,
                     .streams = false,
                     .waits = true};
  list.add(info, makes<DoorConnection>(info, with_arguments),
           [with_arguments](const Conditions& conditions) {
             return with_arguments || conditions.message_bytes == 0
                        ? ""
                        : "a call without arguments carries no bytes";
           });
}

}  // namespace

void add_door(RowList& list) {
  for (const WaitMode wait : kAllWaits)
    add(list, "door_call", "a call through a door, the message there and back", wait);
  for (const WaitMode wait : kAllWaits)
    add(list, "door_null", "a call through a door without arguments", wait, false);
  // A thread sleeps at once there.
  if (::access("/dev/door", R_OK | W_OK) == 0)
    add(list, "door_kernel", "a call through a door of the kernel", WaitMode::block, true,
        "kernel");
  else
    list.absent.push_back(
        {"door_kernel", "the module stplr is not loaded, or not for this user", "kernel"});
}

void add_door_of_many(RowList& list) {
  for (const WaitMode wait : {WaitMode::adaptive, WaitMode::block})
    add(list, "door_call", "calls through one door of a server", wait);
}

}  // namespace farcall::compare
