// SPDX-License-Identifier: Apache-2.0
//
// One direction of an accelerated connection: a thread that sends and one that receives, of which
// each byte is to come once, in order, and without anybody asleep who is not told. The threads do
// what send.cpp and receive.cpp do, with the sender, the receiver and the moves of the library.
// What of its orders none of these needs is listed with the reason.
#include <numeric>
#include <string_view>
#include <vector>

#include "model/mutation.hpp"
#include "preload/stream.hpp"
#include "preload/transfer.hpp"

namespace farcall::model {
namespace {

using preload::Direction;
using preload::Receiver;
using preload::Ring;
using preload::Sender;
using preload::Span;

struct Shape {
  std::size_t size;                 // of the ring
  unsigned before = 0;              // so many bytes have come and gone through it
  unsigned ahead = 0;               // so many more lie there
  std::vector<unsigned> sent = {};  // so many are sent by the thread, each time
  unsigned settles = 0;             // so often it takes back what is not taken, in the end, as who
                                    // sleeps or ends
  unsigned at_once = 1;             // how much the receiver asks for
  bool looks_first = false;         // with MSG_PEEK
  bool watched = false;             // the receiver has slept last, and not looked since
  std::size_t kernel_room = 64;     // so many bytes the kernel takes
};

constexpr std::size_t kMostBytes = 8192;

struct Stream : Scenario {
  explicit Stream(const Shape& wanted) : shape(wanted), fd(connect(wanted.kernel_room)) {
    share(&direction, sizeof direction);
    share(bytes.data(), shape.size);
    forgive_copies();
    ring = {.control = &direction, .bytes = bytes.data(), .size = shape.size};
    preload::start_direction(direction);
    const bool begun = shape.before + shape.ahead != 0;
    if (begun || !shape.watched) receiver.unwatch(ring);
    if (shape.before != 0) come_and_go(shape.before);
    while (sent < shape.before + shape.ahead) send(1);
    if (begun && shape.watched) receiver.watch(ring);
    threads.emplace_back([this] { run_sender(); });
    threads.emplace_back([this] { run_receiver(); });
  }

  void run_sender() {
    for (const unsigned count : shape.sent)
      if (!send(count)) return;
    for (unsigned i = 0; i < shape.settles; ++i)
      require(preload::reclaim_now(sender, ring, fd, false, false) == 0, "failed");
  }
  // False: the receiver is leaving the ring.
  bool send(unsigned count) {
    std::array<std::byte, 4> bytes_sent;
    for (unsigned i = 0; i < count; ++i) bytes_sent[i] = value(sent + i);
    const iovec part{.iov_base = bytes_sent.data(), .iov_len = count};
    Span from(&part, 1);
    while (from.left() != 0) {
      const std::size_t before = from.left();
      switch (sender.way(ring)) {
        case Sender::Way::broken: require(false, "the sender finds it broken"); break;
        case Sender::Way::ring:
          if (sender.put(ring, from) == 0) leave_ring();
          break;
        case Sender::Way::crowded:  // never where there is no limit
        case Sender::Way::kernel: {
          if (!sender.enter_kernel(ring)) return false;
          const long taken_there = preload::kernel_send(fd, from, from.left(), MSG_NOSIGNAL);
          require(taken_there > 0, "the kernel takes nothing");
          sender.leave_kernel(ring, static_cast<std::size_t>(taken_there));
          from.skip(static_cast<std::size_t>(taken_there));
          break;
        }
      }
      sent += static_cast<unsigned>(before - from.left());
    }
    return true;
  }
  // As leave_ring_for_kernel() of send.cpp.
  void leave_ring() {
    require(preload::reclaim_now(sender, ring, fd, true, false) == 0, "could not take back");
    if (sender.in_kernel()) return;
    if (sender.unread(ring) != 0)
      pause();  // for the receiver
    else
      sender.use_kernel(ring);
  }

  void run_receiver() {
    while (taken < all()) {
      if (shape.looks_first) look();
      receive();
    }
  }
  // As with MSG_PEEK and MSG_DONTWAIT.
  void look() {
    std::byte byte{};
    const iovec part{.iov_base = &byte, .iov_len = 1};
    Span to(&part, 1);
    const long got = preload::receive_now(receiver, ring, fd + 1, to, true, nullptr);
    require(got == 1 || got == preload::kNothing, "the receiver finds it broken");
    settle_copies(&byte, &byte + 1);
    if (got == 1) require(byte == value(taken), "another byte is shown");
  }
  // As Receiving of receive.cpp, of a call that waits.
  void receive() {
    std::array<std::byte, 4> into;
    const iovec part{.iov_base = into.data(),
                     .iov_len = std::min<std::size_t>(shape.at_once, all() - taken)};
    Span to(&part, 1);
    for (;;) {
      const long got = preload::receive_now(receiver, ring, fd + 1, to, false, nullptr);
      require(got > 0 || got == preload::kNothing, "the receiver finds it broken");
      if (got > 0) return came(into.data(), static_cast<std::size_t>(got));
      if (!receiver.watched()) receiver.watch(ring);
      const Receiver::Next next = receiver.next(ring);
      require(next.kind != Receiver::Next::broken, "the receiver finds it broken");
      if (next.kind == Receiver::Next::ring) continue;
      const std::size_t limit = next.kind == Receiver::Next::kernel
                                    ? std::min<std::size_t>(next.bytes, to.left())
                                    : to.left();
      if (const std::size_t count = sleep(into.data(), limit); count != 0)
        return came(into.data(), count);
    }
  }
  std::size_t sleep(std::byte* into, std::size_t limit) {
    receiver.enter_kernel();
    pollfd entry{.fd = fd + 1, .events = POLLIN, .revents = 0};
    poll(&entry, 1, -1);
    const long got = syscall(SYS_recvfrom, fd + 1, into, limit, 0, nullptr, nullptr);
    receiver.leave_kernel(ring, static_cast<std::size_t>(std::max(got, 0L)));
    return static_cast<std::size_t>(std::max(got, 0L));
  }
  void came(const std::byte* from, std::size_t count) {
    settle_copies(from, from + count);
    for (std::size_t i = 0; i < count; ++i, ++taken)
      require(from[i] == value(taken), "another byte");
    if (receiver.watched()) receiver.unwatch(ring);
  }
  void come_and_go(unsigned count) {
    static std::array<std::byte, kMostBytes / 2> some;
    const iovec part{.iov_base = some.data(), .iov_len = count};
    Span from(&part, 1);
    require(sender.way(ring) == Sender::Way::ring && sender.put(ring, from) == count, "no room");
    Span to(&part, 1);
    require(preload::receive_now(receiver, ring, fd + 1, to, false, nullptr) == count, "not there");
    sent = taken = count;
  }

  [[nodiscard]] unsigned all() const {
    return std::accumulate(shape.sent.begin(), shape.sent.end(), shape.before + shape.ahead);
  }
  static std::byte value(unsigned i) { return static_cast<std::byte>(i % 200 + 1); }

  const Shape shape;
  const int fd;
  Direction direction{};
  alignas(64) std::array<std::byte, kMostBytes> bytes{};
  Ring ring;
  Sender sender;
  Receiver receiver;
  unsigned sent = 0;
  unsigned taken = 0;
};

// The receiver leaves the ring, and may have to give back what it has not read (handback.cpp): then
// nothing must come through the kernel that it does not know of.
struct Leaving : Stream {
  explicit Leaving(const Shape& wanted) : Stream(wanted) {
    threads.back() = [this] { leave(); };
  }
  // As leave_receiving() and Leaving::collect().
  void leave() {
    receiver.watch_for_ever(ring);
    direction.tail.fetch_or(preload::kLeft, std::memory_order_seq_cst);
    direction.handback.ask();
    for (;;) {
      const bool quiet = direction.kernel_sending.load(std::memory_order_seq_cst) == 0;
      const std::uint64_t counted = direction.kernel_sent.load(std::memory_order_acquire);
      std::byte byte{};
      const iovec part{.iov_base = &byte, .iov_len = 1};
      Span to(&part, 1);
      const long got = preload::receive_now(receiver, ring, fd + 1, to, false, nullptr);
      require(got > 0 || got == preload::kNothing, "the receiver finds it broken");
      settle_copies(&byte, &byte + 1);
      if (got > 0) {
        require(byte == value(taken++), "another byte");
        continue;
      }
      if (quiet && receiver.kernel_taken() >= counted && receiver.emptied(ring)) return;
      pause();
    }
  }
  void finish() override { require(taken == sent, "more has come than it knows of"); }
};

template <class Kind = Stream>
Check check(const char* name, Shape shape, Options options = {}) {
  return {.name = name,
          .make = [shape] { return std::make_unique<Kind>(shape); },
          .options = options,
          .large = options.may_be_part};
}

// Those that have many states are seen in part; with FARCALL_MODEL_SOAK wholly.
std::vector<Check> checks() {
  const Options large{.most_states = soaking() ? 100'000'000U : 40'000U, .may_be_part = !soaking()};
  std::vector<Check> all = {
      check("a byte for who is about to sleep", {.size = 4, .sent = {1}}),
      check("from the kernel to the ring", {.size = 4, .sent = {1, 1}, .watched = true}),
      check("a byte is taken back", {.size = 4, .ahead = 1, .settles = 1}),
      check("two bytes are taken back", {.size = 4, .ahead = 2, .settles = 1, .at_once = 2}),
      check("a byte is looked at, and taken back",
            {.size = 4, .ahead = 1, .settles = 1, .looks_first = true}),
      check("the ring begins anew", {.size = kMostBytes, .before = 4096, .sent = {1}}),
      check("the ring begins anew, and is looked at",
            {.size = kMostBytes, .before = 4096, .sent = {1}, .looks_first = true}),
      check("the ring begins anew behind a mark",
            {.size = kMostBytes, .before = 4095, .sent = {1, 2}, .at_once = 2, .watched = true}),
      check<Leaving>("the receiver leaves", {.size = 4, .sent = {1}, .watched = true}),
      check("a byte is sent, and taken back", {.size = 4, .sent = {1}, .settles = 1}),
      check("two bytes are taken back, one at a time",
            {.size = 4, .ahead = 2, .settles = 1, .kernel_room = 1}, large),
      check("no room", {.size = 1, .ahead = 1, .sent = {1}}),
  };
  if (!soaking()) return all;
  all.push_back(check("two bytes", {.size = 4, .sent = {1, 1}}, large));
  all.push_back(check("no room for the third", {.size = 2, .ahead = 2, .sent = {1}}, large));
  return all;
}

TEST(ModelPreload, EachByteComesOnceAndWakesWhoSleeps) {
  for (const Check& one : checks()) expect_right(one);
}

// Reasons for orders that stay though nothing here goes wrong without them.
constexpr std::string_view kTail = "the tail is loaded before it, and orders what came before";
constexpr std::string_view kNext = "a release of another word comes behind it";
constexpr std::string_view kHint = "only a hint: what has been taken is known by the head";
constexpr std::string_view kNothing = "nothing has been written before it";
constexpr std::string_view kQueue = "the kernel's queue is between the two";
constexpr std::string_view kDoorbell = "nobody rings here";
constexpr std::string_view kExchange = "who takes bytes exchanges the head, and finds it moved";
constexpr std::string_view kSlots = "of more marks than there are slots, which are too many states";
constexpr std::string_view kAgain = "it is looked at again, behind the tail or a fence";

TEST(ModelPreload, EveryOrderIsNeeded) {
  constexpr auto kAcquire = "acquire to relaxed";
  constexpr auto kRelease = "release to relaxed";
  constexpr auto kOnlyAcquire = "acq_rel to acquire";
  constexpr auto kOnlyRelease = "acq_rel to release";
  expect_every_order_matters(checks(),
                             {"preload/reclaim.cpp", "preload/recover.cpp", "preload/stream.cpp",
                              "preload/stream.hpp", "preload/transfer.cpp"},
                             {
                                 {"Sender::way", kAcquire, kHint, "kernel_taken"},
                                 {"Sender::way", kRelease, kTail, "marks["},
                                 {"Sender::restart", kAcquire, kHint, "kernel_taken"},
                                 {"Sender::restart", kRelease, kNext, "head.compare_exchange"},
                                 {"Sender::enter_kernel", kRelease, kNothing, "--sending_"},
                                 {"Sender::publish", kRelease, kQueue, "kernel_sent.store"},
                                 {"Sender::publish", kRelease, kQueue, "kernel_sending.store"},
                                 {"Sender::reclaim", kAcquire, kHint, "kernel_taken"},
                                 {"Sender::reclaim", kOnlyAcquire, kNext, "head.fetch_or"},
                                 {"Sender::reclaim", kOnlyAcquire, kNext, "tail.fetch_or"},
                                 {"Sender::reclaim", kOnlyRelease, kExchange, "tail.fetch_or"},
                                 {"Sender::reclaim", kRelease, kNothing, "head.store"},
                                 {"Receiver::next", kAcquire, kExchange, "head.load"},
                                 {"Receiver::next", kAcquire, kTail, "mark.to.load"},
                                 {"Receiver::next", kRelease, kSlots, "marks_done.store"},
                                 {"Receiver::is_moved", kAcquire, kExchange},
                                 {"Receiver::segments", kAcquire, kTail, "made ="},
                                 {"Receiver::segments", kAcquire, kExchange, "elsewhere ="},
                                 {"Receiver::segments", kAcquire, kTail, "end ="},
                                 {"Receiver::publish", kRelease, kHint},
                                 {"Receiver::follow", kAcquire, kAgain, "uint64_t head ="},
                                 {"Receiver::follow", kAcquire, kAgain, "head = "},
                                 {"Receiver::follow", kAcquire, kAgain, "tail ="},
                                 {"Receiver::follow", kAcquire, kAgain, "made ="},
                                 {"Receiver::follow", kRelease, kSlots, "marks_done.store"},
                                 {"Receiver::emptied", kAcquire, kAgain, "here ="},
                                 {"Receiver::emptied", kAcquire, kAgain, "return"},
                                 {"Receiver::watch", kOnlyAcquire, kQueue},
                                 {"Receiver::watch", kOnlyRelease, kAgain},
                                 {"Receiver::unwatch", kOnlyAcquire, kNext},
                                 {"Receiver::unwatch", kOnlyRelease, kAgain},
                                 {"doorbell_among", kAcquire, kDoorbell},
                             });
}

}  // namespace
}  // namespace farcall::model
