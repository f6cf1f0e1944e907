// SPDX-License-Identifier: Apache-2.0
//
// A thread that has found a channel or a connection comes to it when another has closed it.
#include "farcall/error.hpp"
#include "harness/error_of.hpp"
#include "message/channel.hpp"
#include "message/engine.hpp"

namespace farcall::message::test {
namespace {

template <class Object>
void close(Object& object) {
  EXPECT_TRUE(object.shut());
  object.close();
}

TEST(MessageClosed, AChannelTakesNoConnectionsAnyMore) {
  const auto channel = shared_engine().create({}, 0, 0);
  close(*channel);
  EXPECT_EQ(error_of([&] { channel->connect(); }), EBADF);
}

TEST(MessageClosed, AConnectionBeginsNothingAnyMore) {
  const auto channel = shared_engine().create({}, 0, 0);
  UniqueFd descriptor = channel->connect();
  const auto connection = shared_engine().adopt(descriptor);
  close(*connection);
  EXPECT_EQ(error_of([&] { connection->watch_death(channel, 1); }), EBADF);
  EXPECT_EQ(connection->pulse(1, 2, 3), EBADF);
  Sending sending{.message = {}, .room = {}, .descriptors = {}, .since = SignalCount::now()};
  EXPECT_EQ(error_of([&] { connection->send(sending, Deadline::after(kPatience)); }), ESRCH);
  close(*channel);
}

}  // namespace
}  // namespace farcall::message::test
