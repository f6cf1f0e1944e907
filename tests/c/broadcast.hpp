// SPDX-License-Identifier: Apache-2.0
//
// Publishers and subscribers for tests of the C interface.
#pragma once

#include "c/pipe.hpp"

namespace farcall::c::test {

struct Unpublish {
  void operator()(farcall_publisher* publisher) const { farcall_publisher_close(publisher); }
};
struct Unsubscribe {
  void operator()(farcall_subscriber* subscriber) const { farcall_subscriber_close(subscriber); }
};
using Publisher = std::unique_ptr<farcall_publisher, Unpublish>;
using Subscriber = std::unique_ptr<farcall_subscriber, Unsubscribe>;

inline std::string unique_name() {
  static int count = 0;
  return "c-broadcast-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

inline Publisher publish(const char* name, int policy = FARCALL_BLOCK, std::size_t capacity = 4096,
                         unsigned readers = 0) {
  const farcall_publisher_options options{.size = sizeof options,
                                          .capacity = capacity,
                                          .policy = policy,
                                          .wait = FARCALL_WAIT_ADAPTIVE,
                                          .readers = readers,
                                          .reserved = 0};
  farcall_publisher* publisher = nullptr;
  EXPECT_EQ(farcall_publisher_create(name, &options, &publisher), 0);
  return Publisher(publisher);
}
inline Subscriber subscribe(const std::string& name, int start = FARCALL_NEWEST, int expected = 0) {
  const farcall_subscriber_options options{
      .size = sizeof options, .start = start, .wait = FARCALL_WAIT_ADAPTIVE, .most = 0};
  farcall_subscriber* subscriber = nullptr;
  EXPECT_EQ(farcall_subscriber_open(name.c_str(), &options, kLong, &subscriber), expected);
  return Subscriber(subscriber);
}
inline Subscriber adopt(int descriptor, int expected = 0) {
  farcall_subscriber* subscriber = nullptr;
  EXPECT_EQ(farcall_subscriber_adopt(descriptor, nullptr, &subscriber), expected);
  return Subscriber(subscriber);
}
inline int send(const Publisher& publisher, std::string_view text, std::int64_t timeout = kLong) {
  return farcall_publisher_send(publisher.get(), text.data(), text.size(), timeout);
}
// The message, behind it how many were missed, if any; or the symbolic name of the error.
inline std::string receive(const Subscriber& subscriber, std::int64_t timeout = kLong) {
  std::string text(2'000, 0);
  std::uint64_t missed = 99;
  const std::int64_t size = farcall_subscriber_receive(subscriber.get(), text.data(), text.size(),
                                                       nullptr, &missed, timeout);
  if (size < 0) return ::strerrorname_np(static_cast<int>(-size));
  text.resize(static_cast<std::size_t>(size));
  return missed == 0 ? text : text + " -" + std::to_string(missed);
}

}  // namespace farcall::c::test
