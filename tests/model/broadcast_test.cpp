// SPDX-License-Identifier: Apache-2.0
//
// A broadcast ring, between a thread that writes and those that read. The threads do what
// publisher.cpp and subscriber.cpp do, with the two halves and the waiters of the library. Messages
// lie in memory as atomic words, as ThreadSanitizer has them (broadcast_ring.cpp): who reads what
// is being written over reads something, which has to be thrown away.
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "broadcast/publishing.hpp"
#include "farcall/ring/broadcast_ring.hpp"
#include "farcall/ring/memory.hpp"
#include "farcall/wait.hpp"
#include "model/mutation.hpp"

namespace farcall::model {
namespace {

constexpr std::size_t kMostCapacity = 512;

// A message tells of its number in each word. Those of a ring are all as long.
constexpr std::size_t kShort = 2;  // words, which have room in one line
constexpr std::size_t kLong = 8;   // the last of these is in another line

struct Shape {
  std::size_t words = kShort;
  std::size_t capacity = 256;  // room for three short messages
  unsigned readers = 1;
  unsigned before = 0;   // so many messages have been written, all of which can be written over
  unsigned written = 1;  // so many more are by the thread that writes
  unsigned looks = 1;    // so often each reader looks for one, where none waits
  unsigned taken = 99;   // at most so many each reader takes, where it waits
  bool newest = false;   // readers begin there
};

struct Ring : Scenario {
  explicit Ring(const Shape& wanted) : shape(wanted), writer(view()) {
    share(&control, sizeof control);
    share(data, shape.capacity, true);
    for (unsigned i = 0; i < shape.before; ++i) overwrite();
  }
  BroadcastView view() noexcept {
    return {.control = &control, .data = data, .capacity = shape.capacity};
  }
  [[nodiscard]] BroadcastPlace start() const {
    return shape.newest ? writer.tail() : writer.floor();
  }
  [[nodiscard]] std::size_t bytes() const { return shape.words * sizeof(std::uint64_t); }
  void write() {
    std::array<std::uint64_t, kLong> words{};
    words.fill(writer.tail().number + 1);
    writer.write(std::as_bytes(std::span(words)).first(bytes()));
  }
  // As a publisher with SlowReader::overwrite.
  void overwrite() {
    if (!writer.has_room(bytes())) writer.raise_floor(bytes(), writer.tail().position);
    write();
  }

  const Shape shape;
  alignas(kFalseSharing) BroadcastControl control{};
  alignas(kFalseSharing) std::byte data[2 * kMostCapacity]{};
  BroadcastWriter writer;
};

// What a reader has got.
struct Taken {
  BroadcastReader reader;
  std::uint64_t expected;
  std::size_t bytes;

  Outcome take() {
    std::array<std::uint64_t, kLong> words{};
    std::size_t size = 0;
    std::uint64_t missed = 0;
    const Outcome outcome = reader.take(std::as_writable_bytes(std::span(words)), size, missed);
    expected += missed;
    if (outcome != Outcome::ok) return outcome;
    require(size == bytes, "another size");
    const auto message = std::span(words).first(bytes / sizeof(std::uint64_t));
    require(std::ranges::count(message, message[0]) == std::ssize(message), "a torn message");
    require(words[0] == expected + 1, "another message, or a wrong number of missed ones");
    ++expected;
    return outcome;
  }
};

// Readers that look now and then are overtaken.
struct Overtaken : Ring {
  explicit Overtaken(const Shape& wanted) : Ring(wanted) {
    threads.emplace_back([this] {
      for (unsigned i = 0; i < shape.written; ++i) overwrite();
    });
    for (unsigned i = 0; i < shape.readers; ++i)
      threads.emplace_back([this, from = start()] {
        Taken mine{
            .reader = BroadcastReader(view(), from), .expected = from.number, .bytes = bytes()};
        for (unsigned k = 0; k < shape.looks; ++k)
          require(mine.take() != Outcome::broken, "a reader finds it broken");
      });
  }
};

// A reader's page, and both sides' waiters. Each side has a processor of its own, so that who finds
// nothing sleeps at once.
struct Page {
  [[nodiscard]] RingControl& control() const noexcept { return words; }

  alignas(kFalseSharing) mutable RingControl words{};
  Waiter waiter{-1, WaitMode::block};  // the writer's
  Waiter there{-1, WaitMode::block};
};

struct Awaited : Ring {
  explicit Awaited(const Shape& wanted) : Ring(wanted) {
    for (unsigned i = 0; i < shape.readers; ++i) {
      RingControl& mine = pages[i].words;
      mine.writer.processor = 1;
      mine.reader.processor = 2 + i;
      share(&mine, sizeof mine);
      hold(mine.writer.processor.address());
      hold(mine.reader.processor.address());
      mine.head.value = start().position;
    }
    threads.emplace_back([this] {
      for (unsigned i = 0; i < shape.written; ++i) send();
    });
    for (unsigned i = 0; i < shape.readers; ++i)
      threads.emplace_back([this, i, from = start()] { read(pages[i], from); });
  }
  virtual void make_room() = 0;
  virtual void tell(Page&, const BroadcastReader&) {}

  [[nodiscard]] std::vector<Page*> readers() {
    std::vector<Page*> all;
    for (Page& page : std::span(pages).first(shape.readers)) all.push_back(&page);
    return all;
  }
  // As PublisherState::write().
  void send() {
    if (!writer.has_room(bytes())) make_room();
    write();
    broadcast::wake_readers([this] { return readers(); });
  }
  // As SubscriberState::read().
  void read(Page& page, BroadcastPlace from) {
    Taken mine{.reader = BroadcastReader(view(), from), .expected = from.number, .bytes = bytes()};
    const std::uint64_t all = shape.before + shape.written;
    for (unsigned taken = 0; mine.expected < all && taken < shape.taken;) {
      const Outcome outcome = mine.take();
      require(outcome != Outcome::broken, "a reader finds it broken");
      if (outcome == Outcome::ok) {
        ++taken;
        tell(page, mine.reader);
        continue;
      }
      const Outcome waited =
          page.there.wait(page.words.reader, page.words.writer, Deadline::never(),
                          [&] { return mine.reader.ready(); });
      require(waited == Outcome::ok, "could not wait");
    }
  }

  std::array<Page, 2> pages;
};

// SlowReader::overwrite.
struct Woken final : Awaited {
  using Awaited::Awaited;
  void make_room() override { writer.raise_floor(bytes(), writer.tail().position); }
};

// SlowReader::block.
struct WaitedFor final : Awaited {
  using Awaited::Awaited;
  // As PublisherState::slowest() and make_room().
  void make_room() override {
    const std::uint64_t needed = writer.lowest_floor(bytes());
    for (;;) {
      std::uint64_t limit = writer.tail().position;
      Page* slowest = nullptr;
      for (Page& page : std::span(pages).first(shape.readers)) {
        const std::uint64_t read = page.words.head.value.load(std::memory_order_acquire);
        if (read >= limit) continue;
        limit = read;
        slowest = &page;
      }
      if (limit >= needed) return writer.raise_floor(bytes(), limit);
      RingControl& mine = slowest->words;
      const Outcome outcome = slowest->waiter.wait(
          mine.writer, mine.reader, Deadline::never(),
          [&] { return mine.head.value.load(std::memory_order_acquire) >= needed; });
      require(outcome == Outcome::ok, "could not wait for a reader");
    }
  }
  void tell(Page& page, const BroadcastReader& reader) override {
    page.words.head.value.store(reader.next().position, std::memory_order_release);
    page.there.wake(page.words.reader, page.words.writer);
  }
};

// Who comes reads where the writer goes on, while it does.
struct Newest final : Scenario {
  explicit Newest(const Shape& shape) {
    share(&place, sizeof place);
    threads.emplace_back([this, shape] {
      for (std::uint64_t i = 1; i <= shape.written; ++i)
        place.set({.position = i * kLine, .number = i});
    });
    threads.emplace_back([this] {
      const BroadcastPlace found = place.get();
      require(found.position == found.number * kLine, "a place that never was");
    });
  }
  broadcast::NewestPlace place;
};

// A reader that comes is seen by who writes afterwards, or sees what has been written.
struct Comes final : Awaited {
  explicit Comes(const Shape& wanted) : Awaited(wanted) {
    share(&there_is, sizeof there_is);
    threads.clear();
    threads.emplace_back([this] {
      write();
      broadcast::wake_readers([this] {
        return there_is.load(std::memory_order_relaxed) != 0 ? readers() : std::vector<Page*>();
      });
    });
    threads.emplace_back([this, from = start()] {
      // As PublisherState::admit().
      there_is.fetch_add(1, std::memory_order_relaxed);
      full_fence();
      read(pages[0], from);
    });
  }
  void make_room() override {}
  std::atomic<int> there_is{0};
};

template <class Kind>
Check check(const char* name, Shape shape, Options options = {}) {
  return {
      .name = name, .make = [shape] { return std::make_unique<Kind>(shape); }, .options = options};
}

// The smallest that show each thing; a message more makes ten times as many states.
std::vector<Check> checks() {
  return {
      check<Overtaken>("a message is written", {.written = 1, .looks = 2}),
      check<Overtaken>("a message is written over while it is read",
                       {.before = 3, .written = 1, .looks = 1}),
      check<Overtaken>("two are written over", {.before = 3, .written = 2, .looks = 2}),
      check<Overtaken>("two readers are overtaken",
                       {.readers = 2, .before = 3, .written = 1, .looks = 1}),
      check<Overtaken>("a message of two lines is written",
                       {.words = kLong, .capacity = 512, .written = 1, .looks = 2}),
      check<Overtaken>("a message of two lines is written over while it is read",
                       {.words = kLong, .capacity = 512, .before = 3, .written = 2, .looks = 2}),
      check<Newest>("a place is read while it changes", {.written = 2}),
      check<Comes>("a reader comes while a message is written", {}),
      check<Woken>("readers are woken", {.readers = 2, .before = 0, .written = 1}),
      check<Woken>("a reader is woken, or overtaken", {.before = 3, .written = 2, .taken = 2}),
      check<Woken>("a reader of messages of two lines is woken, or overtaken",
                   {.words = kLong, .capacity = 512, .before = 2, .written = 2, .taken = 3}),
      check<WaitedFor>("a reader of messages of two lines is waited for",
                       {.words = kLong, .capacity = 512, .before = 2, .written = 2, .taken = 3}),
      check<WaitedFor>("a reader is waited for", {.before = 3, .written = 1, .taken = 1}),
      check<WaitedFor>("a reader is waited for twice", {.before = 3, .written = 2, .taken = 2}),
      check<WaitedFor>("two readers are waited for",
                       {.readers = 2, .before = 3, .written = 1, .taken = 1}),
  };
}

TEST(ModelBroadcast, MessagesComeWholeOrAreCountedAsMissedAndWakeWhoSleeps) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelBroadcast, EveryOrderIsNeeded) {
  expect_every_order_matters(
      checks(), {"ring/broadcast_ring.hpp", "ring/broadcast_ring.cpp", "broadcast/publishing.hpp"},
      {{.function = "BroadcastReader::read_floor",
        .weaker = "fence behind it: acquire to none",
        .because =
            "needed by who looks while the floor is raised as often as there are floors: that "
            "is more states than can be seen"}});
}

}  // namespace
}  // namespace farcall::model
