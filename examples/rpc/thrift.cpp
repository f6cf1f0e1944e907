// SPDX-License-Identifier: Apache-2.0
//
// The services over Thrift: one program that serves or calls them, through TSocket or through
// farcall. What differs is two lines: see transport_to() and server_transport_at().
//
// Each service has an address of its own: PORT, PORT + 1 and PORT + 2, or NAME.ping,
// NAME.calculator and NAME.timer.
//
//   rpc-thrift serve  tsocket PORT | farcall NAME     prints "ready" when it can be called
//   rpc-thrift call   tsocket PORT | farcall NAME     calls everything once and says what came
//   rpc-thrift measure tsocket PORT | farcall NAME    prints one line of JSON
//   rpc-thrift both   tsocket PORT | farcall NAME     serves in a child, and measures
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>

#include "calculator.h"
#include "farcall/thrift/transport.hpp"
#include "measure.hpp"
#include "ping.h"
#include "services.hpp"
#include "timer.h"

namespace {

using namespace apache::thrift;
using namespace apache::thrift::protocol;
using namespace apache::thrift::server;
using namespace apache::thrift::transport;
namespace rpc = farcall::rpc;

// Both transports have a buffer of Thrift's kind, which generated code can reach without calls.
using Protocol = TBinaryProtocolT<TBufferBase>;

struct Address {
  std::string kind;
  std::string where;

  [[nodiscard]] Address of(int service) const {
    static const char* const names[] = {".ping", ".calculator", ".timer"};
    if (kind == "farcall") return {kind, where + names[service]};
    return {kind, std::to_string(std::stoi(where) + service)};
  }
};

std::shared_ptr<TBufferBase> transport_to(const Address& address) {
  if (address.kind == "farcall")
    return std::make_shared<farcall::thrift::TFarcallTransport>(address.where);
  auto socket = std::make_shared<TSocket>("127.0.0.1", std::stoi(address.where));
  socket->setNoDelay(true);
  return std::make_shared<TBufferedTransport>(socket);
}

std::shared_ptr<TServerTransport> server_transport_at(const Address& address) {
  if (address.kind == "farcall")
    return std::make_shared<farcall::thrift::TFarcallServerTransport>(address.where);
  return std::make_shared<TServerSocket>("127.0.0.1", std::stoi(address.where));
}

std::shared_ptr<TTransportFactory> factory_for(const Address& address) {
  if (address.kind == "farcall") return std::make_shared<TTransportFactory>();
  return std::make_shared<TBufferedTransportFactory>();
}

// What all have in common.
template <class Interface>
class Example : public Interface {
 public:
  explicit Example(std::string name) : name_(std::move(name)) {}
  void name(std::string& result) override { result = name_; }
  void version(rpc::version_struct& result) override {
    result.major_version = 0;
    result.minor_version = 1;
    result.micro_version = 0;
  }

 private:
  std::string name_;
};

class Ping final : public Example<rpc::pingIf> {
 public:
  Ping() : Example("ping") {}
  void ping(rpc::test_struct& result, const rpc::test_struct& request) override {
    result = request;
    result.what = rpc::operation::PONG;
  }
  void hello(const std::string&) override {}
};

class Calculator final : public Example<rpc::calculatorIf> {
 public:
  Calculator() : Example("calculator") {}
  std::int32_t add(std::int32_t a, std::int32_t b) override {
    return rpc::wrapped(std::int64_t{a} + b);
  }
  std::int32_t subtract(std::int32_t a, std::int32_t b) override {
    return rpc::wrapped(std::int64_t{a} - b);
  }
  std::int32_t multiply(std::int32_t a, std::int32_t b) override {
    return rpc::wrapped(std::int64_t{a} * b);
  }
  std::int32_t divide(std::int32_t a, std::int32_t b) override {
    if (b != 0) return rpc::wrapped(std::int64_t{a} / b);
    rpc::division_by_zero error;
    error.message = "divided by zero";
    throw error;
  }
};

class Timer final : public Example<rpc::timerIf> {
 public:
  Timer() : Example("timer") {}
  rpc::timer_id start(std::int64_t interval_us) override { return timers_.start(interval_us); }
  void stop(rpc::timer_id id) override { timers_.stop(id); }
  void tick(rpc::timestamp& result, rpc::timer_id id) override {
    const rpc::Tick tick = timers_.wait(id);
    result.counter = tick.counter;
    result.abstime = tick.abstime;
  }

 private:
  rpc::Timers timers_;
};

// Tells when all three servers can be called.
class Announcement final : public TServerEventHandler {
 public:
  explicit Announcement(int out) : out_(out) {}
  void preServe() override {
    if (++serving_ == 3) (void)!::write(out_, "ready\n", 6);
  }

 private:
  int out_;
  std::atomic<int> serving_{0};
};

int serve(const Address& address, int announce_to) {
  const std::shared_ptr<TProcessor> processors[] = {
      std::make_shared<rpc::pingProcessorT<Protocol>>(std::make_shared<Ping>()),
      std::make_shared<rpc::calculatorProcessorT<Protocol>>(std::make_shared<Calculator>()),
      std::make_shared<rpc::timerProcessorT<Protocol>>(std::make_shared<Timer>())};
  const auto announcement = std::make_shared<Announcement>(announce_to);
  std::vector<std::thread> threads;
  for (int service = 0; service < 3; ++service)
    threads.emplace_back([&, service] {
      try {
        TThreadedServer server(processors[service], server_transport_at(address.of(service)),
                               factory_for(address),
                               std::make_shared<TBinaryProtocolFactoryT<TBufferBase>>());
        server.setServerEventHandler(announcement);
        server.serve();
      } catch (const TException& error) {
        std::cerr << "rpc-thrift: " << error.what() << "\n";
        ::_exit(1);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

struct Clients {
  explicit Clients(const Address& address)
      : ping(open(address.of(0))), calculator(open(address.of(1))), timer(open(address.of(2))) {}
  static std::shared_ptr<Protocol> open(const Address& address) {
    const std::shared_ptr<TBufferBase> transport = transport_to(address);
    transport->open();
    return std::make_shared<Protocol>(transport);
  }
  rpc::pingClientT<Protocol> ping;
  rpc::calculatorClientT<Protocol> calculator;
  rpc::timerClientT<Protocol> timer;
};

rpc::test_struct question() {
  rpc::test_struct all;
  all.what = rpc::operation::PING;
  all.values.a_bool = true;
  all.values.an_i8 = 8;
  all.values.an_i16 = 16;
  all.values.an_i32 = 32;
  all.values.an_i64 = 64;
  all.values.a_double = 0.5;
  all.values.a_string = "ping";
  all.values.a_binary = std::string("\x01\x00\x02", 3);
  all.containers.a_map = {{1, "one"}, {2, "two"}, {3, "three"}};
  all.containers.a_list = {1, 2, 3};
  all.containers.a_set = {1, 2, 3};
  return all;
}

template <class Client>
void introduce(Client& client) {
  std::string name;
  client.name(name);
  rpc::version_struct version;
  client.version(version);
}

int call(const Address& address) {
  Clients clients(address);
  std::string name;
  clients.ping.name(name);
  rpc::version_struct version;
  clients.ping.version(version);
  std::cout << name << " " << version.major_version << "." << version.minor_version << "."
            << version.micro_version << "\n";
  rpc::test_struct reply;
  const rpc::test_struct request = question();
  clients.ping.ping(reply, request);
  rpc::test_struct expected = request;
  expected.what = rpc::operation::PONG;
  std::cout << "ping: " << (reply == expected ? "PONG" : "something else") << "\n";
  clients.ping.hello("hello");
  std::cout << "7 + 2 = " << clients.calculator.add(7, 2)
            << ", 7 - 2 = " << clients.calculator.subtract(7, 2)
            << ", 7 * 2 = " << clients.calculator.multiply(7, 2)
            << ", 7 / 2 = " << clients.calculator.divide(7, 2) << "\n";
  try {
    clients.calculator.divide(7, 0);
    return 1;
  } catch (const rpc::division_by_zero& error) {
    std::cout << "7 / 0: " << error.message << "\n";
  }
  const rpc::timer_id timer = clients.timer.start(2000);
  rpc::timestamp tick;
  for (int i = 0; i < 3; ++i) {
    clients.timer.tick(tick, timer);
    std::cout << "tick " << tick.counter << "\n";
  }
  clients.timer.stop(timer);
  clients.timer.tick(tick, timer);
  std::cout << "after stop: " << tick.counter << "\n";
  return 0;
}

int measure(const Address& address) {
  Clients clients(address);
  const rpc::test_struct request = question();
  rpc::test_struct reply;
  rpc::Workload workload;
  workload.ping = [&] {
    introduce(clients.ping);
    clients.ping.ping(reply, request);
  };
  workload.hello = [&] {
    introduce(clients.ping);
    clients.ping.hello("hello");
  };
  workload.calculate = [&] {
    introduce(clients.calculator);
    clients.calculator.add(7, 2);
    clients.calculator.subtract(7, 2);
    clients.calculator.multiply(7, 2);
    clients.calculator.divide(7, 2);
  };
  workload.ticks = [&](int ticks) {
    std::vector<std::int64_t> late;
    const rpc::timer_id timer = clients.timer.start(1000);
    rpc::timestamp tick;
    for (int i = 0; i < ticks; ++i) {
      clients.timer.tick(tick, timer);
      late.push_back(rpc::now_ns() - tick.abstime);
    }
    clients.timer.stop(timer);
    return late;
  };
  const char* label = std::getenv("RPC_LABEL");
  rpc::measure(label != nullptr ? label : address.kind.c_str(), workload);
  return 0;
}

// For machines without a shell that could start two.
int both(const Address& address) {
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  const pid_t server = ::fork();
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(serve(address, ends[1]));
  }
  char ready[6];
  if (::read(ends[0], ready, sizeof ready) != sizeof ready) return 1;
  ::usleep(100'000);
  const int status = measure(address);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: rpc-thrift serve|call|measure|both tsocket PORT | farcall NAME\n";
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  GlobalOutput.setOutputFunction([](const char*) {});  // clients that leave are no news
  const std::string what = argv[1];
  const Address address{argv[2], argv[3]};
  try {
    if (what == "serve") return serve(address, STDOUT_FILENO);
    if (what == "call") return call(address);
    if (what == "measure") return measure(address);
    if (what == "both") return both(address);
  } catch (const TException& error) {
    std::cerr << "rpc-thrift: " << error.what() << "\n";
  }
  return 1;
}
