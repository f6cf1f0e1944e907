// SPDX-License-Identifier: Apache-2.0
//
// Publishers that wait for slow readers in an event loop.
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "c/broadcast.hpp"

namespace farcall::c::test {
namespace {

bool readable(const Publisher& publisher, int timeout_ms) {
  return test::readable(farcall_publisher_poll_descriptor(publisher.get()), timeout_ms);
}
int begin(const Publisher& publisher) { return farcall_publisher_poll_begin(publisher.get()); }
void end(const Publisher& publisher) { farcall_publisher_poll_end(publisher.get()); }

Subscriber reader_of(const Publisher& publisher) {
  return adopt(farcall_publisher_invite(publisher.get()));
}
// Until there is no room. How many have been sent.
int fill(const Publisher& publisher) {
  int sent = 0;
  while (send(publisher, std::to_string(sent), 0) == 0) ++sent;
  return sent;
}
// Sends one message as an event loop does, however long that takes.
void send_by_poll(const Publisher& publisher, std::string_view text) {
  while (send(publisher, text, 0) == -EAGAIN) {
    if (begin(publisher) == 1) {
      ASSERT_TRUE(readable(publisher, -1));
      end(publisher);
    }
  }
}

TEST(CBroadcastPoll, WakesThePublisherWhenTheSlowestHasRead) {
  const Publisher publisher = publish(nullptr);
  const Subscriber quick = reader_of(publisher);
  const Subscriber slow = reader_of(publisher);
  EXPECT_EQ(begin(publisher), 0) << "there is room";
  for (int round = 0; round < 3; ++round) {
    const int sent = fill(publisher);
    ASSERT_EQ(begin(publisher), 1);
    EXPECT_FALSE(readable(publisher, 0));
    for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(quick, 0), std::to_string(i));
    EXPECT_EQ(receive(quick, 0), "EAGAIN");
    end(publisher);
    ASSERT_EQ(begin(publisher), 1) << "the other one has read nothing";
    EXPECT_FALSE(readable(publisher, kGlance.count()));
    for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(slow, 0), std::to_string(i));
    EXPECT_EQ(receive(slow, 0), "EAGAIN");
    EXPECT_TRUE(readable(publisher, -1));
    end(publisher);
    EXPECT_FALSE(readable(publisher, 0));
    EXPECT_EQ(begin(publisher), 0);
    const std::string longest(farcall_publisher_longest(publisher.get()), 'x');
    EXPECT_EQ(send(publisher, longest, 0), 0) << "there is room for the longest";
    char text[4096];
    for (const Subscriber* reader : {&quick, &slow})
      ASSERT_EQ(farcall_subscriber_receive(reader->get(), text, sizeof text, nullptr, nullptr, 0),
                static_cast<std::int64_t>(longest.size()));
  }
}

TEST(CBroadcastPoll, WakesForEachReaderThatHeldItUp) {
  const Publisher publisher = publish(nullptr);
  const Subscriber one = reader_of(publisher);
  const Subscriber other = reader_of(publisher);
  const int sent = fill(publisher);
  int wakes = 0;
  for (const Subscriber* reader : {&one, &other}) {
    ASSERT_EQ(begin(publisher), 1);
    for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(*reader, 0), std::to_string(i));
    EXPECT_EQ(receive(*reader, 0), "EAGAIN");
    wakes += static_cast<int>(readable(publisher, 0));
    end(publisher);
  }
  EXPECT_GE(wakes, 1);
  EXPECT_EQ(begin(publisher), 0);
}

TEST(CBroadcastPoll, WaitsForRoomForWhatWasRefused) {
  const Publisher publisher = publish(nullptr);
  const Subscriber slow = reader_of(publisher);
  const int sent = fill(publisher);
  ASSERT_EQ(begin(publisher), 1);
  int received = 0;  // a reader that goes on reading says now and then how far it is
  while (!readable(publisher, 0)) ASSERT_EQ(receive(slow, 0), std::to_string(received++));
  EXPECT_LT(received, sent / 4);
  end(publisher);
  EXPECT_EQ(begin(publisher), 0) << "room for a short one";
  const std::string longest(farcall_publisher_longest(publisher.get()), 'x');
  ASSERT_EQ(send(publisher, longest, 0), -EAGAIN);
  EXPECT_EQ(begin(publisher), 1) << "but not for this one";
  end(publisher);
  ASSERT_EQ(send(publisher, "short", 0), 0);
  EXPECT_EQ(begin(publisher), 1) << "which was refused last";
  end(publisher);
}

TEST(CBroadcastPoll, IsAlwaysReadyWhereNobodyIsWaitedFor) {
  for (const int policy : {FARCALL_OVERWRITE, FARCALL_DROP_READER}) {
    const Publisher publisher = publish(nullptr, policy);
    const Subscriber slow = reader_of(publisher);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(send(publisher, "text", 0), 0);
    EXPECT_GE(farcall_publisher_poll_descriptor(publisher.get()), 0);
    EXPECT_EQ(begin(publisher), 0);
    EXPECT_FALSE(readable(publisher, 0));
    end(publisher);
    EXPECT_EQ(farcall_publisher_readers(publisher.get()), 1U) << "polling drops nobody";
    EXPECT_EQ(receive(slow, 0), "text");
  }
}

TEST(CBroadcastPoll, AReaderThatIsKilledHoldsNobodyUp) {
  const Publisher publisher = publish(nullptr);
  const Subscriber alive = reader_of(publisher);
  for (int round = 0; round < 20 / kSlow; ++round) {
    const int invitation = farcall_publisher_invite(publisher.get());
    const Shared<Event> reads;
    Child dies([&] {
      const Subscriber subscriber = adopt(invitation);
      reads->happens();
      for (;;) ::pause();
    });
    ::close(invitation);
    ASSERT_TRUE(reads->wait());
    const int sent = fill(publisher);
    for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(alive, 0), std::to_string(i));
    EXPECT_EQ(receive(alive, 0), "EAGAIN");
    ASSERT_EQ(begin(publisher), 1);
    EXPECT_FALSE(readable(publisher, 0));
    ::kill(dies.pid(), SIGKILL);
    EXPECT_TRUE(readable(publisher, -1));
    end(publisher);
    EXPECT_EQ(begin(publisher), 0);
    EXPECT_EQ(send(publisher, "0", 0), 0);
    EXPECT_EQ(receive(alive), "0");
    EXPECT_EQ(receive(alive, 0), "EAGAIN");  // which says how far it is
    dies.join();
  }
}

TEST(CBroadcastPoll, AReaderThatClosesWakesThePublisher) {
  const Publisher publisher = publish(nullptr);
  Subscriber slow = reader_of(publisher);
  fill(publisher);
  ASSERT_EQ(begin(publisher), 1);
  slow.reset();
  EXPECT_TRUE(readable(publisher, -1));
  // Also once the library's own thread has taken it off the list.
  EXPECT_TRUE(eventually([&] { return farcall_publisher_readers(publisher.get()) == 0; }));
  EXPECT_TRUE(readable(publisher, 0));
  end(publisher);
  EXPECT_EQ(begin(publisher), 0);
}

TEST(CBroadcastPoll, NothingIsLostInAnEpollOfEdges) {
  const Publisher publisher = publish(nullptr);
  constexpr int kReaders = 4;
  const int messages = 20'000 / kSlow;
  std::vector<int> invitations;
  for (int i = 0; i < kReaders; ++i)
    invitations.push_back(farcall_publisher_invite(publisher.get()));
  std::deque<Child> children;
  for (const int invitation : invitations)
    children.emplace_back([&, invitation] {
      const Subscriber subscriber = adopt(invitation);
      for (int k = 0; k < messages; ++k) {
        if (invitation == invitations[0] && k % 500 == 0)
          std::this_thread::sleep_for(1ms);  // a slow one
        ASSERT_EQ(receive(subscriber), std::to_string(k));
      }
    });
  for (const int invitation : invitations) ::close(invitation);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  ASSERT_EQ(
      ::epoll_ctl(set, EPOLL_CTL_ADD, farcall_publisher_poll_descriptor(publisher.get()), &event),
      0);
  for (int k = 0; k < messages; ++k)
    while (send(publisher, std::to_string(k), 0) == -EAGAIN) {
      if (begin(publisher) == 1) {
        ASSERT_EQ(::epoll_wait(set, &event, 1, -1), 1);
        end(publisher);
      }
    }
  for (Child& child : children) EXPECT_EQ(child.join(), 0);
  ::close(set);
}

TEST(CBroadcastPoll, ReadersThatComeAndAreKilledAllTheTimeDoNotStopIt) {
  const Publisher publisher = publish(nullptr);
  const Subscriber alive = reader_of(publisher);
  std::thread reads([&] {
    while (receive(alive) != "the end") {
    }
  });
  for (int round = 0; round < 100 / kSlow; ++round) {
    const int invitation = farcall_publisher_invite(publisher.get());
    ASSERT_GE(invitation, 0);
    Child dies([&] {
      const Subscriber subscriber = adopt(invitation);
      for (int i = 0; i < 20; ++i) receive(subscriber);
      ::raise(SIGKILL);
    });
    ::close(invitation);
    for (int i = 0; i < 200; ++i) send_by_poll(publisher, std::to_string(i));
    dies.join();
  }
  send_by_poll(publisher, "the end");
  reads.join();
}

TEST(CBroadcastPoll, OperationsInBetweenAndMisuse) {
  Publisher publisher = publish(nullptr);
  const Subscriber slow = reader_of(publisher);
  end(publisher);
  fill(publisher);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(begin(publisher), 1) << "again, without an end";
  in_child([&] {
    EXPECT_EQ(begin(publisher), -EBUSY);
    end(publisher);
    publisher.reset();
  });
  end(publisher);
  end(publisher);
  ASSERT_EQ(begin(publisher), 1);
  publisher.reset();  // while it is polled
  EXPECT_EQ(farcall_publisher_poll_descriptor(nullptr), -EINVAL);
  EXPECT_EQ(farcall_publisher_poll_begin(nullptr), -EINVAL);
  farcall_publisher_poll_end(nullptr);
}

}  // namespace
}  // namespace farcall::c::test
