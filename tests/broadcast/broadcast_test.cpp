// SPDX-License-Identifier: Apache-2.0
//
// Messages from one writer to several readers: what they get, in which order, and when not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <thread>

#include "broadcast/pattern.hpp"
#include "farcall/error.hpp"
#include "farcall/ring/broadcast_ring.hpp"

namespace farcall {
namespace {

using test::Numbered;
using test::receive;
using test::Received;
using test::send;
using test::soon;
using test::unique_name;
using Start = Subscriber::Start;

class BroadcastModes : public testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(All, BroadcastModes,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(BroadcastModes, EachReaderGetsAllInOrderWhereTheWriterWaits) {
  constexpr std::uint64_t kMessages = 5000;
  Publisher publisher({.capacity = 1 << 14, .wait = GetParam()});
  std::vector<Received> received(3);
  std::vector<std::thread> readers;
  readers.reserve(received.size());
  for (Received& mine : received)
    readers.emplace_back([&mine, end = publisher.invite()]() mutable {
      Subscriber subscriber = Subscriber::adopt(std::move(end), {.wait = GetParam()});
      mine = receive(subscriber);
    });
  ASSERT_EQ(send(publisher, 0, kMessages, publisher.longest()), Outcome::ok);
  { const Publisher gone = std::move(publisher); }
  for (std::thread& reader : readers) reader.join();
  for (const Received& mine : received) {
    EXPECT_EQ(mine.messages, kMessages);
    EXPECT_EQ(mine.wrong, 0U);
    EXPECT_EQ(mine.end, Outcome::finished);
  }
}

TEST_P(BroadcastModes, WhoIsOvertakenLearnsHowManyItHasMissed) {
  constexpr std::uint64_t kMessages = 30'000;
  Publisher publisher({.capacity = 1 << 13, .slow = SlowReader::overwrite});
  std::vector<Received> received(2);
  std::vector<std::thread> readers;
  readers.reserve(received.size());
  for (Received& mine : received)
    readers.emplace_back([&mine, end = publisher.invite()]() mutable {
      Subscriber subscriber =
          Subscriber::adopt(std::move(end), {.start = Start::oldest, .wait = GetParam()});
      mine = receive(subscriber);
    });
  ASSERT_EQ(send(publisher, 0, kMessages, publisher.longest()), Outcome::ok);
  { const Publisher gone = std::move(publisher); }
  for (std::thread& reader : readers) reader.join();
  for (const Received& mine : received) {
    EXPECT_EQ(mine.messages + mine.missed, kMessages);
    EXPECT_EQ(mine.wrong, 0U);
    EXPECT_EQ(mine.end, Outcome::finished);
  }
}

TEST(Broadcast, AnOvertakenReaderGoesOnWithTheOldestThatIsThere) {
  Publisher publisher({.capacity = 4096, .slow = SlowReader::overwrite});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  ASSERT_EQ(send(publisher, 0, 10'000, 50), Outcome::ok);  // a line or so each
  const Received rest = receive(subscriber, 16);
  EXPECT_EQ(rest.wrong, 0U);
  EXPECT_GT(rest.missed, 10'000U - 4096 / 64);
  EXPECT_LT(rest.missed, 10'000U - 16);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// Memory of which each attempt to write it whole is noticed at its beginning.
class Noticed {
 public:
  static constexpr std::size_t kSize = 4 * 4096;

  explicit Noticed(std::function<void()> begun) : begun_(std::move(begun)) {
    void* const memory = ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw SystemError(errno, "mmap");
    memory_ = static_cast<std::byte*>(memory);
    permit(1, 2);
    only = this;
    struct sigaction handler {};
    handler.sa_flags = SA_SIGINFO;
    handler.sa_sigaction = [](int, siginfo_t* info, void*) { only->fault(info->si_addr); };
    ::sigaction(SIGSEGV, &handler, &before_);
  }
  ~Noticed() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(memory_, kSize);
  }
  Noticed(const Noticed&) = delete;
  Noticed& operator=(const Noticed&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_, kSize}; }
  void permit_all() { permit(0, 4); }

 private:
  void permit(std::size_t page, std::size_t count, int how = PROT_READ | PROT_WRITE) {
    ::mprotect(memory_ + page * 4096, count * 4096, how);
  }
  // Of the first page and the last, one is open: who is at the last begins anew afterwards.
  void fault(const void* at) {
    const auto page = static_cast<std::size_t>(static_cast<const std::byte*>(at) - memory_) / 4096;
    if (page != 0 && page != 3) std::abort();
    permit(page, 1);
    permit(3 - page, 1, PROT_NONE);
    if (page == 0) begun_();
  }

  static inline Noticed* only = nullptr;
  std::function<void()> begun_;
  std::byte* memory_ = nullptr;
  struct sigaction before_ {};
};

// Each time that it copies the oldest message the writer needs its place.
TEST(Broadcast, WhoIsAlwaysTooSlowForTheOldestMessageGetsALaterOne) {
  Publisher publisher({.capacity = 1 << 16, .slow = SlowReader::overwrite});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  std::vector<std::byte> message(3 * 4096 + 2000);  // four of them fit
  std::uint64_t written = 0;
  const auto write = [&] {
    std::memcpy(message.data(), &written, sizeof written);
    ++written;
    EXPECT_EQ(publisher.write(message, Deadline::now()), Outcome::ok);
  };
  for (int i = 0; i < 20; ++i) write();
  std::uint64_t expected = 0;
  for (int i = 0; i < 3; ++i) {
    Noticed into([&] {  // room is made for two at a time
      write();
      write();
    });
    std::size_t size = 0;
    std::uint64_t missed = 0;
    ASSERT_EQ(subscriber.read(into.bytes(), size, missed, Deadline::now()), Outcome::ok);
    into.permit_all();
    std::uint64_t number = 0;
    std::memcpy(&number, into.bytes().data(), sizeof number);
    EXPECT_EQ(number, expected + missed);
    expected = number + 1;
    for (int k = 0; k < 20; ++k) write();
  }
}

// Whatever it copies, the writer goes round the ring meanwhile; in the end it does not.
TEST(Broadcast, WhoIsTooSlowForALongTimeGoesOnAfterwards) {
  Publisher publisher({.capacity = 1 << 16, .slow = SlowReader::overwrite});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  std::vector<std::byte> message(3 * 4096 + 2000);
  std::uint64_t written = 0;
  const auto write = [&] {
    std::memcpy(message.data(), &written, sizeof written);
    EXPECT_EQ(publisher.write(message, Deadline::now()), Outcome::ok);
    ++written;
  };
  write();
  std::size_t size = 0;
  std::uint64_t missed = 0;
  int copies = 0;
  Noticed into([&] {
    for (int i = 0; i < 5 && copies < 30'000; ++i) write();
    ++copies;
  });
  EXPECT_EQ(subscriber.read(into.bytes(), size, missed, soon()), Outcome::ok);
  into.permit_all();
  EXPECT_GT(copies, 30'000);
  std::uint64_t number = 0;
  std::memcpy(&number, into.bytes().data(), sizeof number);
  EXPECT_EQ(number, missed);
}
#endif

TEST(Broadcast, AReaderThatIsTooSlowIsDroppedAndTheOthersAreNot) {
  Publisher publisher({.capacity = 4096, .slow = SlowReader::drop});
  Subscriber slow = Subscriber::adopt(publisher.invite(), {});
  Subscriber quick = Subscriber::adopt(publisher.invite(), {});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(send(publisher, i, i + 1, 50), Outcome::ok);
    const Received one = receive(quick, 1, i);
    ASSERT_EQ(one.messages, 1U);
    ASSERT_EQ(one.wrong, 0U);
  }
  EXPECT_EQ(publisher.readers(), 1U);
  const Received rest = receive(slow);
  EXPECT_EQ(rest.end, Outcome::dropped);
  EXPECT_EQ(rest.wrong, 0U);
  EXPECT_EQ(rest.missed, 0U);
}

TEST(Broadcast, AReaderThatWasDroppedReceivesNothingMore) {
  Publisher publisher({.capacity = 4096, .slow = SlowReader::drop});
  Subscriber slow = Subscriber::adopt(publisher.invite(), {});
  ASSERT_EQ(send(publisher, 0, 1000, 50), Outcome::ok);
  for (int i = 0; i < 3; ++i) {
    const Received rest = receive(slow);
    EXPECT_EQ(rest.end, Outcome::dropped);
    EXPECT_EQ(rest.messages, 0U);
    EXPECT_EQ(slow.prepare_poll(), Outcome::ok);
  }
}

TEST(Broadcast, WhoComesLaterBeginsWithTheNewestOrTheOldest) {
  for (const SlowReader slow : {SlowReader::block, SlowReader::overwrite, SlowReader::drop}) {
    Publisher publisher({.capacity = 4096, .slow = slow});
    ASSERT_EQ(send(publisher, 0, 1000, 50), Outcome::ok);
    Subscriber newest = Subscriber::adopt(publisher.invite(), {.start = Start::newest});
    Subscriber oldest = Subscriber::adopt(publisher.invite(), {.start = Start::oldest});
    ASSERT_EQ(send(publisher, 1000, 1001, 8), Outcome::ok);
    EXPECT_EQ(receive(newest, 1, 1000).wrong, 0U);
    std::vector<std::byte> into(100);
    std::size_t size = 0;
    std::uint64_t missed = 0;
    ASSERT_EQ(oldest.read(into, size, missed, soon()), Outcome::ok);
    const std::int64_t first = Numbered::number_of(std::span(into).first(size));
    EXPECT_GT(first, 1000 - 64);
    EXPECT_LT(first, 1000 - 16);
    EXPECT_EQ(receive(oldest, static_cast<std::uint64_t>(1000 - first),
                      static_cast<std::uint64_t>(first) + 1)
                  .wrong,
              0U);
    EXPECT_EQ(oldest.read(into, size, missed, Deadline::now()), Outcome::would_block);
  }
}

TEST(Broadcast, AWriterThatWaitsEndsAtItsDeadlineAndHasWrittenNothing) {
  Publisher publisher({.capacity = 4096});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  Numbered numbered(50);
  std::uint64_t sent = 0;
  while (publisher.write(numbered.make(sent), Deadline::now()) == Outcome::ok) ++sent;
  EXPECT_GT(sent, 30U);
  EXPECT_LT(sent, 64U);
  EXPECT_EQ(publisher.write(numbered.make(sent), Deadline::now()), Outcome::would_block);
  EXPECT_EQ(publisher.write(numbered.make(sent), Deadline::after(std::chrono::milliseconds(5))),
            Outcome::timed_out);
  std::thread reader([&] {
    const Received all = receive(subscriber, 64);
    EXPECT_EQ(all.messages, 64U);
    EXPECT_EQ(all.wrong, 0U);
  });
  EXPECT_EQ(send(publisher, sent, 64, 50), Outcome::ok);
  reader.join();
}

TEST(Broadcast, NobodyIsWaitedForWhereNobodyReads) {
  Publisher publisher({.capacity = 4096});
  EXPECT_EQ(send(publisher, 0, 10'000), Outcome::ok);
  { Subscriber subscriber = Subscriber::adopt(publisher.invite(), {}); }
  EXPECT_EQ(send(publisher, 0, 10'000), Outcome::ok);
}

TEST(Broadcast, MessagesHaveALimitAndReadersTheirRoom) {
  Publisher publisher({.capacity = 1 << 14});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  std::vector<std::byte> message(publisher.longest() + 1, std::byte{7});
  EXPECT_EQ(publisher.write(message, soon()), Outcome::too_big);
  message.pop_back();
  EXPECT_EQ(publisher.write(message, soon()), Outcome::ok);
  EXPECT_EQ(publisher.write({}, soon()), Outcome::ok);
  std::vector<std::byte> into(message.size());
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(subscriber.read(std::span(into).first(10), size, missed, soon()), Outcome::too_big);
  EXPECT_EQ(size, message.size());
  EXPECT_EQ(subscriber.read(into, size, missed, soon()), Outcome::ok);
  EXPECT_EQ(into, message);
  EXPECT_EQ(subscriber.read(into, size, missed, soon()), Outcome::ok);
  EXPECT_EQ(size, 0U);
}

// A message whose bytes look like the header of the next one is no message.
TEST(Broadcast, OldBytesAreNeverTakenForAMessage) {
  Publisher publisher({.capacity = 4096, .slow = SlowReader::overwrite});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  std::vector<std::uint64_t> forged(100);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  std::uint64_t missed = 0;
  for (std::uint64_t number = 0; number < 1000; ++number) {
    for (std::uint64_t& word : forged) word = (number + 1) << 33 | std::uint64_t{1} << 32 | 8;
    ASSERT_EQ(
        publisher.write(std::as_bytes(std::span(forged)).first(8 * (1 + number % 100)), soon()),
        Outcome::ok);
    ASSERT_EQ(subscriber.read(into, size, missed, soon()), Outcome::ok);
    ASSERT_EQ(size, 8 * (1 + number % 100));
    ASSERT_EQ(subscriber.read(into, size, missed, Deadline::now()), Outcome::would_block);
  }
}

TEST(Broadcast, MoreMemoryThanThereIsIsRefused) {
  for (const std::size_t capacity : {std::size_t{1} << 40, (std::size_t{1} << 63) + 1, SIZE_MAX}) {
    try {
      const Publisher publisher({.capacity = capacity});
      ADD_FAILURE() << capacity;
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), ENOMEM);
    }
  }
}

TEST(Broadcast, CanBePolled) {
  Publisher publisher({.slow = SlowReader::overwrite});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  pollfd something{.fd = subscriber.poll_descriptor(), .events = POLLIN, .revents = 0};
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(subscriber.prepare_poll(), Outcome::would_block);
    EXPECT_EQ(::poll(&something, 1, 10), 0);
    ASSERT_EQ(send(publisher, i, i + 1), Outcome::ok);
    EXPECT_EQ(::poll(&something, 1, 10'000), 1);
    subscriber.finish_poll();
    EXPECT_EQ(receive(subscriber, 1, i).wrong, 0U);
  }
  ASSERT_EQ(subscriber.prepare_poll(), Outcome::would_block);
  { const Publisher gone = std::move(publisher); }
  EXPECT_EQ(::poll(&something, 1, 10'000), 1);
  subscriber.finish_poll();
  EXPECT_EQ(receive(subscriber).end, Outcome::finished);
}

TEST(Broadcast, ReadersCannotMapTheMessagesToWrite) {
  const BroadcastMemory memory = BroadcastMemory::create(4096);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0), MAP_FAILED);
  void* mine = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory.fd(), 0);
  ASSERT_NE(mine, MAP_FAILED);
  EXPECT_EQ(::mprotect(mine, 4096, PROT_READ | PROT_WRITE), -1);
  ::munmap(mine, 4096);
  const std::string path = "/proc/self/fd/" + std::to_string(memory.fd());
  const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::write(again.get(), "x", 1), -1);
}

TEST(Broadcast, APublisherThatIsAssignedOverIsClosed) {
  Publisher publisher({});
  Subscriber subscriber = Subscriber::adopt(publisher.invite(), {});
  publisher = Publisher(Publisher::Options{});
  EXPECT_EQ(receive(subscriber).end, Outcome::finished);
}

}  // namespace
}  // namespace farcall
