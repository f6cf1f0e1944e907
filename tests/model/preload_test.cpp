// SPDX-License-Identifier: Apache-2.0
//
// One direction of an accelerated connection: a thread that sends and one that receives, of which
// each byte is to come once, in order, and without anybody asleep who is not told. The threads do
// what send.cpp and receive.cpp do, with the sender, the receiver and the moves of the library.
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
  std::size_t size;      // of the ring
  unsigned before = 0;   // so many bytes have come and gone through it
  unsigned ahead = 0;    // so many more lie there
  unsigned sent = 0;     // so many are sent by the thread
  bool settles = false;  // it takes back what is not taken, in the end, as who sleeps or ends
  unsigned at_once = 1;  // how much the receiver asks for
  bool watched = false;  // the receiver has slept last, and not looked since
};

constexpr std::size_t kMostBytes = 8192;

struct Stream : Scenario {
  explicit Stream(const Shape& wanted) : shape(wanted), fd(connect()) {
    share(&direction, sizeof direction);
    share(bytes.data(), shape.size);
    forgive_copies();
    ring = {.control = &direction, .bytes = bytes.data(), .size = shape.size};
    preload::start_direction(direction);
    if (!shape.watched) receiver.unwatch(ring);
    for (; sent < shape.before + shape.ahead; ++sent) {
      send();
      if (sent < shape.before) take_one();
    }
    threads.emplace_back([this] { run_sender(); });
    threads.emplace_back([this] { run_receiver(); });
  }

  void run_sender() {
    for (; sent < all(); ++sent) send();
    if (shape.settles) require(preload::reclaim_now(sender, ring, fd, false, false) == 0, "failed");
  }
  void send() {
    std::byte byte = value(sent);
    const iovec part{.iov_base = &byte, .iov_len = 1};
    Span from(&part, 1);
    while (from.left() != 0) {
      switch (sender.way(ring)) {
        case Sender::Way::broken: require(false, "the sender finds it broken"); break;
        case Sender::Way::ring:
          if (sender.put(ring, from) == 0) leave_ring();
          break;
        case Sender::Way::kernel: {
          require(sender.enter_kernel(ring), "nobody leaves");
          const long count = preload::kernel_send(fd, from, from.left(), MSG_NOSIGNAL);
          require(count > 0, "the kernel takes nothing");
          sender.leave_kernel(ring, static_cast<std::size_t>(count));
          from.skip(static_cast<std::size_t>(count));
          break;
        }
      }
    }
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
    while (taken < all()) receive();
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
  void take_one() {
    std::byte byte{};
    const iovec part{.iov_base = &byte, .iov_len = 1};
    Span to(&part, 1);
    require(preload::receive_now(receiver, ring, fd + 1, to, false, nullptr) == 1, "not there");
    ++taken;
  }

  [[nodiscard]] unsigned all() const { return shape.before + shape.ahead + shape.sent; }
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

Check check(const char* name, Shape shape, Options options = {}) {
  return {.name = name,
          .make = [shape] { return std::make_unique<Stream>(shape); },
          .options = options};
}

std::vector<Check> checks() {
  std::vector<Check> all = {
      check("a byte for who is about to sleep", {.size = 4, .sent = 1}),
      check("from the kernel to the ring", {.size = 4, .sent = 2, .watched = true}),
      check("a byte is taken back", {.size = 4, .ahead = 1, .settles = true}),
      check("two bytes are taken back", {.size = 4, .ahead = 2, .settles = true, .at_once = 2}),
      check("a byte is sent, and taken back", {.size = 4, .sent = 1, .settles = true}),
      check("no room", {.size = 1, .ahead = 1, .sent = 1}),
      check("the ring begins anew", {.size = kMostBytes, .before = 4096, .sent = 1}),
  };
  if (!soaking()) return all;
  const Options large{.most_states = 100'000'000};
  all.push_back(check("two bytes", {.size = 4, .sent = 2}, large));
  all.push_back(check("no room for the third", {.size = 2, .ahead = 2, .sent = 1}, large));
  return all;
}

TEST(ModelPreload, EachByteComesOnceAndWakesWhoSleeps) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelPreload, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"preload/stream.hpp", "preload/stream.cpp"});
}

}  // namespace
}  // namespace farcall::model
