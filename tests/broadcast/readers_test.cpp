// SPDX-License-Identifier: Apache-2.0
//
// How readers come and go.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>

#include "broadcast/pattern.hpp"
#include "broadcast/welcome.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/descriptors.hpp"
#include "harness/error_of.hpp"

namespace farcall {
namespace {

using test::error_of;
using test::eventually;
using test::open_descriptors;
using test::receive;
using test::Received;
using test::send;
using test::soon;
using test::unique_name;
using namespace std::chrono_literals;

TEST(BroadcastReaders, ComeByName) {
  const std::string name = unique_name();
  EXPECT_EQ(error_of([&] { Subscriber::open(name, {}, Deadline::now()); }), ECONNREFUSED);
  Publisher publisher(name, {});
  EXPECT_EQ(error_of([&] { Publisher(name, {}); }), EADDRINUSE);
  EXPECT_EQ(error_of([&] { Publisher("", {}); }), EINVAL);
  Subscriber one = Subscriber::open(name, {}, soon());
  Subscriber other = Subscriber::open(name, {}, soon());
  EXPECT_EQ(publisher.readers(), 2U);
  ASSERT_EQ(send(publisher, 0, 10), Outcome::ok);
  EXPECT_EQ(receive(one, 10).wrong, 0U);
  EXPECT_EQ(receive(other, 10).wrong, 0U);
}

TEST(BroadcastReaders, AreNoStrangers) {
  if (!test::is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = unique_name();
  Publisher publisher(name, {});
  const AbstractAddress address("farcall/0/" + name);
  test::in_child([&] {
    ASSERT_TRUE(test::become(test::kNobody));
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), address.get(), address.size()), 0);
    char end = 0;
    EXPECT_LE(::recv(socket.get(), &end, 1, 0), 0);
  });
  EXPECT_EQ(publisher.readers(), 0U);
}

// How many small messages there is room for, up to as many.
int fill(Publisher& publisher, int most = 1000) {
  const std::array<std::byte, 8> message{};
  int count = 0;
  while (count < most && publisher.write(message, Deadline::now()) == Outcome::ok) ++count;
  return count;
}

// From the moment on when they are let in, at whatever place that is.
TEST(BroadcastReaders, AreWaitedForBeforeTheyHaveTakenTheirInvitation) {
  Publisher publisher({.capacity = 4096});
  EXPECT_EQ(fill(publisher), 1000) << "nobody reads";
  UniqueFd invitation = publisher.invite();
  EXPECT_LT(fill(publisher), 1000);
  EXPECT_EQ(publisher.readers(), 1U);
  Subscriber late = Subscriber::adopt(std::move(invitation), {.start = Subscriber::Start::oldest});
  std::array<std::byte, 8> into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(late.read(into, size, missed, Deadline::now()), Outcome::ok);
}

TEST(BroadcastReaders, WhoBeginWithTheNewestHoldUpNobodyForWhatTheyDoNotRead) {
  for (const bool by_name : {false, true}) {
    const std::string name = unique_name();
    Publisher publisher(name, {.capacity = 4096});
    EXPECT_EQ(fill(publisher), 1000) << "nobody reads, and the ring is full";
    const Subscriber newest =
        by_name ? Subscriber::open(name, {}, soon()) : Subscriber::adopt(publisher.invite(), {});
    EXPECT_GT(fill(publisher), 4096 / static_cast<int>(kLine) / 2) << by_name;
  }
}

TEST(BroadcastReaders, ASignalThatWasCaughtSinceEndsTheWaitForThem) {
  Publisher publisher({.capacity = 4096});
  Subscriber slow = Subscriber::adopt(publisher.invite(), {});
  EXPECT_LT(fill(publisher), 1000);
  const SignalCount since = SignalCount::now();
  note_signal();
  std::array<std::byte, 8> message{};
  EXPECT_EQ(publisher.write(message, soon(), since), Outcome::interrupted);
}

TEST(BroadcastReaders, ASignalThatWasCaughtSinceEndsTheirWait) {
  Publisher publisher({});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  const SignalCount since = SignalCount::now();
  note_signal();
  std::array<std::byte, 8> into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(subscriber.read(into, size, missed, soon(), since), Outcome::interrupted);
}

// Also while the writer does nothing.
TEST(BroadcastReaders, LeaveNothingBehind) {
  const std::string name = unique_name();
  Publisher publisher(name, {.capacity = 4096});
  { Subscriber warm = Subscriber::open(name, {}, soon()); }
  ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 500; ++i) {
    Subscriber subscriber =
        i % 2 == 0 ? Subscriber::open(name, {}, soon()) : Subscriber::adopt(publisher.invite(), {});
    if (i % 3 == 0) {
      ASSERT_EQ(send(publisher, 0, 3), Outcome::ok);
      ASSERT_EQ(receive(subscriber, 3).wrong, 0U);
    }
  }
  ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
  EXPECT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << open_descriptors() << " after " << before;
}

// The writer lets go of them by itself.
TEST(BroadcastReaders, ThatAreDroppedLeaveNothingBehind) {
  Publisher publisher({.capacity = 4096, .slow = SlowReader::drop});
  { Subscriber warm = Subscriber::adopt(publisher.invite(), {}); }
  ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
  const std::size_t before = open_descriptors();
  {
    Subscriber slow = Subscriber::adopt(publisher.invite(), {});
    EXPECT_EQ(fill(publisher), 1000);
    EXPECT_EQ(publisher.readers(), 0U);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << open_descriptors() << " after " << before;
}

// A publisher in whose process that many descriptors are left. A visitor has been sent away.
class FullTable {
 public:
  static constexpr int kRoom = 256;

  explicit FullTable(std::size_t left) {
    { Subscriber warm = Subscriber::open(name, {}, soon()); }
    EXPECT_TRUE(eventually([&] { return publisher.readers() == 0; }));
    visitor_.emplace([&] {
      ASSERT_TRUE(full_->wait());
      const UniqueFd socket = connect_named(name, soon());
      EXPECT_FALSE(receive_fd_message(socket.get(), soon()));
      answered_->happens();
    });
    const rlimit few{.rlim_cur = kRoom, .rlim_max = kRoom};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int fd = 0; (fd = ::dup(0)) >= 0;) all_.emplace_back(fd);
    all_.resize(all_.size() - left);
    full_->happens();
    EXPECT_TRUE(answered_->wait());
  }
  void make_room() {
    all_.clear();
    EXPECT_EQ(visitor_->join(), 0);
  }

  const std::string name = unique_name();
  Publisher publisher{name, {}};

 private:
  const test::Shared<test::Event> full_;
  const test::Shared<test::Event> answered_;
  std::optional<test::Child> visitor_;
  std::vector<UniqueFd> all_;
};

// There is a descriptor for the visitor, and none for what it needs: nobody waits for another.
TEST(BroadcastReaders, AreSentAwayWhereThereIsOneDescriptorLeft) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  test::in_child([] {
    FullTable table(1);
    table.make_room();
    EXPECT_EQ(error_of([&] { Subscriber::open(table.name, {}, soon()); }), 0);
  });
}

// The writer keeps what it has of them until it writes again.
TEST(BroadcastReaders, ThatHaveGoneTakeNoProcessorTime) {
  Publisher publisher({.capacity = 4096});
  {
    Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
    ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
  }
  ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  const auto used = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
  };
  const auto before = used();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(used() - before, 50);
}

TEST(BroadcastReaders, AreSoManyAtMost) {
  const std::string name = unique_name();
  Publisher publisher(name, {.readers = 3});
  std::vector<Subscriber> some;
  some.reserve(3);
  for (int i = 0; i < 3; ++i) some.push_back(Subscriber::open(name, {}, soon()));
  EXPECT_EQ(error_of([&] { Subscriber::open(name, {}, soon()); }), EUSERS);
  EXPECT_EQ(error_of([&] { publisher.invite(); }), EUSERS);
  some.pop_back();
  EXPECT_TRUE(
      eventually([&] { return error_of([&] { Subscriber::open(name, {}, soon()); }) == 0; }));
  for (const unsigned wrong : {0U, 65U}) EXPECT_THROW(Publisher({.readers = wrong}), MisuseError);
}

// The publisher has not been told yet that the last one has gone.
TEST(BroadcastReaders, ThatHaveGoneDoNotCount) {
  Publisher publisher({.readers = 1});
  UniqueFd given = publisher.invite();
  for (int i = 0; i < 2000; ++i) {
    given.reset();
    ASSERT_EQ(error_of([&] { given = publisher.invite(); }), 0) << i;
  }
  EXPECT_EQ(error_of([&] { publisher.invite(); }), EUSERS);
}

// A publisher without a descriptor left sends visitors away, and does not turn in circles for them.
TEST(BroadcastReaders, AreSentAwayWhereThereIsNoDescriptorLeft) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  test::in_child([] {
    FullTable table(0);
    // What was given up to let the visitor in is there again for the next.
    EXPECT_TRUE(eventually([&] {
      for (int fd = 0; fd < FullTable::kRoom; ++fd)
        if (::fcntl(fd, F_GETFD) < 0) return false;
      return true;
    }));
    const auto used = [] {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      return usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000;
    };
    const auto before = used();
    std::this_thread::sleep_for(300ms);
    EXPECT_LT(used() - before, 100);
    table.make_room();
    Subscriber late = Subscriber::open(table.name, {}, soon());
    EXPECT_EQ(table.publisher.readers(), 1U);
  });
}

TEST(BroadcastReaders, ComeAndGoWhileOthersRead) {
  const std::string name = unique_name();
  constexpr std::uint64_t kMessages = 20'000;
  Publisher publisher(name, {.capacity = 1 << 14});
  Subscriber steady = Subscriber::adopt(publisher.invite(), {});
  std::atomic<bool> over{false};
  std::thread visitors([&] {
    for (unsigned i = 0; !over; ++i) {
      Subscriber visitor = Subscriber::open(
          name, {.start = i % 2 == 0 ? Subscriber::Start::oldest : Subscriber::Start::newest},
          soon());
      std::vector<std::byte> into(1 << 14);
      std::int64_t last = -1;
      for (unsigned k = 0; k < i % 50; ++k) {
        std::size_t size = 0;
        std::uint64_t missed = 0;
        if (visitor.read(into, size, missed, Deadline::after(std::chrono::milliseconds(50))) !=
            Outcome::ok)
          break;
        const std::int64_t number = test::Numbered::number_of(std::span(into).first(size));
        ASSERT_TRUE(last < 0 ? number >= 0 : number == last + 1) << number << " after " << last;
        last = number;
      }
    }
  });
  std::thread reader([&] {
    const test::Received all = receive(steady, kMessages);
    EXPECT_EQ(all.messages, kMessages);
    EXPECT_EQ(all.wrong, 0U);
  });
  EXPECT_EQ(send(publisher, 0, kMessages, publisher.longest()), Outcome::ok);
  reader.join();
  over = true;
  visitors.join();
}

// What is written over before a reader has begun was not written for it. Nor is it too slow to read
// what has come since, as long as that is there.
TEST(BroadcastReaders, AreNotDroppedBeforeTheyHaveBegun) {
  for (const auto start : {Subscriber::Start::newest, Subscriber::Start::oldest}) {
    Publisher publisher({.capacity = 1 << 16, .slow = SlowReader::drop});
    ASSERT_EQ(send(publisher, 0, 2000), Outcome::ok) << "it is full";
    UniqueFd invitation = publisher.invite();
    ASSERT_EQ(send(publisher, 2000, 2150), Outcome::ok) << "more than an eighth, and less than all";
    EXPECT_EQ(publisher.readers(), 1U);
    Subscriber subscriber = Subscriber::adopt(std::move(invitation), {.start = start});
    const Received all = receive(subscriber, 150, 2000);
    EXPECT_EQ(all.end, Outcome::ok);
    EXPECT_EQ(all.messages, 150U);
    EXPECT_EQ(all.wrong, 0U);
    ASSERT_EQ(send(publisher, 2150, 2300), Outcome::ok);
    EXPECT_EQ(receive(subscriber, 150, 2150).messages, 150U);
  }
}

// But for that it is waited for by nobody.
TEST(BroadcastReaders, AreDroppedWhereTheyDoNotBegin) {
  Publisher publisher({.capacity = 1 << 16, .slow = SlowReader::drop});
  UniqueFd invitation = publisher.invite();
  ASSERT_EQ(send(publisher, 0, 4000), Outcome::ok);
  EXPECT_EQ(publisher.readers(), 0U);
  Subscriber subscriber = Subscriber::adopt(std::move(invitation), {});
  EXPECT_EQ(receive(subscriber).end, Outcome::dropped);
}

TEST(BroadcastReaders, AreNoneOfWhatIsNoInvitation) {
  auto [mine, theirs] = socket_pair();
  FdMessage garbage;
  garbage.bytes.resize(48, std::byte{1});
  send_fd_message(mine.get(), garbage);
  UniqueFd given = std::move(theirs);
  EXPECT_EQ(error_of([&] { Subscriber::adopt(std::move(given), {}); }), EPROTO);
  EXPECT_TRUE(given) << "it stays the caller's";
  mine.reset();
  EXPECT_EQ(error_of([&] { Subscriber::adopt(std::move(given), {}); }), ECONNRESET);
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(error_of([&] { Subscriber::adopt(std::move(file), {}); }), EPROTO);
  EXPECT_EQ(error_of([&] { Subscriber::adopt(UniqueFd(), {}); }), EBADF);
  UniqueFd lonely(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(error_of([&] { Subscriber::adopt(std::move(lonely), {}); }), EPROTO);
}

// What comes of a welcome that is made by hand, and then changed.
template <class Change>
int error_of_welcome(Change change, std::size_t more = 0) {
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  broadcast::Welcome words;
  FdMessage message;
  message.descriptors.emplace_back(::dup(memory.fd()));
  message.descriptors.push_back(SharedMemory::create(page_size()).release());
  change(words, message.descriptors);
  message.bytes.resize(sizeof words + more);
  std::memcpy(message.bytes.data(), &words, sizeof words);
  auto [mine, theirs] = socket_pair();
  send_fd_message(mine.get(), message);
  UniqueFd given = std::move(theirs);
  return error_of([&] { Subscriber::adopt(std::move(given), {}); });
}

// Whoever is connected to may say anything: a place between two lines, too.
TEST(BroadcastReaders, AreNoneWhereTheWelcomeMakesNoSense) {
  using broadcast::Welcome;
  using Descriptors = std::vector<UniqueFd>;
  EXPECT_EQ(error_of_welcome([](Welcome&, Descriptors&) {}), 0);
  EXPECT_EQ(error_of_welcome([](Welcome& words, Descriptors&) { ++words.magic; }), EPROTO);
  EXPECT_EQ(error_of_welcome([](Welcome& words, Descriptors&) { words.error = EUSERS; }), EUSERS);
  EXPECT_EQ(error_of_welcome([](Welcome& words, Descriptors&) { words.error = ~0U; }),
            ECONNREFUSED);
  EXPECT_EQ(error_of_welcome([](Welcome& words, Descriptors&) { words.oldest.position = 8; }),
            EPROTO);
  EXPECT_EQ(error_of_welcome([](Welcome& words, Descriptors&) { words.newest.position = 8; }),
            EPROTO);
  EXPECT_EQ(error_of_welcome([](Welcome&, Descriptors&) {}, 8), EPROTO) << "it is longer";
  EXPECT_EQ(error_of_welcome([](Welcome&, Descriptors& all) { all.pop_back(); }), EPROTO);
  EXPECT_EQ(error_of_welcome([](Welcome&, Descriptors& all) { all.emplace_back(::dup(0)); }),
            EPROTO);
  EXPECT_EQ(error_of_welcome([](Welcome&, Descriptors& all) {
              all.back() = SharedMemory::create(2 * page_size()).release();
            }),
            EPROTO);
}

// A publisher that is stopped has connections made to it, and says nothing.
TEST(BroadcastReaders, DoNotWaitLongerForAnAnswerThanTheyWant) {
  constexpr int kVeryLongMs = 4000;  // for who does not wait at all
  for (const Deadline deadline : {Deadline::now(), Deadline(1), Deadline::after(1ms)}) {
    const std::string name = unique_name();
    const NamedListener publisher(name);
    int error = 0;
    std::thread reader([&] { error = error_of([&] { Subscriber::open(name, {}, deadline); }); });
    const UniqueFd asked = publisher.accept(soon());
    pollfd gone{.fd = asked.get(), .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(::poll(&gone, 1, kVeryLongMs), 1) << "it still waits";
    ::shutdown(asked.get(), SHUT_RDWR);
    reader.join();
    EXPECT_EQ(error, ETIMEDOUT);
  }
}

// The publisher closes or dies while they wait, in one of several ways; the next one lets them in.
TEST(BroadcastReaders, WaitForTheNextPublisher) {
  for (const bool says_so : {false, true}) {
    const std::string name = unique_name();
    std::optional<NamedListener> closes(name);
    int error = -1;
    std::thread reader([&] { error = error_of([&] { Subscriber::open(name, {}, soon()); }); });
    {
      const UniqueFd asked = closes->accept(soon());
      closes.reset();
      const broadcast::Welcome words{.error = ECONNREFUSED, .oldest = {}, .newest = {}};
      if (says_so) send_fd_message(asked.get(), std::as_bytes(std::span(&words, 1)), {});
    }
    const Publisher next(name, {});
    reader.join();
    EXPECT_EQ(error, 0);
  }
}

TEST(BroadcastReaders, AreRefusedWhereEveryPublisherHangsUp) {
  const std::string name = unique_name();
  std::optional<NamedListener> publisher(name);
  std::thread hangs_up([&] {
    try {
      for (;;) (void)publisher->accept(Deadline::after(3s));
    } catch (const SystemError&) {  // nobody comes any more
    }
  });
  EXPECT_EQ(error_of([&] { Subscriber::open(name, {}, Deadline::after(300ms)); }), ECONNREFUSED);
  hangs_up.join();
}

// Nobody answers there, and a handler has run before this begins to wait.
TEST(BroadcastReaders, ASignalThatWasCaughtSinceEndsTheWaitForAnAnswer) {
  const std::string name = unique_name();
  const NamedListener publisher(name);
  const SignalCount since = SignalCount::now();
  note_signal();
  EXPECT_EQ(error_of([&] { Subscriber::open(name, {}, soon(), since); }), EINTR);
}

// Programs that have closed their standard streams write to them all the same.
TEST(BroadcastReaders, HaveNothingInPlaceOfAStandardStream) {
  test::in_child([] {
    for (const int fd : {0, 1, 2}) ::close(fd);
    Publisher publisher(unique_name(), {});
    UniqueFd invitation = publisher.invite();
    EXPECT_GT(invitation.get(), 2);
    Subscriber subscriber = Subscriber::adopt(std::move(invitation), {});
    for (const int fd : {0, 1, 2}) EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << fd;
    ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
    EXPECT_EQ(receive(subscriber, 1).wrong, 0U);
  });
}

// They are its parent's, and so is what they read.
TEST(BroadcastReaders, AreNotEndedByAForkedChild) {
  Publisher publisher({});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  test::in_child([&] { const Publisher gone = std::move(publisher); });
  std::array<std::byte, 100> into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(subscriber.read(into, size, missed, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(publisher.readers(), 1U);
  ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
  EXPECT_EQ(receive(subscriber, 1).wrong, 0U);
}

// Who has gone before the publisher comes to it does not count.
TEST(BroadcastReaders, AreNoneThatHaveGoneBeforeTheyAreLetIn) {
  const std::string name = unique_name();
  const test::Shared<test::Event> listens;
  const test::Shared<test::Event> served;
  test::Child writer([&] {
    const Publisher publisher(name, {});
    listens->happens();
    ASSERT_TRUE(served->wait());
    EXPECT_EQ(publisher.readers(), 1U);
  });
  ASSERT_TRUE(listens->wait());
  ASSERT_TRUE(test::stop_process(writer.pid()));
  { const UniqueFd gone = connect_named(name, soon()); }
  ::kill(writer.pid(), SIGCONT);
  // They are let in one after the other.
  const Subscriber late = Subscriber::open(name, {}, soon());
  served->happens();
  EXPECT_EQ(writer.join(), 0);
}

}  // namespace
}  // namespace farcall
