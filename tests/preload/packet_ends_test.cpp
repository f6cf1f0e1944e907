// SPDX-License-Identifier: Apache-2.0
//
// How unix sockets of packets end. These tests run as those of packet_test.cpp do.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "contract.hpp"
#include "farcall/memory.hpp"
#include "packets.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

TEST(Packets, AnEndComesBehindAllMessages) {
  for (const bool closes : {false, true}) {
    Packets both;
    both.put("last");
    EXPECT_EQ(::send(both.a(), "", 0, 0), 0);
    both.put("very last");
    if (closes)
      both.pair.client.reset();
    else
      ASSERT_EQ(::shutdown(both.a(), SHUT_WR), 0);
    char byte = 0;
    EXPECT_EQ(receive(both.b()), "last");
    EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
    EXPECT_EQ(receive(both.b()), "very last");
    EXPECT_EQ(receive(both.b()), "(end)");
    EXPECT_EQ(receive(both.b()), "(end)");
  }
}

TEST(Packets, NoSignalComesOfAPeerThatHasGone) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &usual, nullptr);
  Packets both;
  both.pair.server.reset();
  EXPECT_EQ(send(both.a(), "x", 0), "(EPIPE)");
  EXPECT_EQ(receive(both.a()), "(end)");
}

TEST(Packets, ToCloseWithMessagesUnreadResets) {
  for (const bool sends : {false, true}) {
    Packets both;
    both.put("unread");
    ASSERT_EQ(send(both.b(), "last"), "4");
    both.pair.server.reset();
    // Unlike streams, these tell of it first.
    if (sends)
      EXPECT_EQ(send(both.a(), "x"), "(ECONNRESET)");
    else
      EXPECT_EQ(receive(both.a()), "(ECONNRESET)");
    EXPECT_EQ(receive(both.a()), "last");
    EXPECT_EQ(receive(both.a()), "(end)");
    EXPECT_EQ(send(both.a(), "x"), "(EPIPE)");
  }
}

TEST(Packets, WhoDoesNotReadAnyMoreIsNotSentTo) {
  const Packets both;
  both.put("there already");
  ASSERT_EQ(::shutdown(both.b(), SHUT_RD), 0);
  EXPECT_EQ(send(both.a(), "x"), "(EPIPE)");
  EXPECT_EQ(receive(both.b()), "there already");
  EXPECT_EQ(receive(both.b()), "(end)");
  ASSERT_EQ(send(both.b(), "the other way"), "13");
  EXPECT_EQ(receive(both.a()), "the other way");
}

TEST(Packets, ASleeperSeesTheEnd) {
  for (int round = 0; round < 5; ++round) {
    Packets both;
    std::thread later([&] {
      std::this_thread::sleep_for(3ms);
      both.pair.client.reset();
    });
    EXPECT_EQ(receive(both.b()), "(end)");
    later.join();
  }
}

}  // namespace
}  // namespace farcall::preload
