// SPDX-License-Identifier: Apache-2.0
//
// Services of examples/rpc, and servers of Thrift's three kinds, for tests.
#pragma once

#include <gtest/gtest.h>
#include <thrift/concurrency/ThreadFactory.h>
#include <thrift/concurrency/ThreadManager.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/protocol/TCompactProtocol.h>
#include <thrift/server/TSimpleServer.h>
#include <thrift/server/TThreadPoolServer.h>
#include <thrift/server/TThreadedServer.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "calculator.h"
#include "farcall/thrift/transport.hpp"
#include "harness/child.hpp"
#include "ping.h"

namespace farcall::thrift::test {

using namespace apache::thrift;
using namespace apache::thrift::protocol;
using namespace apache::thrift::server;
using namespace apache::thrift::transport;
using namespace farcall::test;

class Ping final : public rpc::pingIf {
 public:
  void name(std::string& result) override { result = "ping"; }
  void version(rpc::version_struct& result) override { result.major_version = 1; }
  void ping(rpc::test_struct& result, const rpc::test_struct& request) override {
    result = request;
    result.what = rpc::operation::PONG;
  }
  void hello(const std::string& greeting) override {
    std::this_thread::sleep_for(pause);
    eventually([&] { return !closed; });
    greeted += greeting.size();
    ++hellos;
  }
  std::chrono::milliseconds pause{0};
  std::atomic<bool> closed{false};  // hello() waits until it is not
  std::atomic<std::size_t> greeted{0};
  std::atomic<int> hellos{0};
};

class Calculator final : public rpc::calculatorIf {
 public:
  void name(std::string& result) override { result = "calculator"; }
  void version(rpc::version_struct& result) override { result.major_version = 1; }
  std::int32_t add(std::int32_t a, std::int32_t b) override { return a + b; }
  std::int32_t subtract(std::int32_t a, std::int32_t b) override { return a - b; }
  std::int32_t multiply(std::int32_t a, std::int32_t b) override { return a * b; }
  std::int32_t divide(std::int32_t a, std::int32_t b) override {
    if (b != 0) return a / b;
    rpc::division_by_zero error;
    error.message = "divided by zero";
    throw error;
  }
};

enum class Kind { simple, threaded, pool };

inline std::string unique_name() {
  static int count = 0;
  return "thrift-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

template <class Protocol = TBinaryProtocol>
class Server {
 public:
  Server(Kind kind, const std::shared_ptr<TProcessor>& processor,
         const std::shared_ptr<TTransportFactory>& factory = std::make_shared<TTransportFactory>())
      : name(unique_name()), transport_(std::make_shared<TFarcallServerTransport>(name)) {
    const auto protocols = std::make_shared<TProtocolFactoryOf>();
    if (kind == Kind::simple) {
      server_ = std::make_unique<TSimpleServer>(processor, transport_, factory, protocols);
    } else if (kind == Kind::threaded) {
      server_ = std::make_unique<TThreadedServer>(processor, transport_, factory, protocols);
    } else {
      const auto threads = concurrency::ThreadManager::newSimpleThreadManager(4);
      threads->threadFactory(std::make_shared<concurrency::ThreadFactory>());
      threads->start();
      server_ =
          std::make_unique<TThreadPoolServer>(processor, transport_, factory, protocols, threads);
    }
    thread_ = std::thread([this] { server_->serve(); });
    EXPECT_TRUE(eventually([this] { return transport_->isOpen(); }));
  }
  ~Server() {
    server_->stop();
    thread_.join();
  }

  const std::string name;

 private:
  class TProtocolFactoryOf final : public TProtocolFactory {
    std::shared_ptr<TProtocol> getProtocol(std::shared_ptr<TTransport> transport) override {
      return std::make_shared<Protocol>(transport);
    }
  };
  std::shared_ptr<TFarcallServerTransport> transport_;
  std::unique_ptr<server::TServer> server_;
  std::thread thread_;
};

template <class Client, class Protocol = TBinaryProtocol>
struct Caller {
  explicit Caller(const std::string& name)
      : transport(std::make_shared<TFarcallTransport>(name)),
        client(std::make_shared<Protocol>(transport)) {
    transport->open();
  }
  Client* operator->() { return &client; }
  std::shared_ptr<TFarcallTransport> transport;
  Client client;
};

inline TTransportException::TTransportExceptionType type_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const TTransportException& error) {
    return error.getType();
  }
  return TTransportException::UNKNOWN;
}

inline rpc::test_struct sample(std::size_t text_bytes) {
  rpc::test_struct all;
  all.what = rpc::operation::PING;
  all.values.a_bool = true;
  all.values.an_i8 = -8;
  all.values.an_i16 = -16;
  all.values.an_i32 = 1 << 30;
  all.values.an_i64 = -(std::int64_t{1} << 60);
  all.values.a_double = 1.5;
  all.values.a_string = std::string(text_bytes, 's');
  all.values.a_binary = std::string("\0\1\2", 3);
  all.containers.a_map = {{1, "one"}, {2, "two"}};
  all.containers.a_list = {3, 2, 1};
  all.containers.a_set = {5, 6};
  return all;
}

}  // namespace farcall::thrift::test
