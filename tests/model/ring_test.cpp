// SPDX-License-Identifier: Apache-2.0
//
// Rings, between a thread that writes and one that reads, with all that lies below them: parking
// and waking on futexes and descriptors.
#include "farcall/ring.hpp"

#include "model/mutation.hpp"

namespace farcall::model {
namespace {

constexpr std::size_t kMostCapacity = 2048;

// A ring and its two halves. Each side has a processor of its own, so that who finds nothing sleeps
// at once: looking several times is no more than looking.
struct RingScenario : Scenario {
  explicit RingScenario(std::size_t capacity, bool with_descriptors) {
    control.writer.processor = 1;
    control.reader.processor = 2;
    share(&control, sizeof control);
    share(data, capacity, true);
    hold(control.writer.processor.address());
    hold(control.reader.processor.address());
    view = {.control = &control, .data = data, .capacity = capacity};
    if (with_descriptors) {
      const int first = connect();
      here = Waiter(first, WaitMode::block);
      there = Waiter(first + 1, WaitMode::block);
    }
  }

  alignas(kFalseSharing) RingControl control{};
  alignas(kFalseSharing) std::byte data[2 * kMostCapacity]{};
  RingView view;
  Waiter here{-1, WaitMode::block};
  Waiter there{-1, WaitMode::block};
};

// What is sent: message `i` has the size sizes[i], and tells of itself in each byte.
struct Shape {
  std::size_t capacity;
  std::vector<std::size_t> sizes;
  std::size_t before = 0;  // so many have come and gone before the threads begin
  std::size_t ahead = 0;   // so many more have been written, but not read
  std::size_t unread = 0;  // so many are not read by the thread that reads
  bool with_descriptors = false;
  bool finishes = true;
};

struct Messages : RingScenario {
  explicit Messages(const Shape& wanted)
      : RingScenario(wanted.capacity, wanted.with_descriptors),
        shape(wanted),
        writer(view, here),
        reader(view, there) {
    for (std::size_t i = 0; i < shape.before; ++i) {
      send(i);
      receive(i);
    }
    for (std::size_t i = 0; i < shape.ahead; ++i) send(shape.before + i);
    threads.emplace_back([this] { write(); });
    threads.emplace_back([this] { read(); });
  }
  void send(std::size_t i) {
    std::array<std::byte, kMostCapacity> message;
    message.fill(static_cast<std::byte>(i + 1));
    const std::span<const std::byte> sent = std::span(message).first(shape.sizes[i]);
    require(writer.write(sent, Deadline::never()) == Outcome::ok, "could not write");
  }
  void receive(std::size_t i) {
    std::array<std::byte, kMostCapacity> into;
    std::size_t size = 0;
    require(reader.read(into, size, Deadline::never()) == Outcome::ok, "could not read");
    require(size == shape.sizes[i], "another size");
    for (std::size_t k = 0; k < size; ++k)
      require(into[k] == static_cast<std::byte>(i + 1), "other bytes");
  }
  void write() {
    for (std::size_t i = shape.before + shape.ahead; i < shape.sizes.size(); ++i) send(i);
    if (shape.finishes) writer.finish();
  }
  void read() {
    for (std::size_t i = shape.before; i + shape.unread < shape.sizes.size(); ++i) receive(i);
    if (!shape.finishes) return;
    std::array<std::byte, kMostCapacity> into;
    std::size_t size = 0;
    require(reader.read(into, size, Deadline::never()) == Outcome::finished, "no end");
  }

  const Shape shape;
  MessageWriter writer;
  MessageReader reader;
};

struct Bytes : RingScenario {
  explicit Bytes(const Shape& wanted)
      : RingScenario(wanted.capacity, wanted.with_descriptors),
        count(wanted.sizes[0]),
        finishes(wanted.finishes),
        writer(view, here),
        reader(view, there) {
    threads.emplace_back([this] { write(); });
    threads.emplace_back([this] { read(); });
  }
  // One by one: the second mapping of the data, which a longer run would need, is not there.
  void write() {
    for (std::size_t i = 0; i < count; ++i) {
      const auto byte = static_cast<std::byte>(i + 1);
      std::size_t written = 0;
      require(writer.write({&byte, 1}, written, Deadline::never()) == Outcome::ok, "not written");
    }
    if (finishes) writer.finish();
  }
  void read() {
    for (std::size_t i = 0; i < count + (finishes ? 1 : 0); ++i) {
      std::byte byte{};
      std::size_t size = 0;
      const Outcome outcome = reader.read_some({&byte, 1}, size, Deadline::never());
      if (i == count)
        require(outcome == Outcome::finished, "no end");
      else
        require(outcome == Outcome::ok && byte == static_cast<std::byte>(i + 1), "another byte");
    }
  }

  const std::size_t count;
  const bool finishes;
  ByteWriter writer;
  ByteReader reader;
};

// The reader goes away while the writer waits for room, or is about to.
template <class Whole>
struct ReaderLeaves : RingScenario {
  explicit ReaderLeaves(const Shape& wanted)
      : RingScenario(wanted.capacity, wanted.with_descriptors) {
    threads.emplace_back([this] {
      Outcome outcome = Outcome::ok;
      for (int i = 0; i < 4 && outcome == Outcome::ok; ++i) outcome = write_one();
      require(outcome == Outcome::peer_gone, "wrote more than there is room for");
    });
    threads.emplace_back([this] { whole.reader.finish(); });
  }
  Outcome write_one() {
    const std::byte byte{1};
    if constexpr (requires { whole.writer.write({&byte, 1}, Deadline::never()); }) {
      return whole.writer.write({&byte, 1}, Deadline::never());
    } else {
      std::size_t written = 0;
      return whole.writer.write({&byte, 1}, written, Deadline::never());
    }
  }
  struct Halves {
    typename Whole::first_type writer;
    typename Whole::second_type reader;
  } whole{{view, here}, {view, there}};
};

// A side says that it will do nothing more (Waiter::finish()), behind what it did last.
struct SaysThatItIsDone : RingScenario {
  explicit SaysThatItIsDone(const Shape& wanted) : RingScenario(wanted.capacity, false) {
    threads.emplace_back([this] {
      data[0] = std::byte{1};
      Waiter::finish(control.writer, control.reader);
    });
    threads.emplace_back([this] {
      const Outcome outcome =
          there.wait(control.reader, control.writer, Deadline::never(), [] { return false; });
      require(outcome == Outcome::peer_gone, "not told");
      require(data[0] == std::byte{1}, "not what was done last");
    });
  }
};

template <class Kind>
Check check(const char* name, Shape shape, Options options = {}) {
  return {
      .name = name, .make = [shape] { return std::make_unique<Kind>(shape); }, .options = options};
}

using MessageReaderLeaves = ReaderLeaves<std::pair<MessageWriter, MessageReader>>;
using ByteReaderLeaves = ReaderLeaves<std::pair<ByteWriter, ByteReader>>;

// The smallest that show each thing; a message more makes ten times as many states.
std::vector<Check> message_checks() {
  std::vector<Check> all = {
      check<Messages>("one message and the end", {.capacity = 512, .sizes = {8}}),
      check<Messages>("two messages", {.capacity = 512, .sizes = {1, 0}, .finishes = false}),
      check<Messages>("round the end of the ring, with room for one",
                      {.capacity = 256, .sizes = {8, 8, 8, 8, 8}, .before = 3, .finishes = false}),
      check<Messages>(
          "two lines, where headers were",
          {.capacity = 512, .sizes = {8, 8, 8, 8, 8, 8, 100, 8}, .before = 6, .finishes = false}),
      // The reader passes its position on after four messages, and the first of them stood where
      // the last one goes.
      check<Messages>("where others are being read",
                      {.capacity = 2048,
                       .sizes = {8, 8, 8, 8, 500, 500, 500, 8, 150, 8},
                       .ahead = 8,
                       .unread = 6,
                       .finishes = false}),
      check<Messages>("where another has just been read",
                      {.capacity = 2048,
                       .sizes = {500, 500, 500, 8, 8, 8, 8, 8, 500},
                       .ahead = 8,
                       .unread = 8,
                       .finishes = false}),
      check<Messages>("a message in pieces", {.capacity = 512, .sizes = {160}, .finishes = false}),
      check<Messages>("on descriptors", {.capacity = 256, .sizes = {8}, .with_descriptors = true},
                      {.timeouts = 1}),
      check<MessageReaderLeaves>("the reader leaves", {.capacity = 256, .sizes = {}}),
  };
  if (!soaking()) return all;
  const Options large{.most_states = 100'000'000};
  all.push_back(
      check<Messages>("three messages and the end", {.capacity = 512, .sizes = {1, 8, 0}}, large));
  all.push_back(check<Messages>("three messages, with room for one",
                                {.capacity = 256, .sizes = {8, 1, 8}}, large));
  return all;
}

std::vector<Check> byte_checks() {
  std::vector<Check> all = {
      check<Bytes>("more bytes than there is room for",
                   {.capacity = 2, .sizes = {3}, .finishes = false}),
      check<Bytes>("a byte and the end", {.capacity = 2, .sizes = {1}}),
      check<Bytes>("bytes on descriptors", {.capacity = 2, .sizes = {1}, .with_descriptors = true},
                   {.timeouts = 1}),
      check<ByteReaderLeaves>("the reader of bytes leaves", {.capacity = 2, .sizes = {}}),
      check<SaysThatItIsDone>("a side is done", {.capacity = 2, .sizes = {}}),
  };
  if (soaking())
    all.push_back(check<Bytes>("bytes, and the end", {.capacity = 2, .sizes = {3}},
                               {.most_states = 100'000'000}));
  return all;
}

TEST(ModelRing, MessagesComeWholeAndOnceAndWakeWhoSleeps) {
  for (const Check& one : message_checks()) expect_right(one);
}

TEST(ModelRing, BytesComeInOrderAndWakeWhoSleeps) {
  for (const Check& one : byte_checks()) expect_right(one);
}

// The fence behind whatever was published last does the same; but the end should not rest on that.
constexpr std::string_view kEndBecause = "behind the fence of the last wake()";

TEST(ModelRing, EveryOrderIsNeeded) {
  std::vector<Check> all = message_checks();
  std::ranges::move(byte_checks(), std::back_inserter(all));
  expect_every_order_matters(
      all,
      {"ring/ends.hpp", "ring/ends.cpp", "ring/byte_ring.hpp", "ring/byte_ring.cpp",
       "ring/message_ring.hpp", "ring/message_ring.cpp", "wait.hpp", "wait.cpp"},
      {{.function = "WritingEnd::finish", .weaker = "release to relaxed", .because = kEndBecause}});
}

}  // namespace
}  // namespace farcall::model
