// SPDX-License-Identifier: Apache-2.0
//
// The services over D-Bus: methods that all block, and ticks that are signals. The bus is the
// session's: DBUS_SESSION_BUS_ADDRESS.
//
//   rpc-dbus serve | call | measure
#include <systemd/sd-bus.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include "measure.hpp"
#include "services.hpp"

namespace {

namespace rpc = farcall::rpc;

constexpr const char* kName = "org.farcall.Rpc";
constexpr const char* kPath = "/org/farcall/rpc";
constexpr const char* kInterface = "org.farcall.Rpc";
constexpr const char* kStruct = "(i(bynixdsay)(a{ys}anai))";

int must(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(-result));
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

Bus open_bus() {
  sd_bus* bus = nullptr;
  must(::sd_bus_open_user(&bus), "open the bus");
  return Bus(bus);
}

void append_question(sd_bus_message* message, int operation) {
  const std::uint8_t binary[] = {1, 0, 2};
  const std::int16_t list[] = {1, 2, 3};
  const std::int32_t set[] = {1, 2, 3};
  must(::sd_bus_message_open_container(message, 'r', "i(bynixdsay)(a{ys}anai)"), "append");
  must(::sd_bus_message_append(message, "i", operation), "append");
  must(::sd_bus_message_open_container(message, 'r', "bynixdsay"), "append");
  must(::sd_bus_message_append(message, "bynixds", 1, 8, 16, 32, std::int64_t{64}, 0.5, "ping"),
       "append");
  must(::sd_bus_message_append_array(message, 'y', binary, sizeof binary), "append");
  must(::sd_bus_message_close_container(message), "append");
  must(::sd_bus_message_open_container(message, 'r', "a{ys}anai"), "append");
  must(::sd_bus_message_append(message, "a{ys}", 3, 1, "one", 2, "two", 3, "three"), "append");
  must(::sd_bus_message_append_array(message, 'n', list, sizeof list), "append");
  must(::sd_bus_message_append_array(message, 'i', set, sizeof set), "append");
  must(::sd_bus_message_close_container(message), "append");
  must(::sd_bus_message_close_container(message), "append");
}

// Which operation it was.
int read_question(sd_bus_message* message) {
  int operation = 0;
  must(::sd_bus_message_enter_container(message, 'r', "i(bynixdsay)(a{ys}anai)"), "read");
  must(::sd_bus_message_read(message, "i", &operation), "read");
  must(::sd_bus_message_skip(message, "(bynixdsay)(a{ys}anai)"), "read");
  return operation;
}

int on_name(sd_bus_message* call, void*, sd_bus_error*) {
  return ::sd_bus_reply_method_return(call, "s", "rpc");
}
int on_version(sd_bus_message* call, void*, sd_bus_error*) {
  return ::sd_bus_reply_method_return(call, "iii", 0, 1, 0);
}
int on_ping(sd_bus_message* call, void*, sd_bus_error*) {
  if (read_question(call) != 0) return -EINVAL;
  sd_bus_message* made = nullptr;
  must(::sd_bus_message_new_method_return(call, &made), "reply");
  const Message reply(made);
  append_question(made, 1);
  return ::sd_bus_message_send(made);
}
int on_hello(sd_bus_message* call, void*, sd_bus_error*) {
  return ::sd_bus_reply_method_return(call, "");
}
template <class Operation>
int arithmetic(sd_bus_message* call, Operation operation) {
  std::int32_t a = 0;
  std::int32_t b = 0;
  must(::sd_bus_message_read(call, "ii", &a, &b), "read");
  return ::sd_bus_reply_method_return(call, "i",
                                      rpc::wrapped(operation(std::int64_t{a}, std::int64_t{b})));
}
int on_add(sd_bus_message* call, void*, sd_bus_error*) {
  return arithmetic(call, [](auto a, auto b) { return a + b; });
}
int on_subtract(sd_bus_message* call, void*, sd_bus_error*) {
  return arithmetic(call, [](auto a, auto b) { return a - b; });
}
int on_multiply(sd_bus_message* call, void*, sd_bus_error*) {
  return arithmetic(call, [](auto a, auto b) { return a * b; });
}
int on_divide(sd_bus_message* call, void*, sd_bus_error* error) {
  std::int32_t a = 0;
  std::int32_t b = 0;
  must(::sd_bus_message_read(call, "ii", &a, &b), "read");
  if (b == 0)
    return ::sd_bus_error_set_const(error, "org.farcall.Rpc.DivisionByZero", "divided by zero");
  return ::sd_bus_reply_method_return(call, "i", rpc::wrapped(std::int64_t{a} / b));
}
int on_start(sd_bus_message* call, void* timers, sd_bus_error*) {
  std::int64_t interval = 0;
  must(::sd_bus_message_read(call, "x", &interval), "read");
  return ::sd_bus_reply_method_return(call, "x",
                                      static_cast<rpc::Timers*>(timers)->start(interval));
}
int on_stop(sd_bus_message* call, void* timers, sd_bus_error*) {
  std::int64_t id = 0;
  must(::sd_bus_message_read(call, "x", &id), "read");
  static_cast<rpc::Timers*>(timers)->stop(id);
  return ::sd_bus_reply_method_return(call, "");
}

const sd_bus_vtable kMethods[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_METHOD("name", "", "s", on_name, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("version", "", "iii", on_version, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("ping", kStruct, kStruct, on_ping, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("hello", "s", "", on_hello, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("add", "ii", "i", on_add, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("subtract", "ii", "i", on_subtract, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("multiply", "ii", "i", on_multiply, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("divide", "ii", "i", on_divide, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("start", "x", "x", on_start, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("stop", "x", "", on_stop, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_SIGNAL("tick", "xxx", 0),
    SD_BUS_VTABLE_END};

int serve() {
  rpc::Timers timers;
  const Bus bus = open_bus();
  must(::sd_bus_add_object_vtable(bus.get(), nullptr, kPath, kInterface, kMethods, &timers),
       "add the object");
  must(::sd_bus_request_name(bus.get(), kName, 0), "request the name");
  std::cout << "ready" << std::endl;
  for (;;) {
    auto first = timers.first();
    if (first && first->second <= rpc::now_ns()) {
      const rpc::Tick tick = timers.pass(first->first);
      must(::sd_bus_emit_signal(bus.get(), kPath, kInterface, "tick", "xxx", first->first,
                                tick.counter, tick.abstime),
           "signal");
      continue;
    }
    if (must(::sd_bus_process(bus.get(), nullptr), "process") > 0) continue;
    first = timers.first();
    std::uint64_t us = UINT64_MAX;
    if (first) {
      const std::int64_t left = first->second - rpc::now_ns();
      us = left <= 0 ? 0 : static_cast<std::uint64_t>(left) / 1000;
    }
    must(::sd_bus_wait(bus.get(), us), "wait");
  }
}

class Client {
 public:
  template <class... Arguments>
  Message call(const char* method, const char* types, Arguments... arguments) {
    sd_bus_message* reply = nullptr;
    sd_bus_error error = SD_BUS_ERROR_NULL;
    const int result = ::sd_bus_call_method(bus.get(), kName, kPath, kInterface, method, &error,
                                            &reply, types, arguments...);
    if (result < 0) {
      const std::string text = error.message != nullptr ? error.message : std::strerror(-result);
      ::sd_bus_error_free(&error);
      throw std::runtime_error(text);
    }
    return Message(reply);
  }
  int ping() {
    sd_bus_message* made = nullptr;
    must(::sd_bus_message_new_method_call(bus.get(), &made, kName, kPath, kInterface, "ping"),
         "call");
    const Message request(made);
    append_question(made, 0);
    sd_bus_message* reply = nullptr;
    must(::sd_bus_call(bus.get(), made, 0, nullptr, &reply), "call ping");
    const Message owned(reply);
    return read_question(reply);
  }
  std::int32_t calculate(const char* operation, int a, int b) {
    const Message reply = call(operation, "ii", a, b);
    std::int32_t result = 0;
    must(::sd_bus_message_read(reply.get(), "i", &result), "read");
    return result;
  }
  void introduce() {
    call("name", "");
    call("version", "");
  }
  // Waits for so many ticks; tells how late each was.
  std::vector<std::int64_t> ticks(int count, std::int64_t interval_us) {
    late_.clear();
    sd_bus_slot* slot = nullptr;
    must(::sd_bus_match_signal(bus.get(), &slot, kName, kPath, kInterface, "tick", on_tick, this),
         "match");
    const Message started = call("start", "x", interval_us);
    std::int64_t timer = 0;
    must(::sd_bus_message_read(started.get(), "x", &timer), "read");
    while (late_.size() < static_cast<std::size_t>(count))
      if (must(::sd_bus_process(bus.get(), nullptr), "process") == 0)
        must(::sd_bus_wait(bus.get(), UINT64_MAX), "wait");
    call("stop", "x", timer);
    ::sd_bus_slot_unref(slot);
    return late_;
  }

 private:
  static int on_tick(sd_bus_message* signal, void* self, sd_bus_error*) {
    std::int64_t id = 0;
    std::int64_t counter = 0;
    std::int64_t abstime = 0;
    must(::sd_bus_message_read(signal, "xxx", &id, &counter, &abstime), "read");
    static_cast<Client*>(self)->late_.push_back(rpc::now_ns() - abstime);
    return 0;
  }
  Bus bus = open_bus();
  std::vector<std::int64_t> late_;
};

int call() {
  Client client;
  client.introduce();
  std::cout << "ping: " << (client.ping() == 1 ? "PONG" : "something else") << "\n";
  client.call("hello", "s", "hello");
  std::cout << "7 + 2 = " << client.calculate("add", 7, 2)
            << ", 7 - 2 = " << client.calculate("subtract", 7, 2)
            << ", 7 * 2 = " << client.calculate("multiply", 7, 2)
            << ", 7 / 2 = " << client.calculate("divide", 7, 2) << "\n";
  try {
    client.calculate("divide", 7, 0);
    return 1;
  } catch (const std::runtime_error& error) {
    std::cout << "7 / 0: " << error.what() << "\n";
  }
  std::cout << "ticks: " << client.ticks(3, 2000).size() << "\n";
  return 0;
}

int measure() {
  Client client;
  rpc::Workload workload;
  workload.ping = [&] {
    client.introduce();
    client.ping();
  };
  workload.hello = [&] {
    client.introduce();
    client.call("hello", "s", "hello");
  };
  workload.calculate = [&] {
    client.introduce();
    for (const char* operation : {"add", "subtract", "multiply", "divide"})
      client.calculate(operation, 7, 2);
  };
  workload.ticks = [&](int ticks) { return client.ticks(ticks, 1000); };
  rpc::measure("dbus", workload);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  try {
    if (what == "serve") return serve();
    if (what == "call") return call();
    if (what == "measure") return measure();
  } catch (const std::exception& error) {
    std::cerr << "rpc-dbus: " << error.what() << "\n";
    return 1;
  }
  std::cerr << "usage: rpc-dbus serve|call|measure\n";
  return 2;
}
