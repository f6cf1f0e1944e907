// SPDX-License-Identifier: Apache-2.0
//
// Messages where a thread or the process is about to end: in handlers of atexit(3), in destructors
// of keys, and of the program's own thread_local objects.
#include <pthread.h>

#include <cstdlib>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// What is left to do when this process, or thread, ends.
int channel_left = -1;
int connection_left = -1;
std::int64_t id_left = -1;

// A channel of a child's, which serves once; then the child ends by exit(3).
void serve_until_exit(int channel, void (*at_exit)()) {
  channel_left = channel;
  id_left = receive(channel).id;
  EXPECT_GT(id_left, FARCALL_ONE_WAY);
  if (std::atexit(at_exit) != 0) ::_exit(1);
  std::exit(1);
}

TEST(MessageThreadEnd, AHandlerOfAtexitAnswersAndDestroysTheChannel) {
  const std::string name = unique_name("atexit");
  const Shared<Event> ready;
  Child server([&] {
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    ready->happens();
    serve_until_exit(channel, [] {
      EXPECT_EQ(answer(id_left, 3, "bye"), 0);
      EXPECT_EQ(farcall_channel_destroy(channel_left), 0);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    });
  });
  ASSERT_TRUE(ready->wait());
  const int connection = farcall_name_open(name.c_str());
  EXPECT_EQ(send(connection, "x"), (Reply{.status = 3, .error = 0, .text = "bye"}));
  EXPECT_EQ(server.join(), 0);
  farcall_disconnect(connection);
}

TEST(MessageThreadEnd, AHandlerOfAtexitReceives) {
  const std::string name = unique_name("atexit");
  const Shared<Event> ready;
  Child server([&] {
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    ready->happens();
    serve_until_exit(channel, [] {
      EXPECT_EQ(answer(id_left, 0, "first"), 0);
      const Message next = receive(channel_left);
      EXPECT_EQ(next.text, "again");
      EXPECT_EQ(answer(next.id, 0, "last"), 0);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    });
  });
  ASSERT_TRUE(ready->wait());
  const int connection = farcall_name_open(name.c_str());
  EXPECT_EQ(send(connection, "x").text, "first");
  EXPECT_EQ(send(connection, "again").text, "last");
  EXPECT_EQ(server.join(), 0);
  farcall_disconnect(connection);
}

TEST(MessageThreadEnd, AHandlerOfAtexitSendsAndDisconnects) {
  EchoServer server;
  Child client([&] {
    connection_left = server.connection;
    EXPECT_EQ(send(connection_left, "x").text, "x");
    const auto at_exit = [] {
      EXPECT_EQ(send(connection_left, "bye").text, "bye");
      EXPECT_EQ(farcall_disconnect(connection_left), 0);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    };
    if (std::atexit(at_exit) != 0) ::_exit(1);
    std::exit(1);
  });
  EXPECT_EQ(client.join(), 0);
}

void answer_and_receive_once_more() {
  EXPECT_EQ(answer(id_left, 0, "first"), 0);
  const Message next = receive(channel_left);
  EXPECT_EQ(next.text, "again");
  EXPECT_EQ(answer(next.id, 0, "last"), 0);
}

// A thread that has received ends, and then does the rest; nobody waits for it afterwards.
void end_and_serve(void (*prepare)()) {
  Channel channel;
  channel_left = channel.id;
  Child client([&] {
    EXPECT_EQ(send(channel.connection, "x").text, "first");
    EXPECT_EQ(send(channel.connection, "again").text, "last");
    EXPECT_EQ(send(channel.connection, "other").text, "other") << "to another thread";
  });
  std::thread([&] {
    prepare();
    id_left = receive(channel_left).id;
  }).join();
  const Message other = receive(channel.id);
  EXPECT_EQ(answer(other.id, 0, other.text), 0) << std::strerror(other.error);
  EXPECT_EQ(client.join(), 0);
}

TEST(MessageThreadEnd, ADestructorOfAKeyAnswersAndReceives) {
  // A key that is made later has its destructors called later.
  end_and_serve([] {
    pthread_key_t key{};
    ASSERT_EQ(::pthread_key_create(&key, [](void*) { answer_and_receive_once_more(); }), 0);
    ::pthread_setspecific(key, &channel_left);
  });
}

TEST(MessageThreadEnd, AnObjectOfTheThreadAnswersAndReceivesWhenItGoes) {
  // What is made first goes last.
  end_and_serve([] {
    struct Last {
      int lives = 1;
      ~Last() { answer_and_receive_once_more(); }
    };
    thread_local Last last;
    EXPECT_EQ(last.lives, 1);
  });
}

}  // namespace
}  // namespace farcall::message::test
