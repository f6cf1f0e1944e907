// SPDX-License-Identifier: Apache-2.0
//
// A signal whose handler tells of it ends what its thread waits for.
#include <unistd.h>

#include "c/signals.hpp"

namespace farcall::c::test {
namespace {

int wait_to_receive(const End& end) {
  char byte = 0;
  return static_cast<int>(farcall_pipe_receive(end.get(), &byte, 1, nullptr, FARCALL_FOREVER));
}

TEST(CPipeSignal, EndsAReceive) {
  const Ends pipe(0, FARCALL_WAIT_BLOCK);
  EXPECT_EQ(interrupt([&] { return wait_to_receive(pipe.one); }), -EINTR);
  EXPECT_EQ(send(pipe.other, "after"), 0);
  EXPECT_EQ(receive(pipe.one), "after");
}

TEST(CPipeSignal, EndsASend) {
  const Ends pipe(4096, FARCALL_WAIT_BLOCK);
  while (send(pipe.one, "full", 0) == 0) {
  }
  EXPECT_EQ(interrupt([&] { return send(pipe.one, "full", FARCALL_FOREVER); }), -EINTR);
}

TEST(CPipeSignal, EndsWhatWaitsForAName) {
  const std::string name = "c-pipe-signal-" + std::to_string(::getpid());
  farcall_pipe* end = nullptr;
  EXPECT_EQ(interrupt([&] { return farcall_pipe_serve(name.c_str(), nullptr, -1, &end); }), -EINTR);
  EXPECT_EQ(interrupt([&] { return farcall_pipe_open(name.c_str(), nullptr, -1, &end); }), -EINTR);
  EXPECT_EQ(end, nullptr);
}

TEST(CPipeSignal, ThatCameJustBeforeAReceiveWaitsEndsIt) {
  const Ends pipe(4096);
  const auto message = long_message(1'000);  // 4,000 bytes, of which the ring has room for some
  EXPECT_EQ(send(pipe.other, message, 0), -EAGAIN);
  const Tripwire wire;
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), Tripwire::page, 4096, nullptr, FARCALL_FOREVER),
            -EINTR);
  EXPECT_EQ(send(pipe.other, message, 0), 0);
  std::vector<std::uint32_t> received(1'000);
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), received.data(), 4'000, nullptr, kLong), 4'000);
  EXPECT_EQ(received, message);
}

TEST(CPipeSignal, ThatCameJustBeforeASendWaitsEndsIt) {
  const Ends pipe(4096);
  const Tripwire wire;
  EXPECT_EQ(farcall_pipe_send(pipe.one.get(), Tripwire::page, 4096, FARCALL_FOREVER), -EINTR);
}

}  // namespace
}  // namespace farcall::c::test
