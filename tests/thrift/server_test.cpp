// SPDX-License-Identifier: Apache-2.0
//
// Thrift's own servers over these transports.
#include "thrift/server.hpp"

#include <thrift/protocol/TJSONProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <fstream>
#include <string>
#include <vector>

namespace farcall::thrift::test {
namespace {

class EveryServer : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Thrift, EveryServer,
                         testing::Values(Kind::simple, Kind::threaded, Kind::pool),
                         [](const auto& kind) {
                           return kind.param == Kind::simple     ? "Simple"
                                  : kind.param == Kind::threaded ? "Threaded"
                                                                 : "Pool";
                         });

TEST_P(EveryServer, ServesCallsOfAllSizes) {
  const Server<> server(GetParam(), std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()));
  Caller<rpc::pingClient> caller(server.name);
  std::string name;
  caller->name(name);
  EXPECT_EQ(name, "ping");
  for (const std::size_t size :
       {0UL, 10UL, 511UL, 513UL, 4'000UL, 65'000UL, 66'000UL, 1UL << 20, 5'000'001UL}) {
    rpc::test_struct reply;
    const rpc::test_struct request = sample(size);
    caller->ping(reply, request);
    EXPECT_EQ(reply.what, rpc::operation::PONG) << size;
    reply.what = rpc::operation::PING;
    EXPECT_TRUE(reply == request) << size;
  }
}

TEST_P(EveryServer, ServesOneClientAfterAnother) {
  const Server<> server(GetParam(),
                        std::make_shared<rpc::calculatorProcessor>(std::make_shared<Calculator>()));
  for (int i = 0; i < 30; ++i) {
    Caller<rpc::calculatorClient> caller(server.name);
    EXPECT_EQ(caller->add(i, 1), i + 1);
    EXPECT_EQ(caller->multiply(i, 3), i * 3);
    caller.transport->close();
  }
}

TEST_P(EveryServer, AnExceptionIsAReplyAndNotTheEnd) {
  const Server<> server(GetParam(),
                        std::make_shared<rpc::calculatorProcessor>(std::make_shared<Calculator>()));
  Caller<rpc::calculatorClient> caller(server.name);
  EXPECT_THROW(caller->divide(1, 0), rpc::division_by_zero);
  EXPECT_EQ(caller->divide(7, 2), 3);
  EXPECT_EQ(caller->subtract(7, 2), 5);
}

TEST_P(EveryServer, OneWayCallsAreNotWaitedFor) {
  const auto handler = std::make_shared<Ping>();
  handler->closed = true;
  const Server<> server(GetParam(), std::make_shared<rpc::pingProcessor>(handler));
  Caller<rpc::pingClient> caller(server.name);
  std::string name;
  caller->name(name);
  caller->hello("short");
  EXPECT_EQ(handler->hellos, 0);
  handler->closed = false;
  EXPECT_TRUE(eventually([&] { return handler->hellos == 1; }));
  caller->hello(std::string(200'000, 'x'));  // too long for one message without a reply
  caller->name(name);                        // comes after it
  EXPECT_EQ(handler->hellos, 2);
  EXPECT_EQ(handler->greeted, 200'005U);
}

TEST_P(EveryServer, OtherProtocolsAndWrappersWork) {
  const Server<TCompactProtocol> compact(
      GetParam(), std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()));
  Caller<rpc::pingClient, TCompactProtocol> caller(compact.name);
  rpc::test_struct reply;
  caller->ping(reply, sample(1000));
  EXPECT_EQ(reply.values.a_string.size(), 1000U);

  const Server<> framed(GetParam(), std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()),
                        std::make_shared<TFramedTransportFactory>());
  const auto transport = std::make_shared<TFarcallTransport>(framed.name);
  rpc::pingClient client(
      std::make_shared<TBinaryProtocol>(std::make_shared<TFramedTransport>(transport)));
  transport->open();
  client.ping(reply, sample(70'000));
  EXPECT_EQ(reply.values.a_string.size(), 70'000U);
  client.hello("x");
  std::string name;
  client.name(name);
  EXPECT_EQ(name, "ping");
}

TEST_P(EveryServer, StopsWhileAClientIsThere) {
  std::unique_ptr<Caller<rpc::pingClient>> caller;
  {
    const Server<> server(GetParam(),
                          std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()));
    caller = std::make_unique<Caller<rpc::pingClient>>(server.name);
    std::string name;
    (*caller)->name(name);
  }
  std::string name;
  try {
    (*caller)->name(name);
    ADD_FAILURE() << "served by nobody";
  } catch (const TTransportException& error) {
    EXPECT_EQ(error.getType(), TTransportException::END_OF_FILE) << error.what();
  }
}

// What this process has in memory that is no file's, in bytes.
std::size_t private_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "RssAnon:") break;
  std::size_t kilobytes = 0;
  status >> kilobytes;
  return kilobytes << 10;
}

// Where Thrift says when a message has been read, and where it does not.
TEST(ThriftServer, ALongMessageLeavesNoMemoryToItsConnection) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers keep what is freed";
  constexpr std::size_t kLong = std::size_t{48} << 20;  // the C library keeps less, too
  const std::shared_ptr<TTransportFactory> bare = std::make_shared<TTransportFactory>();
  const std::shared_ptr<TTransportFactory> buffered = std::make_shared<TBufferedTransportFactory>();
  for (const auto& factory : {bare, buffered}) {
    const Server<> server(Kind::threaded,
                          std::make_shared<rpc::pingProcessor>(std::make_shared<Ping>()), factory);
    Caller<rpc::pingClient> caller(server.name);
    const auto exchange = [&](std::size_t size) {
      rpc::test_struct reply;
      caller->ping(reply, sample(size));
      return reply.values.a_string.size();
    };
    EXPECT_EQ(exchange(10), 10U);
    const std::size_t before = private_memory();
    EXPECT_EQ(exchange(kLong), kLong);
    // Four buffers may keep 4 MiB each.
    EXPECT_TRUE(eventually([&] { return private_memory() < before + kLong / 2; }))
        << (private_memory() - before) / 1024 << " KiB more";
    EXPECT_EQ(exchange(10), 10U);
  }
}

TEST(ThriftServer, ManyClientsAtOnce) {
  const Server<> server(Kind::threaded,
                        std::make_shared<rpc::calculatorProcessor>(std::make_shared<Calculator>()));
  std::vector<std::thread> clients;
  for (int i = 0; i < 20; ++i)
    clients.emplace_back([&, i] {
      Caller<rpc::calculatorClient> caller(server.name);
      for (int j = 0; j < 200; ++j) ASSERT_EQ(caller->add(i, j), i + j);
    });
  for (std::thread& client : clients) client.join();
}

TEST(ThriftServer, UnknownProtocolsCallOneWayToo) {
  // JSON with white space in front is none that the transport knows.
  class Strange : public TJSONProtocol {
   public:
    explicit Strange(const std::shared_ptr<TTransport>& transport) : TJSONProtocol(transport) {}
    std::uint32_t writeMessageBegin_virt(const std::string& name, const TMessageType type,
                                         const std::int32_t id) override {
      const std::uint8_t mark = 'S';
      getTransport()->write(&mark, 1);
      return 1 + TJSONProtocol::writeMessageBegin(name, type, id);
    }
    std::uint32_t readMessageBegin_virt(std::string& name, TMessageType& type,
                                        std::int32_t& id) override {
      std::uint8_t mark = 0;
      getTransport()->readAll(&mark, 1);
      EXPECT_EQ(mark, 'S');
      return 1 + TJSONProtocol::readMessageBegin(name, type, id);
    }
  };
  const auto handler = std::make_shared<Ping>();
  const Server<Strange> server(Kind::threaded, std::make_shared<rpc::pingProcessor>(handler));
  Caller<rpc::pingClient, Strange> caller(server.name);
  for (int i = 0; i < 5; ++i) {
    caller->hello("x");
    std::string name;
    caller->name(name);
    EXPECT_EQ(name, "ping");
  }
  EXPECT_EQ(handler->hellos, 5);
}

}  // namespace
}  // namespace farcall::thrift::test
