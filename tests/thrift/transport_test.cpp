// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong, and what it is called.
#include <signal.h>

#include "thrift/server.hpp"

namespace farcall::thrift::test {
namespace {

using door::test::Child;
using door::test::Event;
using door::test::Shared;

TTransportException::TTransportExceptionType type_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const TTransportException& error) {
    return error.getType();
  }
  return TTransportException::UNKNOWN;
}

TEST(ThriftTransport, ANameThatNobodyServesIsNotOpen) {
  TFarcallTransport transport("nobody-serves-this");
  EXPECT_EQ(type_of([&] { transport.open(); }), TTransportException::NOT_OPEN);
  EXPECT_FALSE(transport.isOpen());
  const std::uint8_t byte = 0;
  transport.write(&byte, 1);
  EXPECT_EQ(type_of([&] { transport.flush(); }), TTransportException::NOT_OPEN);
}

TEST(ThriftTransport, ANameIsServedOnce) {
  const std::string name = unique_name();
  TFarcallServerTransport one(name);
  TFarcallServerTransport two(name);
  one.listen();
  EXPECT_TRUE(one.isOpen());
  EXPECT_EQ(type_of([&] { two.listen(); }), TTransportException::NOT_OPEN);
  one.close();
  EXPECT_FALSE(one.isOpen());
  EXPECT_EQ(type_of([&] { one.accept(); }), TTransportException::NOT_OPEN);
  two.listen();
}

TEST(ThriftTransport, AcceptIsInterrupted) {
  TFarcallServerTransport server(unique_name());
  server.listen();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server.interrupt();
  });
  EXPECT_EQ(type_of([&] { server.accept(); }), TTransportException::INTERRUPTED);
  later.join();
}

TEST(ThriftTransport, AServerThatDiesIsTheEndOfTheFile) {
  const std::string name = unique_name();
  const Shared<Event> ready;
  Child server([&] {
    const auto transport = std::make_shared<TFarcallServerTransport>(name);
    const auto handler = std::make_shared<Ping>();
    TThreadedServer threaded(std::make_shared<rpc::pingProcessor>(handler), transport,
                             std::make_shared<TTransportFactory>(),
                             std::make_shared<TBinaryProtocolFactory>());
    std::thread watch([&] {
      while (!transport->isOpen()) std::this_thread::yield();
      ready->happens();
    });
    threaded.serve();
  });
  ASSERT_TRUE(ready->wait());
  Caller<rpc::pingClient> caller(name);
  std::string text;
  caller->name(text);
  EXPECT_TRUE(caller.transport->peek());
  server.kill();
  EXPECT_TRUE(eventually([&] { return !caller.transport->peek(); }));
  EXPECT_EQ(type_of([&] { caller->name(text); }), TTransportException::END_OF_FILE);
  EXPECT_FALSE(caller.transport->isOpen());
  EXPECT_EQ(type_of([&] { caller.transport->open(); }), TTransportException::NOT_OPEN);
}

TEST(ThriftTransport, AServerOutlivesClientsThatDie) {
  const Server<> server(Kind::threaded,
                        std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()));
  for (int i = 0; i < 20 / kSlow; ++i) {
    Child client([&] {
      Caller<rpc::pingClient> caller(server.name);
      rpc::test_struct reply;
      for (;;) caller->ping(reply, sample(static_cast<std::size_t>(i) * 10'000));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    client.kill();
    Caller<rpc::pingClient> caller(server.name);
    std::string name;
    caller->name(name);
    ASSERT_EQ(name, "ping");
  }
}

TEST(ThriftTransport, ATimeoutIsOne) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  std::shared_ptr<TTransport> accepted;
  std::thread accepting([&] { accepted = server.accept(); });
  TFarcallTransport client(name);
  client.open();
  accepting.join();
  // Not before: who accepts may get no processor for so long.
  client.setTimeout(std::chrono::milliseconds(50));
  const std::uint8_t bytes[8] = {};
  client.write(bytes, sizeof bytes);
  EXPECT_EQ(type_of([&] { client.flush(); }), TTransportException::TIMED_OUT);
  EXPECT_FALSE(client.isOpen());
}

TEST(ThriftTransport, AServerTellsWhoItsClientIs) {
  const std::string name = unique_name();
  TFarcallServerTransport server(name);
  server.listen();
  std::thread client([&] { TFarcallTransport(name).open(); });
  const auto accepted = server.accept();
  client.join();
  EXPECT_EQ(accepted->getOrigin(),
            "pid " + std::to_string(::getpid()) + " uid " + std::to_string(::geteuid()));
  // It has gone by now.
  std::uint8_t byte = 0;
  EXPECT_EQ(accepted->read(&byte, 1), 0U);
  EXPECT_FALSE(accepted->isOpen());
}

TEST(ThriftTransport, SignalsDoNotDisturbACall) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, nullptr);
  const auto handler = std::make_shared<Ping>();
  handler->pause = std::chrono::milliseconds(100);
  const Server<> server(Kind::threaded, std::make_shared<rpc::pingProcessor>(handler));
  Caller<rpc::pingClient> caller(server.name);
  const pthread_t self = ::pthread_self();
  std::atomic<bool> stop{false};
  std::thread nuisance([&] {
    while (!stop) {
      ::pthread_kill(self, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  caller->hello("x");
  std::string name;
  caller->name(name);
  EXPECT_EQ(name, "ping");
  stop = true;
  nuisance.join();
}

}  // namespace
}  // namespace farcall::thrift::test
