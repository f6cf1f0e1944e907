// SPDX-License-Identifier: Apache-2.0
//
// Datagrams from one socket to another, in memory and through the kernel: each comes once, whole
// and in order, and nobody sleeps who is not told. The threads do what udp/send.cpp and
// udp/receive.cpp do, with the sender and the receiver of the library.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "model/mutation.hpp"
#include "preload/datagram_ring.hpp"

namespace farcall::model {
namespace {

using preload::DatagramControl;
using preload::DatagramMemory;
using preload::DatagramReceiver;
using preload::DatagramSender;

struct Shape {
  unsigned before = 0;   // so many have come and gone through memory
  unsigned ahead = 0;    // so many more lie there
  unsigned sent = 1;     // so many are sent by the thread
  bool watched = false;  // the receiver has slept last
};

// Of one byte each, of which two have room.
struct Datagrams : Scenario {
  explicit Datagrams(const Shape& wanted) : shape(wanted), fd(connect()) {
    share(&control, sizeof control);
    share(bytes.data(), bytes.size());
    const DatagramMemory memory{.control = &control, .bytes = bytes.data(), .size = bytes.size()};
    sender.start(memory);
    receiver.start(memory);
    if (!shape.watched) receiver.unwatch();
    for (unsigned i = 0; i < shape.before; ++i) {
      send();
      receive();
    }
    for (unsigned i = 0; i < shape.ahead; ++i) send();
    threads.emplace_back([this] {
      for (unsigned i = 0; i < shape.sent; ++i) send();
    });
    threads.emplace_back([this] {
      while (taken < shape.before + shape.ahead + shape.sent) receive();
    });
  }

  void send() {
    auto byte = static_cast<std::byte>(++sent);
    const iovec part{.iov_base = &byte, .iov_len = 1};
    if (sender.send(&part, 1, 1)) return;
    require(syscall(SYS_sendto, fd, &byte, 1, MSG_NOSIGNAL, nullptr, 0) == 1, "the kernel is full");
    sender.sent_by_kernel();
  }
  void receive() {
    for (;;) {
      switch (receiver.next()) {
        case DatagramReceiver::Next::broken: require(false, "found broken"); break;
        case DatagramReceiver::Next::ready: return take();
        case DatagramReceiver::Next::kernel_first: return sleep();
        case DatagramReceiver::Next::none: break;
      }
      if (receiver.watched()) return sleep();
      receiver.watch();
    }
  }
  void take() {
    std::byte byte{};
    const iovec part{.iov_base = &byte, .iov_len = 1};
    require(receiver.take(&part, 1, false).length == 1, "of another length");
    came(byte);
  }
  void sleep() {
    pollfd entry{.fd = fd + 1, .events = POLLIN, .revents = 0};
    poll(&entry, 1, -1);
    std::byte byte{};
    require(syscall(SYS_recvfrom, fd + 1, &byte, 1, 0, nullptr, nullptr) == 1, "woken for nothing");
    receiver.came_by_kernel();
    receiver.unwatch();
    came(byte);
  }
  void came(std::byte byte) {
    require(byte == static_cast<std::byte>(++taken), "another datagram");
  }

  const Shape shape;
  const int fd;
  DatagramControl control{};
  alignas(64) std::array<std::byte, 64> bytes{};
  DatagramSender sender;
  DatagramReceiver receiver;
  unsigned sent = 0;
  unsigned taken = 0;
};

// What the receiver asks before it finds the kernel empty, and takes for true then: all that was
// given to the kernel is counted, and has come.
struct Counted : Scenario {
  explicit Counted(unsigned wanted) : count(wanted), fd(connect()) {
    share(&control, sizeof control);
    const DatagramMemory memory{.control = &control, .bytes = bytes.data(), .size = bytes.size()};
    sender.start(memory);
    receiver.start(memory);
    threads.emplace_back([this] {
      for (unsigned i = 0; i < count; ++i) send();
    });
    threads.emplace_back([this] {
      for (unsigned i = 0; i < 2 * count; ++i) look();
    });
  }
  void send() {
    const std::byte byte{};
    sender.begin_sending();
    require(syscall(SYS_sendto, fd, &byte, 1, MSG_NOSIGNAL, nullptr, 0) == 1, "the kernel is full");
    sender.sent_by_kernel();
    sender.end_sending();
  }
  void look() {
    const bool all = !receiver.sender_sends();
    const std::uint64_t sent = receiver.kernel_sent();
    std::byte byte{};
    if (syscall(SYS_recvfrom, fd + 1, &byte, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
      receiver.came_by_kernel();
    else
      require(!all || sent == receiver.kernel_seen(), "lost, or sent by somebody else");
  }

  const unsigned count;
  const int fd;
  DatagramControl control{};
  alignas(64) std::array<std::byte, 64> bytes{};
  DatagramSender sender;
  DatagramReceiver receiver;
};

// Whoever has gone has left all that it has put into memory.
struct Left : Scenario {
  Left() {
    share(&control, sizeof control);
    share(bytes.data(), bytes.size());
    const DatagramMemory memory{.control = &control, .bytes = bytes.data(), .size = bytes.size()};
    sender.start(memory);
    receiver.start(memory);
    receiver.unwatch();
    threads.emplace_back([this] {
      const std::byte byte{1};
      const iovec part{.iov_base = const_cast<std::byte*>(&byte), .iov_len = 1};
      require(sender.send(&part, 1, 1), "not sent");
      sender.say_gone();
    });
    threads.emplace_back([this] {
      if (receiver.sender_gone()) require(receiver.looks_ready(), "not there");
    });
  }
  DatagramControl control{};
  alignas(64) std::array<std::byte, 64> bytes{};
  DatagramSender sender;
  DatagramReceiver receiver;
};

Check check(const char* name, Shape shape) {
  return {
      .name = name, .make = [shape] { return std::make_unique<Datagrams>(shape); }, .options = {}};
}

std::vector<Check> checks() {
  return {
      check("one for who is about to sleep", {.sent = 1}),
      check("two for who is about to sleep", {.sent = 2}),
      check("by the kernel, and by memory", {.sent = 2, .watched = true}),
      check("no room for the third", {.ahead = 2, .sent = 1}),
      check("in the place of one that was read", {.before = 1, .ahead = 1, .sent = 2}),
      {.name = "one that the kernel is asked for",
       .make = [] { return std::make_unique<Counted>(1); },
       .options = {}},
      {.name = "two that the kernel is asked for",
       .make = [] { return std::make_unique<Counted>(2); },
       .options = {}},
      {.name = "the last of who has gone",
       .make = [] { return std::make_unique<Left>(); },
       .options = {}},
  };
}

TEST(ModelDatagrams, EachComesOnceInOrderAndWakesWhoSleeps) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelDatagrams, EveryOrderIsNeeded) {
  constexpr std::string_view kAgain = "the tail is loaded behind it, with what has been put there";
  constexpr std::string_view kNothing = "the sender reads nothing that was written before it";
  constexpr std::string_view kThere =
      "the kernel is asked behind it, which in the model has all that was given to it before";
  expect_every_order_matters(checks(), {"preload/datagram_ring.cpp", "preload/datagram_ring.hpp"},
                             {
                                 {"DatagramSender::sent_by_kernel", "release to relaxed", kThere},
                                 {"DatagramReceiver::kernel_sent", "acquire to relaxed", kThere},
                                 {"DatagramReceiver::watch", "acq_rel to acquire", kNothing},
                                 {"DatagramReceiver::watch", "acq_rel to release", kAgain},
                                 {"DatagramReceiver::unwatch", "acq_rel to acquire", kNothing},
                                 {"DatagramReceiver::unwatch", "acq_rel to release", kAgain},
                             });
}

}  // namespace
}  // namespace farcall::model
