// SPDX-License-Identifier: Apache-2.0
//
// One-way calls are known by their bytes, whatever protocol wrote them.
#include "one_way.hpp"

#include <gtest/gtest.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/protocol/TCompactProtocol.h>
#include <thrift/protocol/TJSONProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <string>

namespace farcall::thrift::test {
namespace {

using namespace apache::thrift::protocol;
using namespace apache::thrift::transport;

template <class Protocol>
std::string message(TMessageType type, const std::string& name, bool framed = false) {
  auto memory = std::make_shared<TMemoryBuffer>();
  std::shared_ptr<TTransport> transport = memory;
  if (framed) transport = std::make_shared<TFramedTransport>(memory);
  Protocol protocol(transport);
  protocol.writeMessageBegin(name, type, 7);
  protocol.writeI32(4);
  protocol.writeMessageEnd();
  transport->flush();
  return memory->getBufferAsString();
}

bool one_way(const std::string& bytes) {
  return is_one_way({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

template <class Protocol>
class OneWay : public testing::Test {};
using Protocols = testing::Types<TBinaryProtocol, TCompactProtocol, TJSONProtocol>;
TYPED_TEST_SUITE(OneWay, Protocols);

TYPED_TEST(OneWay, IsKnown) {
  for (const std::string& name : {std::string("hello"), std::string("x"), std::string(300, 'n'),
                                  std::string("quote\"and\\more"), std::string("service:hello")}) {
    for (const bool framed : {false, true}) {
      EXPECT_TRUE(one_way(message<TypeParam>(T_ONEWAY, name, framed))) << name;
      for (const TMessageType type : {T_CALL, T_REPLY, T_EXCEPTION})
        EXPECT_FALSE(one_way(message<TypeParam>(type, name, framed))) << name;
    }
  }
}

TEST(OneWayBytes, OldBinaryMessagesAreKnown) {
  auto memory = std::make_shared<TMemoryBuffer>();
  TBinaryProtocol protocol(memory, 0, 0, false, false);
  protocol.writeMessageBegin("hello", T_ONEWAY, 1);
  EXPECT_TRUE(one_way(memory->getBufferAsString()));
  memory->resetBuffer();
  protocol.writeMessageBegin("hello", T_CALL, 1);
  EXPECT_FALSE(one_way(memory->getBufferAsString()));
}

TEST(OneWayBytes, NothingElseIs) {
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string("[1,\""), std::string("[1,\"abc\\"),
        std::string("\x82"), std::string("\x80\x01\x00", 3), std::string(100, '\xff'),
        std::string("\x7f\xff\xff\xff\x04\x04\x04", 7), std::string(8, '\0')})
    EXPECT_FALSE(one_way(bytes)) << bytes;
}

}  // namespace
}  // namespace farcall::thrift::test
