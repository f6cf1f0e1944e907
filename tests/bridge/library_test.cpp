// SPDX-License-Identifier: Apache-2.0
//
// A bridge that is a part of a program, which goes on when it has ended.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <memory>

#include "bridge/bridge.hpp"
#include "bridge/harness.hpp"
#include "harness/child.hpp"

extern "C" const char __executable_start;  // NOLINT: the linker's
extern "C" const char etext;

namespace {

std::atomic<bool> closed{false};
std::atomic<int> held{0};

}  // namespace

// What a thread of an imported door begins a call with: those of the library of doors do not come
// from this program.
extern "C" int pthread_setcancelstate(int state, int* before) {
  static const auto next =
      reinterpret_cast<int (*)(int, int*)>(::dlsym(RTLD_NEXT, "pthread_setcancelstate"));
  const auto* const caller = static_cast<const char*>(__builtin_return_address(0));
  if (state == PTHREAD_CANCEL_DISABLE && closed && caller >= &__executable_start &&
      caller < &etext) {
    ++held;
    while (closed) farcall::test::nap(1);
  }
  return next(state, before);
}

namespace farcall::test {
namespace {

TEST(BridgeLibrary, ACallThatBeginsWhenItsBridgeIsNoMoreIsRefused) {
  if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
  const ScratchDirectory scratch;
  const Nats nats(scratch);
  const std::string path = scratch.file("door");
  const Shared<Event> ready;
  const Shared<std::atomic<int>> answered;
  Child client([&] {
    if (ready->wait()) *answered = call_door(path, "x") == "!ECONNREFUSED" ? 1 : 2;
  });
  bridge::Config config;
  config.servers = {nats.url()};
  config.status.clear();
  config.names.resize(1);
  config.names[0].direction = bridge::Direction::imported;
  config.names[0].path = path;
  config.names[0].subject = "d.v1";
  auto bridge = std::make_unique<bridge::Bridge>(config);
  closed = true;
  ready->happens();
  EXPECT_TRUE(comes_true([] { return held == 1; }));
  bridge.reset();
  // Another one in its place, which is none of that client's business.
  bridge = std::make_unique<bridge::Bridge>(config);
  closed = false;
  EXPECT_TRUE(comes_true([&] { return *answered != 0; }));
  EXPECT_EQ(*answered, 1);
}

}  // namespace
}  // namespace farcall::test
