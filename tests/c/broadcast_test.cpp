// SPDX-License-Identifier: Apache-2.0
//
// One writer and many readers, through the C interface.
#include "c/broadcast.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "c/signals.hpp"

namespace farcall::c::test {
namespace {

TEST(CBroadcast, ANameIsFreeOnceItsPublisherIsClosed) {
  const std::string name = unique_name();
  for (int i = 0; i < 2000; ++i) {
    const Publisher publisher = publish(name.c_str(), FARCALL_OVERWRITE);
    ASSERT_TRUE(publisher) << "round " << i;
    const Subscriber subscriber = subscribe(name);
    ASSERT_TRUE(subscriber);
  }
}

TEST(CBroadcast, WhoCountsAsAReaderGetsWhatIsSentAlsoWhereThePublisherClosesAtOnce) {
  const std::string name = unique_name();
  for (int i = 0; i < 100; ++i) {
    Publisher publisher = publish(name.c_str());
    std::string received;
    std::thread reader([&] {
      const Subscriber subscriber = subscribe(name);
      received = receive(subscriber);
      received += receive(subscriber);
    });
    while (farcall_publisher_readers(publisher.get()) == 0) std::this_thread::yield();
    EXPECT_EQ(send(publisher, "x"), 0);
    publisher.reset();
    reader.join();
    ASSERT_EQ(received, "xEPIPE") << "round " << i;
  }
}

TEST(CBroadcast, ReachesEveryReader) {
  const std::string name = unique_name();
  Publisher publisher = publish(name.c_str());
  const Subscriber one = subscribe(name);
  const Subscriber other = adopt(farcall_publisher_invite(publisher.get()));
  EXPECT_EQ(farcall_publisher_readers(publisher.get()), 2U);
  EXPECT_EQ(send(publisher, "to all"), 0);
  EXPECT_EQ(send(publisher, ""), 0);
  for (const Subscriber* reader : {&one, &other}) {
    EXPECT_EQ(receive(*reader), "to all");
    EXPECT_EQ(receive(*reader), "");
    EXPECT_EQ(receive(*reader, 0), "EAGAIN");
    EXPECT_EQ(receive(*reader, kShort), "ETIMEDOUT");
  }
  EXPECT_EQ(send(publisher, "the last one"), 0);
  publisher.reset();
  for (const Subscriber* reader : {&one, &other}) {
    EXPECT_EQ(receive(*reader), "the last one");
    EXPECT_EQ(receive(*reader), "EPIPE");
  }
}

TEST(CBroadcast, ReachesOtherProcesses) {
  const std::string name = unique_name();
  Publisher publisher = publish(name.c_str());
  const int invitation = farcall_publisher_invite(publisher.get());
  ASSERT_GE(invitation, 0);
  EXPECT_EQ(::fcntl(invitation, F_GETFD), FD_CLOEXEC);
  const auto read_all = [](const Subscriber& subscriber) {
    EXPECT_EQ(receive(subscriber), "1");
    EXPECT_EQ(receive(subscriber), "2");
    EXPECT_EQ(receive(subscriber), "EPIPE");
  };
  Child invited([&] { read_all(adopt(invitation)); });
  ::close(invitation);
  Child by_name([&] { read_all(subscribe(name)); });
  EXPECT_TRUE(eventually([&] { return farcall_publisher_readers(publisher.get()) == 2; }));
  EXPECT_EQ(send(publisher, "1"), 0);
  EXPECT_EQ(send(publisher, "2"), 0);
  publisher.reset();
  EXPECT_EQ(invited.join(), 0);
  EXPECT_EQ(by_name.join(), 0);
}

TEST(CBroadcast, WaitsForSlowReadersWhereItIsToldTo) {
  const Publisher publisher = publish(nullptr, FARCALL_BLOCK);
  const Subscriber slow = adopt(farcall_publisher_invite(publisher.get()));
  int sent = 0;
  while (send(publisher, std::to_string(sent), 0) == 0) ++sent;
  EXPECT_GT(sent, 5);
  EXPECT_EQ(send(publisher, "more", 0), -EAGAIN);
  EXPECT_EQ(send(publisher, "more", kShort), -ETIMEDOUT);
  for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(slow), std::to_string(i));
  EXPECT_EQ(receive(slow, 0), "EAGAIN");
  EXPECT_EQ(send(publisher, "more", kLong), 0);
}

TEST(CBroadcast, TakesNoMoreMemoryThanIsPermitted) {
  const Publisher publisher = publish(nullptr, FARCALL_BLOCK, 1 << 16);
  const int invitation = farcall_publisher_invite(publisher.get());
  ASSERT_GE(invitation, 0);
  const farcall_subscriber_options little{
      .size = sizeof little, .start = FARCALL_NEWEST, .wait = 0, .most = 4096};
  farcall_subscriber* subscriber = nullptr;
  EXPECT_EQ(farcall_subscriber_adopt(invitation, &little, &subscriber), -EPROTO);
  EXPECT_EQ(::close(invitation), 0) << "it stays the caller's";
}

TEST(CBroadcast, SaysHowManyWereMissed) {
  const Publisher publisher = publish(nullptr, FARCALL_OVERWRITE);
  const Subscriber slow = adopt(farcall_publisher_invite(publisher.get()));
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(send(publisher, std::to_string(i), 0), 0);
  std::int64_t expected = 0;
  for (std::string got; (got = receive(slow, 0)) != "EAGAIN"; ++expected) {
    const std::size_t gap = got.find(" -");
    if (gap != std::string::npos) expected += std::stoi(got.substr(gap + 2));
    ASSERT_EQ(std::stoi(got), expected);
  }
  EXPECT_EQ(expected, 1'000);
}

TEST(CBroadcast, WhatWasMissedBeforeAMessageThatFoundNoRoomIsNotForgotten) {
  const Publisher publisher = publish(nullptr, FARCALL_OVERWRITE);
  const Subscriber slow = adopt(farcall_publisher_invite(publisher.get()));
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(send(publisher, std::to_string(i), 0), 0);
  for (int i = 0; i < 2; ++i) {
    std::uint64_t missed = 99;
    EXPECT_EQ(farcall_subscriber_receive(slow.get(), nullptr, 0, nullptr, &missed, 0), -EMSGSIZE);
    EXPECT_EQ(missed, 99U) << "it is told with the message";
  }
  const std::string got = receive(slow, 0);
  const std::size_t gap = got.find(" -");
  ASSERT_NE(gap, std::string::npos) << got;
  EXPECT_EQ(got.substr(0, gap), got.substr(gap + 2)) << "all before it";
}

TEST(CBroadcast, DropsSlowReadersWhereItIsToldTo) {
  const Publisher publisher = publish(nullptr, FARCALL_DROP_READER);
  const Subscriber slow = adopt(farcall_publisher_invite(publisher.get()));
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(send(publisher, "text", 0), 0);
  EXPECT_EQ(farcall_publisher_readers(publisher.get()), 0U);
  std::string last = "text";
  for (int i = 0; i < 1'000 && last == "text"; ++i) last = receive(slow, 0);
  EXPECT_EQ(last, "ECONNABORTED");
}

TEST(CBroadcast, LateReadersBeginWhereTheyLike) {
  const std::string name = unique_name();
  const Publisher publisher = publish(name.c_str(), FARCALL_OVERWRITE);
  EXPECT_EQ(send(publisher, "early"), 0);
  const Subscriber newest = subscribe(name, FARCALL_NEWEST);
  const Subscriber oldest = subscribe(name, FARCALL_OLDEST);
  EXPECT_EQ(send(publisher, "late"), 0);
  EXPECT_EQ(receive(newest), "late");
  EXPECT_EQ(receive(oldest), "early");
  EXPECT_EQ(receive(oldest), "late");
}

TEST(CBroadcast, KnowsItsSizes) {
  const Publisher publisher = publish(nullptr);
  const Subscriber reader = adopt(farcall_publisher_invite(publisher.get()));
  const std::size_t longest = farcall_publisher_longest(publisher.get());
  EXPECT_GT(longest, 500U);
  EXPECT_EQ(send(publisher, std::string(longest + 1, 'x')), -EMSGSIZE);
  EXPECT_EQ(send(publisher, std::string(longest, 'x')), 0);
  char text[10];
  std::size_t needed = 0;
  EXPECT_EQ(farcall_subscriber_receive(reader.get(), text, 10, &needed, nullptr, kLong), -EMSGSIZE);
  EXPECT_EQ(needed, longest);
  EXPECT_EQ(receive(reader), std::string(longest, 'x'));
}

TEST(CBroadcast, HasNoMoreReadersThanPermitted) {
  const std::string name = unique_name();
  const Publisher publisher = publish(name.c_str(), FARCALL_BLOCK, 4096, 2);
  Subscriber first = subscribe(name);
  const Subscriber second = subscribe(name);
  subscribe(name, FARCALL_NEWEST, -EUSERS);
  EXPECT_EQ(farcall_publisher_invite(publisher.get()), -EUSERS);
  first.reset();
  EXPECT_TRUE(eventually([&] { return farcall_publisher_readers(publisher.get()) == 1; }));
  const Subscriber third = subscribe(name);
  EXPECT_EQ(send(publisher, "text"), 0);
  EXPECT_EQ(receive(third), "text");
}

TEST(CBroadcast, NoticesThatItsPeersWereKilled) {
  const std::string name = unique_name();
  Child dies([&] {
    const Publisher publisher = publish(name.c_str());
    for (;;) ::pause();
  });
  const Subscriber orphan = subscribe(name);
  ::kill(dies.pid(), SIGKILL);
  EXPECT_EQ(receive(orphan), "ECONNRESET");

  const Publisher publisher = publish(nullptr, FARCALL_BLOCK);
  const int invitation = farcall_publisher_invite(publisher.get());
  const Shared<Event> reads;
  Child reader([&] {
    const Subscriber subscriber = adopt(invitation);
    reads->happens();
    for (;;) ::pause();
  });
  ::close(invitation);
  ASSERT_TRUE(reads->wait());
  while (send(publisher, "text", 0) == 0) {
  }
  ::kill(reader.pid(), SIGKILL);
  EXPECT_EQ(send(publisher, "text", kLong), 0) << "it holds nobody up";
}

TEST(CBroadcast, AForkedChildMayOnlyClose) {
  Publisher publisher = publish(nullptr);
  Subscriber subscriber = adopt(farcall_publisher_invite(publisher.get()));
  in_child([&] {
    EXPECT_EQ(send(publisher, "from the child"), -EBUSY);
    EXPECT_EQ(farcall_publisher_invite(publisher.get()), -EBUSY);
    EXPECT_EQ(farcall_publisher_readers(publisher.get()), 0U) << "none of the child's";
    EXPECT_EQ(receive(subscriber), "EBUSY");
    EXPECT_EQ(farcall_subscriber_poll_begin(subscriber.get()), -EBUSY);
    farcall_subscriber_poll_end(subscriber.get());
    publisher.reset();
    subscriber.reset();
  });
  EXPECT_EQ(farcall_publisher_readers(publisher.get()), 1U);
  EXPECT_EQ(send(publisher, "from the parent"), 0);
  EXPECT_EQ(receive(subscriber), "from the parent");
}

TEST(CBroadcast, CanBePolled) {
  Publisher publisher = publish(nullptr);
  const Subscriber reader = adopt(farcall_publisher_invite(publisher.get()));
  pollfd entry{
      .fd = farcall_subscriber_poll_descriptor(reader.get()), .events = POLLIN, .revents = 0};
  ASSERT_EQ(farcall_subscriber_poll_begin(reader.get()), 1);
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(send(publisher, "now"), 0);
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  farcall_subscriber_poll_end(reader.get());
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(farcall_subscriber_poll_begin(reader.get()), 0);
  EXPECT_EQ(receive(reader, 0), "now");
  ASSERT_EQ(farcall_subscriber_poll_begin(reader.get()), 1);
  publisher.reset();
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  farcall_subscriber_poll_end(reader.get());
  EXPECT_EQ(receive(reader), "EPIPE");
}

TEST(CBroadcast, ASignalEndsEachWait) {
  const Publisher publisher = publish(nullptr);
  const Subscriber reader = adopt(farcall_publisher_invite(publisher.get()));
  char text[10];
  EXPECT_EQ(interrupt([&] {
              return farcall_subscriber_receive(reader.get(), text, 10, nullptr, nullptr,
                                                FARCALL_FOREVER);
            }),
            -EINTR);
  while (send(publisher, "text", 0) == 0) {
  }
  EXPECT_EQ(interrupt([&] { return send(publisher, "text", FARCALL_FOREVER); }), -EINTR);
  farcall_subscriber* subscriber = nullptr;
  EXPECT_EQ(interrupt([&] {
              return farcall_subscriber_open(unique_name().c_str(), nullptr, FARCALL_FOREVER,
                                             &subscriber);
            }),
            -EINTR);
}

TEST(CBroadcast, RefusesWhatIsNoInvitation) {
  const int event = ::eventfd(0, EFD_CLOEXEC);
  adopt(event, -EPROTO);
  EXPECT_EQ(::fcntl(event, F_GETFD), FD_CLOEXEC) << "it is the caller's";
  ::close(event);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  ASSERT_EQ(::send(pair[1], "something else, and long enough", 31, 0), 31);
  adopt(pair[0], -EPROTO);
  EXPECT_EQ(::fcntl(pair[0], F_GETFD), FD_CLOEXEC);
  char rest[64];
  (void)!::recv(pair[0], rest, sizeof rest, MSG_DONTWAIT);
  adopt(pair[0], -EPROTO);  // which says nothing, and is not waited for for ever
  ::close(pair[0]);
  ::close(pair[1]);
  adopt(-1, -EBADF);
}

TEST(CBroadcast, RefusesWhatCannotBe) {
  farcall_publisher* publisher = nullptr;
  farcall_publisher_options options{};
  const auto create = [&] {
    options.size = sizeof options;
    const int result = farcall_publisher_create(nullptr, &options, &publisher);
    options = {};
    return result;
  };
  options.policy = 3;
  EXPECT_EQ(create(), -EINVAL);
  options.wait = -1;
  EXPECT_EQ(create(), -EINVAL);
  options.readers = 65;
  EXPECT_EQ(create(), -EINVAL);
  options.reserved = 1;
  EXPECT_EQ(create(), -EINVAL);
  options.capacity = SIZE_MAX;
  EXPECT_EQ(create(), -EINVAL);
  EXPECT_EQ(publisher, nullptr);
  options.readers = 64;  // as many as there may be
  EXPECT_EQ(create(), 0);
  farcall_publisher_close(std::exchange(publisher, nullptr));
  const std::string name = unique_name();
  const Publisher first = publish(name.c_str());
  EXPECT_EQ(farcall_publisher_create(name.c_str(), nullptr, &publisher), -EADDRINUSE);
  EXPECT_EQ(farcall_publisher_create("", nullptr, &publisher), -EINVAL);
  EXPECT_EQ(farcall_publisher_create(nullptr, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(farcall_publisher_send(nullptr, nullptr, 0, 0), -EINVAL);
  EXPECT_EQ(farcall_publisher_invite(nullptr), -EINVAL);
  EXPECT_EQ(farcall_publisher_longest(nullptr), 0U);
  EXPECT_EQ(farcall_publisher_readers(nullptr), 0U);
  farcall_publisher_close(nullptr);
  farcall_subscriber* subscriber = nullptr;
  const farcall_subscriber_options start{.size = sizeof start, .start = 2, .wait = 0, .most = 0};
  EXPECT_EQ(farcall_subscriber_open(name.c_str(), &start, 0, &subscriber), -EINVAL);
  const farcall_subscriber_options wait{.size = sizeof wait, .start = 0, .wait = 3, .most = 0};
  EXPECT_EQ(farcall_subscriber_open(name.c_str(), &wait, 0, &subscriber), -EINVAL);
  EXPECT_EQ(farcall_subscriber_open("nobody publishes this", nullptr, 0, &subscriber),
            -ECONNREFUSED);
  EXPECT_EQ(farcall_subscriber_open(nullptr, nullptr, 0, &subscriber), -EINVAL);
  EXPECT_EQ(farcall_subscriber_receive(nullptr, nullptr, 0, nullptr, nullptr, 0), -EINVAL);
  EXPECT_EQ(farcall_subscriber_poll_descriptor(nullptr), -EINVAL);
  EXPECT_EQ(farcall_subscriber_poll_begin(nullptr), -EINVAL);
  farcall_subscriber_poll_end(nullptr);
  farcall_subscriber_close(nullptr);
}

TEST(CBroadcast, ThousandsOfThemLeaveNothing) {
  const auto cycle = [] {
    const Publisher publisher = publish(nullptr);
    const Subscriber reader = adopt(farcall_publisher_invite(publisher.get()));
    ASSERT_EQ(send(publisher, "text"), 0);
    ASSERT_EQ(receive(reader), "text");
  };
  for (int i = 0; i < 20; ++i) cycle();
  // What is closed by the thread of the library is closed a little later.
  std::size_t open = 0;
  long mapped = 0;
  EXPECT_TRUE(eventually([&] {
    const bool same = open == open_descriptors() && mapped == mappings();
    open = open_descriptors();
    mapped = mappings();
    return same;
  }));
  for (int i = 0; i < 2'000 / kSlow; ++i) cycle();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= open; }));
  EXPECT_TRUE(eventually([&] { return mappings() <= mapped + 2; }));
}

}  // namespace
}  // namespace farcall::c::test
