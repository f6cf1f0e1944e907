// SPDX-License-Identifier: Apache-2.0
//
// A reader or a writer that scribbles over all that it can write, while the others go on: they
// never crash, read or write out of bounds (AddressSanitizer watches) or hang, and well-behaved
// readers get all there is. FARCALL_HOSTILE_SECONDS sets for how long.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <random>
#include <thread>

#include "broadcast/pattern.hpp"
#include "broadcast/welcome.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "harness/ancillary_message.hpp"
#include "harness/child.hpp"
#include "harness/killer.hpp"
#include "harness/lingering.hpp"

namespace farcall {
namespace {

using test::Child;
using test::receive;
using test::Received;
using test::send;
using test::soon;

std::int64_t duration_ns() {
  return test::setting("FARCALL_HOSTILE_SECONDS", 4) * std::int64_t{500'000'000};
}

// What its last close takes, in seconds, and who does not wait for that is done long before.
constexpr int kLingering = 20;
constexpr std::int64_t kLong = 10'000'000'000;

void leave_what_lingers(int lifeline) {
  const UniqueFd slow = test::lingering(kLingering);
  send_fd_message(lifeline, {}, std::array{slow.get()});
}

// What comes so is not read with the rest.
void leave_what_lingers_out_of_band(int lifeline) {
  const UniqueFd slow = test::lingering(kLingering);
  // Older kernels, and some that are built without it, know no such bytes there.
  (void)test::send_descriptor(lifeline, slow.get(), MSG_OOB | MSG_NOSIGNAL);
}

TEST(BroadcastHostile, WhatAReaderLeavesBehindHoldsUpNoWriter) {
  for (const auto leave : {leave_what_lingers, leave_what_lingers_out_of_band}) {
    Publisher publisher({.capacity = 1 << 13, .slow = SlowReader::overwrite});
    UniqueFd given = publisher.invite();
    ASSERT_EQ(send(publisher, 0, 1), Outcome::ok);
    leave(given.get());
    given.reset();
    ASSERT_TRUE(test::eventually([&] { return publisher.readers() == 0; }));
    const std::int64_t before = monotonic_ns();
    EXPECT_EQ(send(publisher, 1, 2), Outcome::ok);
    EXPECT_LT(monotonic_ns() - before, kLong);
  }
}

// The thread that lets readers in is the same for all publishers of a process.
TEST(BroadcastHostile, WhatAReaderLeavesBehindHoldsUpNoOtherPublisher) {
  const std::string name = test::unique_name();
  const Publisher other(name, {});
  Publisher publisher({});
  UniqueFd given = publisher.invite();
  leave_what_lingers(given.get());
  given.reset();
  ASSERT_TRUE(test::eventually([&] { return publisher.readers() == 0; }));
  const std::int64_t before = monotonic_ns();
  const Subscriber subscriber = Subscriber::open(name, {}, soon());
  EXPECT_LT(monotonic_ns() - before, kLong);
}

// Takes an invitation by hand, and returns the page that it shares with the writer.
Mapping take_page(int invitation) {
  auto message = receive_fd_message(invitation, soon());
  const SharedMemory page = SharedMemory::adopt(std::move(message->descriptors.at(1)));
  return page.map();
}

TEST(BroadcastHostile, AReaderHurtsItselfAlone) {
  const std::int64_t end = monotonic_ns() + duration_ns();
  std::uint64_t rounds = 0;
  for (unsigned seed = 1; rounds == 0 || monotonic_ns() < end; ++seed, ++rounds) {
    const SlowReader slow = seed % 2 == 0 ? SlowReader::drop : SlowReader::overwrite;
    Publisher publisher({.capacity = 1 << 13, .slow = slow});
    UniqueFd given = publisher.invite();
    UniqueFd honest = publisher.invite();
    Child scribbler([&] {
      honest.reset();
      const Mapping page = take_page(given.get());
      auto& control = *reinterpret_cast<RingControl*>(page.data());
      std::mt19937_64 random(seed);
      for (;;) {
        switch (random() % 6) {
          case 0: control.head.value = random(); break;
          case 1: control.head.value += random() % 5000; break;
          case 2: control.reader.parked = static_cast<std::uint32_t>(random() % 5); break;
          case 3: control.writer.parked = static_cast<std::uint32_t>(random() % 5); break;
          case 4: page.data()[random() % page.size()] = static_cast<std::byte>(random()); break;
          default: (void)!::send(given.get(), &seed, 1 + random() % 4, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
      }
    });
    given.reset();
    std::thread reader([&] {
      Subscriber subscriber = Subscriber::adopt(std::move(honest), {});
      const Received all = receive(subscriber);
      EXPECT_EQ(all.wrong, 0U);
      if (slow == SlowReader::overwrite || all.end != Outcome::dropped) {
        EXPECT_EQ(all.end, Outcome::finished);
        EXPECT_EQ(all.messages + all.missed, 3000U);
      }
    });
    EXPECT_EQ(send(publisher, 0, 3000), Outcome::ok);
    scribbler.kill();
    { const Publisher gone = std::move(publisher); }
    reader.join();
  }
  EXPECT_GT(rounds, 0U);
}

// Its readers' positions are checked, so one that claims to have read what was not written is none.
TEST(BroadcastHostile, AReaderThatLiesAboutItsPositionIsDropped) {
  Publisher publisher({.capacity = 4096});
  const UniqueFd given = publisher.invite();
  const Mapping page = take_page(given.get());
  reinterpret_cast<RingControl*>(page.data())->head.value = 1 << 20;
  EXPECT_EQ(send(publisher, 0, 200), Outcome::ok);
  EXPECT_EQ(publisher.readers(), 0U);
}

// One line.
Outcome write_some(Publisher& publisher) {
  const std::array<std::byte, 8> message{};
  return publisher.write(message, Deadline::now());
}

// Nor is one that claims to have read less than it has said before.
TEST(BroadcastHostile, AReaderThatGoesBackIsDropped) {
  Publisher publisher({.capacity = 4096});
  const UniqueFd given = publisher.invite();
  const Mapping page = take_page(given.get());
  auto& head = reinterpret_cast<RingControl*>(page.data())->head.value;
  const auto fill = [&] {
    while (write_some(publisher) == Outcome::ok) {
    }
  };
  fill();
  head = 10 * kLine;
  fill();
  EXPECT_EQ(publisher.readers(), 1U);
  head = 5 * kLine;
  EXPECT_EQ(write_some(publisher), Outcome::ok) << "nobody is waited for";
  EXPECT_EQ(publisher.readers(), 0U);
}

// Not every processor reads a header that lies across two lines.
TEST(BroadcastHostile, AFloorBetweenTwoLinesEndsTheReader) {
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  BroadcastControl& control = *memory.view().control;
  BroadcastReader reader(memory.view(), {});
  std::array<std::byte, 100> into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  ASSERT_EQ(reader.take(into, size, missed), Outcome::would_block);
  control.floors[1].position = kLine + 8;
  control.floors[1].number = 1;
  control.raised = 1;
  EXPECT_EQ(reader.take(into, size, missed), Outcome::broken);
  EXPECT_EQ(missed, 0U);
}

// Who looks several times before it is told of what it has missed is told of all of it.
TEST(BroadcastHostile, AFloorThatIsRaisedAgainAddsToWhatIsMissed) {
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  BroadcastControl& control = *memory.view().control;
  BroadcastReader reader(memory.view(), {});
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{3}}) {
    const std::uint64_t count = control.raised + 1;
    control.floors[count].position = number * kLine;
    control.floors[count].number = number;
    control.raised = count;
    EXPECT_EQ(reader.take({&into, 1}, size, missed), Outcome::would_block);
    EXPECT_EQ(missed, number);
  }
}

// The size of the file decides, and what is in it has to agree.
TEST(BroadcastHostile, MemoryThatSaysSomethingElseIsNone) {
  const BroadcastMemory sample = BroadcastMemory::create(page_size());
  const BroadcastControl& proper = *sample.view().control;
  const auto error_of_memory = [&](auto change) {
    BroadcastControl control{};
    control.kind = proper.kind;
    control.capacity = proper.capacity;
    control.magic = proper.magic;
    change(control);
    SharedMemory memory = SharedMemory::create(ring_bytes(page_size()));
    EXPECT_EQ(::pwrite(memory.fd(), &control, sizeof control, 0), ssize_t{sizeof control});
    try {
      (void)BroadcastMemory::attach(std::move(memory).release(), page_size());
    } catch (const SystemError& error) {
      return error.code().value();
    }
    return 0;
  };
  EXPECT_EQ(error_of_memory([](BroadcastControl&) {}), 0);
  EXPECT_EQ(error_of_memory([](BroadcastControl& it) { ++it.magic; }), EPROTO);
  EXPECT_EQ(error_of_memory([](BroadcastControl& it) { it.kind = RingKind::bytes; }), EPROTO);
  EXPECT_EQ(error_of_memory([](BroadcastControl& it) { it.capacity *= 2; }), EPROTO);
}

// Does by hand what a publisher does for a reader. Returns the page that the two share.
Mapping welcome(int invitation, const BroadcastMemory& memory, bool waits) {
  SharedMemory page = SharedMemory::create(page_size());
  Mapping shared = page.map();
  broadcast::Welcome words;
  words.waited_for = waits ? 1 : 0;
  FdMessage message;
  message.bytes.resize(sizeof words);
  std::memcpy(message.bytes.data(), &words, sizeof words);
  message.descriptors.emplace_back(::dup(memory.fd()));
  message.descriptors.push_back(std::move(page).release());
  send_fd_message(invitation, message);
  return shared;
}

// What it misses all the same it has missed as one that was dropped, or else the writer lies.
TEST(BroadcastHostile, AReaderThatIsWaitedForMissesNothing) {
  for (const bool says_so : {false, true}) {
    auto [mine, theirs] = socket_pair();
    const BroadcastMemory memory = BroadcastMemory::create(page_size());
    const Mapping shared = welcome(mine.get(), memory, true);
    Subscriber subscriber = Subscriber::adopt(std::move(theirs), {});
    BroadcastControl& control = *memory.view().control;
    control.floors[1].position = kLine;
    control.floors[1].number = 1;
    control.raised = 1;
    if (says_so) reinterpret_cast<RingControl*>(shared.data())->writer.state = broadcast::kDropped;
    const Outcome expected = says_so ? Outcome::dropped : Outcome::broken;
    std::byte into;
    std::size_t size = 0;
    std::uint64_t missed = 0;
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(subscriber.read({&into, 1}, size, missed, Deadline::now()), expected);
    EXPECT_EQ(missed, 0U);
  }
}

// `goes_on`: as if messages were written and given up, though there is none; else nothing moves.
void promise_news_for_ever(std::pair<UniqueFd, UniqueFd>& ends, bool goes_on) {
  ends.second.reset();
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  const Mapping shared = welcome(ends.first.get(), memory, false);
  BroadcastControl& control = *memory.view().control;
  for (std::uint64_t count = 1;; ++count) {
    BroadcastControl::Floor& floor = control.floors[count % BroadcastControl::kFloors];
    if (goes_on) {
      floor.position = count * kLine;
      floor.number = count;
    }
    control.raised = count;
  }
}

// A floor that does not go on as the messages do has no writer that is only quicker.
TEST(BroadcastHostile, AFloorThatGoesElsewhereEndsTheReader) {
  struct Step {
    std::uint64_t count, position, number;
  };
  // Behind the first of 4 messages of two lines, which it was raised by twice.
  constexpr Step kProper{2, 8 * kLine, 4};
  for (const Step& step : {Step{3, 8 * kLine, 4}, Step{3, 7 * kLine, 5}, Step{3, 12 * kLine, 3},
                           Step{4, 12 * kLine, 5}, Step{3, 9 * kLine, 6}, Step{1, 10 * kLine, 5},
                           Step{3, 10 * kLine, 5}}) {
    const bool right = step.position == 10 * kLine && step.count == 3;
    const BroadcastMemory memory = BroadcastMemory::create(page_size());
    BroadcastControl& control = *memory.view().control;
    BroadcastReader reader(memory.view(), {});
    std::byte into;
    std::size_t size = 0;
    std::uint64_t missed = 0;
    const auto take = [&](const Step& next) {
      control.floors[next.count].position = next.position;
      control.floors[next.count].number = next.number;
      control.raised = next.count;
      return reader.take({&into, 1}, size, missed);
    };
    ASSERT_EQ(take(kProper), Outcome::would_block);
    EXPECT_EQ(take(step), right ? Outcome::would_block : Outcome::broken)
        << step.count << ", " << step.position << ", " << step.number;
    EXPECT_EQ(missed, right ? 5U : 4U);
  }
}

// It may be honest, and is not waited for in circles either.
TEST(BroadcastHostile, AWriterThatIsAlwaysQuickerIsNotBroken) {
  std::pair<UniqueFd, UniqueFd> ends = socket_pair();
  Child writer([&] { promise_news_for_ever(ends, true); });
  ends.first.reset();
  Subscriber subscriber = Subscriber::adopt(std::move(ends.second), {});
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(
      subscriber.read({&into, 1}, size, missed, Deadline::after(std::chrono::milliseconds(500))),
      Outcome::timed_out);
  EXPECT_EQ(subscriber.read({&into, 1}, size, missed, Deadline::now()), Outcome::would_block);
  writer.kill();
  EXPECT_EQ(subscriber.read({&into, 1}, size, missed, soon()), Outcome::peer_gone);
}

TEST(BroadcastHostile, ASignalEndsAReadThatIsPromisedNewsForEver) {
  std::pair<UniqueFd, UniqueFd> ends = socket_pair();
  Child writer([&] { promise_news_for_ever(ends, true); });
  ends.first.reset();
  Subscriber subscriber = Subscriber::adopt(std::move(ends.second), {});
  const SignalCount since = SignalCount::now();
  note_signal();
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  for (int i = 0; i < 100'000; ++i)
    ASSERT_EQ(subscriber.read({&into, 1}, size, missed, Deadline::never(), since),
              Outcome::interrupted);
}

// A reader that is told of news at once does not come to look at its deadline.
TEST(BroadcastHostile, AWriterThatPromisesNewsForEverIsBroken) {
  std::pair<UniqueFd, UniqueFd> ends = socket_pair();
  Child writer([&] { promise_news_for_ever(ends, false); });
  ends.first.reset();
  Subscriber subscriber = Subscriber::adopt(std::move(ends.second), {});
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  Outcome outcome = Outcome::ok;
  const std::int64_t end = monotonic_ns() + 60'000'000'000;
  while (outcome != Outcome::broken && monotonic_ns() < end)
    outcome =
        subscriber.read({&into, 1}, size, missed, Deadline::after(std::chrono::milliseconds(5)));
  EXPECT_EQ(outcome, Outcome::broken);
}

TEST(BroadcastHostile, AReaderThatIsDroppedWithNothingToReadIsToldSo) {
  auto [mine, theirs] = socket_pair();
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  const Mapping shared = welcome(mine.get(), memory, true);
  Subscriber subscriber = Subscriber::adopt(std::move(theirs), {});
  reinterpret_cast<RingControl*>(shared.data())->writer.state = broadcast::kDropped;
  ::shutdown(mine.get(), SHUT_WR);
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  EXPECT_EQ(subscriber.read({&into, 1}, size, missed, soon()), Outcome::dropped);
}

TEST(BroadcastHostile, WhatAWriterSendsBesideTheMessagesHoldsUpNoReader) {
  auto [mine, theirs] = socket_pair();
  const BroadcastMemory memory = BroadcastMemory::create(page_size());
  const Mapping shared = welcome(mine.get(), memory, false);
  std::optional<Subscriber> subscriber = Subscriber::adopt(std::move(theirs), {});
  leave_what_lingers(mine.get());
  std::byte into;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  const std::int64_t before = monotonic_ns();
  EXPECT_EQ(
      subscriber->read({&into, 1}, size, missed, Deadline::after(std::chrono::milliseconds(50))),
      Outcome::timed_out);
  leave_what_lingers(mine.get());
  subscriber.reset();
  EXPECT_LT(monotonic_ns() - before, kLong);
}

UniqueFd file_with_a_hole(std::size_t capacity) {
  const BroadcastMemory sample = BroadcastMemory::create(page_size());
  BroadcastControl control{};
  control.kind = RingKind::broadcast;
  control.capacity = capacity;
  control.magic = sample.view().control->magic;
  UniqueFd file(::memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(ring_bytes(capacity))), 0);
  EXPECT_EQ(::pwrite(file.get(), &control, sizeof control, 0), ssize_t{sizeof control});
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return file;
}

TEST(BroadcastHostile, AWriterHasNoMoreMemoryThanItsReaderPermits) {
  constexpr std::size_t kCapacity = std::size_t{64} << 20;
  const BroadcastMemory memory = BroadcastMemory::attach(file_with_a_hole(kCapacity), kCapacity);
  for (const std::size_t most : {kCapacity / 2, kCapacity}) {
    auto [mine, theirs] = socket_pair();
    const Mapping shared = welcome(mine.get(), memory, false);
    int error = 0;
    try {
      Subscriber::adopt(std::move(theirs), {.most = most});
    } catch (const SystemError& what) {
      error = what.code().value();
    }
    EXPECT_EQ(error, most < kCapacity ? EPROTO : 0);
  }
  EXPECT_EQ(Subscriber::Options{}.most, std::size_t{1} << 30);
}

// Its file has a hole, which would take any time to fill.
TEST(BroadcastHostile, AWriterWhoseMemoryIsLargeCostsWhatIsRead) {
  constexpr std::size_t kCapacity = std::size_t{64} << 20;
  UniqueFd file = file_with_a_hole(kCapacity);
  const UniqueFd same = file.duplicate();
  const BroadcastMemory memory = BroadcastMemory::attach(std::move(file), kCapacity);
  EXPECT_EQ(memory.view().capacity, kCapacity);
  struct stat status {};
  ASSERT_EQ(::fstat(same.get(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, off_t{1} << 20);
}

TEST(BroadcastHostile, ReadersSurviveAWriterThatScribbles) {
  constexpr std::size_t kCapacity = 1 << 13;
  const std::int64_t end = monotonic_ns() + duration_ns();
  std::uint64_t reads = 0;
  std::uint64_t broken = 0;
  // Longer where a busy machine has let little happen.
  const std::int64_t limit = end + 60'000'000'000;
  const auto goes_on = [&] {
    const std::int64_t now = monotonic_ns();
    return now < end || (now < limit && (reads <= 10 || broken == 0));
  };
  for (unsigned seed = 1; goes_on(); ++seed) {
    std::pair<UniqueFd, UniqueFd> ends = socket_pair();
    Child writer([&] {
      ends.second.reset();
      const BroadcastMemory memory = BroadcastMemory::create(kCapacity);
      const Mapping shared = welcome(ends.first.get(), memory, seed % 2 != 0);
      const BroadcastView view = memory.view();
      auto& control = *view.control;
      std::mt19937_64 random(seed);
      for (std::uint64_t number = 0;; ++number) {
        const std::size_t at = random() % kCapacity & ~63UL;
        auto header = message_ring::header(view.data + at);
        switch (random() % 8) {
          case 0: header = random(); break;
          case 1: header = number % 64 << 33 | std::uint64_t{1} << 32 | random() % 10'000; break;
          case 2: control.raised = random(); break;
          case 3: control.raised += random() % 3; break;
          case 4: control.floors[random() % 8].position = random() & ~63UL; break;
          case 5: control.floors[random() % 8].number = random() % (number + 1); break;
          case 6: shared.data()[random() % 640] = static_cast<std::byte>(random()); break;
          default: view.data[random() % kCapacity] = static_cast<std::byte>(random());
        }
      }
    });
    ends.first.reset();
    try {
      Subscriber subscriber = Subscriber::adopt(
          std::move(ends.second), {.wait = seed % 3 == 0 ? WaitMode::block : WaitMode::adaptive});
      // Exactly as large as what is read into it, so that an overrun shows.
      std::vector<std::byte> into(seed % 3000);
      const std::int64_t stop = monotonic_ns() + 50'000'000;
      while (monotonic_ns() < stop) {
        std::size_t size = 0;
        std::uint64_t missed = 0;
        const Outcome outcome =
            subscriber.read(into, size, missed, Deadline::after(std::chrono::milliseconds(2)));
        ++reads;
        if (outcome == Outcome::broken) ++broken;
        if (outcome == Outcome::broken || outcome == Outcome::finished ||
            outcome == Outcome::dropped || outcome == Outcome::peer_gone)
          break;
      }
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), EPROTO);
    }
  }
  EXPECT_GT(reads, 10U);
  EXPECT_GT(broken, 0U);
}

}  // namespace
}  // namespace farcall
