// SPDX-License-Identifier: Apache-2.0
//
// What messages do that go through a pipe, between threads and between processes.
#include "c/pipe.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <thread>

namespace farcall::c::test {
namespace {

TEST(CPipe, SendsBothWays) {
  const Ends pipe;
  EXPECT_EQ(send(pipe.one, "there"), 0);
  EXPECT_EQ(send(pipe.other, "and back"), 0);
  EXPECT_EQ(receive(pipe.other), "there");
  EXPECT_EQ(receive(pipe.one), "and back");
}

TEST(CPipe, KeepsBoundariesAndEmptyMessages) {
  const Ends pipe;
  EXPECT_EQ(send(pipe.one, "a"), 0);
  EXPECT_EQ(farcall_pipe_send(pipe.one.get(), nullptr, 0, kLong), 0);
  EXPECT_EQ(send(pipe.one, "bc"), 0);
  EXPECT_EQ(receive(pipe.other), "a");
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), nullptr, 0, nullptr, kLong), 0);
  EXPECT_EQ(receive(pipe.other), "bc");
}

TEST(CPipe, DoesNotWaitWhereThereIsNoTime) {
  const Ends pipe(4096);
  EXPECT_EQ(receive(pipe.one, 0), "EAGAIN");
  int sent = 0;
  int result = 0;
  while (sent < 100 && (result = send(pipe.one, "some", 0)) == 0) ++sent;
  EXPECT_EQ(result, -EAGAIN);
  EXPECT_GT(sent, 10);
  EXPECT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 1);
  farcall_pipe_send_poll_end(pipe.one.get());
  for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(pipe.other, 0), "some");
  EXPECT_EQ(receive(pipe.other, 0), "EAGAIN");
}

TEST(CPipe, SaysHowMuchItHolds) {
  const Ends pipe(5000);
  EXPECT_EQ(farcall_pipe_capacity(pipe.one.get()), 8192U);
  EXPECT_EQ(farcall_pipe_capacity(pipe.other.get()), 8192U);
  EXPECT_EQ(send(pipe.one, "some"), 0);
  EXPECT_EQ(farcall_pipe_capacity(pipe.one.get()), 8192U);
  EXPECT_EQ(farcall_pipe_capacity(nullptr), 0U);
}

TEST(CPipe, WaitsNoLongerThanItIsTold) {
  for (const int wait : {FARCALL_WAIT_ADAPTIVE, FARCALL_WAIT_SPIN, FARCALL_WAIT_BLOCK}) {
    const Ends pipe(4096, wait);
    const std::int64_t start = now_ns();
    EXPECT_EQ(receive(pipe.one, kShort), "ETIMEDOUT");
    EXPECT_GE(now_ns() - start, kShort);
    while (send(pipe.one, "some", 0) == 0) {
    }
    EXPECT_EQ(send(pipe.one, "some", kShort), -ETIMEDOUT);
  }
}

TEST(CPipe, ChangesNoErrno) {
  const Ends pipe;
  errno = EXDEV;
  EXPECT_EQ(receive(pipe.one, 0), "EAGAIN");
  EXPECT_EQ(receive(pipe.one, kShort), "ETIMEDOUT");
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_open("nobody-serves-this", nullptr, 0, &end), -ECONNREFUSED);
  EXPECT_EQ(errno, EXDEV);
}

TEST(CPipe, KeepsAMessageThatIsLongerThanTheBuffer) {
  const Ends pipe;
  EXPECT_EQ(send(pipe.one, "long enough"), 0);
  char text[20];
  std::size_t needed = 0;
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), text, 3, &needed, kLong), -EMSGSIZE);
  EXPECT_EQ(needed, 11U);
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), text, 3, nullptr, kLong), -EMSGSIZE);
  EXPECT_EQ(receive(pipe.other), "long enough");
}

TEST(CPipe, CarriesMessagesThatAreLongerThanTheRing) {
  const Ends pipe(4096);
  const auto message = long_message(100'000);
  std::thread sender([&] { EXPECT_EQ(send(pipe.one, message), 0); });
  std::vector<std::uint32_t> received(message.size());
  std::size_t needed = 0;
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), received.data(), 4096, &needed, kLong),
            -EMSGSIZE);
  EXPECT_EQ(needed, message.size() * 4);
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), received.data(), needed, nullptr, kLong),
            static_cast<std::int64_t>(needed));
  sender.join();
  EXPECT_EQ(received, message);
}

// Neither side ever waits: each goes on where it was.
TEST(CPipe, GoesOnWithALongMessageInAnotherBuffer) {
  const Ends pipe(4096);
  const auto message = long_message(20'000);
  std::int64_t size = -EAGAIN;
  int sent = -EAGAIN;
  std::vector<std::uint32_t> received;
  for (int i = 0; i < 10'000 && size == -EAGAIN; ++i) {
    if (sent == -EAGAIN) sent = send(pipe.one, message, 0);
    received = std::vector<std::uint32_t>(message.size());  // and nothing of the last one
    size = farcall_pipe_receive(pipe.other.get(), received.data(), received.size() * 4, nullptr, 0);
  }
  EXPECT_EQ(sent, 0);
  EXPECT_EQ(size, static_cast<std::int64_t>(message.size() * 4));
  EXPECT_EQ(received, message);
  EXPECT_EQ(send(pipe.one, "next"), 0);
  EXPECT_EQ(receive(pipe.other), "next");
}

TEST(CPipe, RefusesToMixMessages) {
  const Ends pipe(4096);
  EXPECT_EQ(send(pipe.one, long_message(20'000), 0), -EAGAIN);
  EXPECT_EQ(send(pipe.one, "short", 0), -EINVAL);
  EXPECT_EQ(send(pipe.one, long_message(20'001), 0), -EINVAL);
  EXPECT_EQ(send(pipe.one, std::string(long_message(20'000).size(), 'x'), 0), -EINVAL);
  std::vector<std::uint32_t> received(20'000);
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), received.data(), 80'000, nullptr, 0), -EAGAIN);
  std::size_t needed = 0;
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), received.data(), 100, &needed, 0), -EMSGSIZE);
  EXPECT_EQ(needed, 80'000U);
}

TEST(CPipe, TellsOfTheEndWhenAllHasBeenReceived) {
  const Ends pipe;
  EXPECT_EQ(send(pipe.one, "the last one"), 0);
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(send(pipe.one, "too late"), -EPIPE);
  EXPECT_EQ(receive(pipe.other), "the last one");
  EXPECT_EQ(receive(pipe.other), "EPIPE");
  EXPECT_EQ(receive(pipe.other, 0), "EPIPE");
  // Only one way has ended.
  EXPECT_EQ(send(pipe.other, "still"), 0);
  EXPECT_EQ(receive(pipe.one), "still");
}

TEST(CPipe, ClosesBothWays) {
  for (const bool used : {false, true}) {
    Ends pipe;
    if (used) {
      EXPECT_EQ(send(pipe.one, "used"), 0);
    }
    pipe.one.reset();
    if (used) {
      EXPECT_EQ(receive(pipe.other), "used");
    }
    EXPECT_EQ(receive(pipe.other), "EPIPE");
    EXPECT_EQ(send(pipe.other, "nobody"), -EPIPE);
  }
}

TEST(CPipe, IsBrokenOffInTheMiddleOfAMessage) {
  Ends pipe(4096);
  EXPECT_EQ(send(pipe.one, long_message(20'000), 0), -EAGAIN);
  pipe.one.reset();
  std::vector<std::uint32_t> received(20'000);
  EXPECT_EQ(farcall_pipe_receive(pipe.other.get(), received.data(), 80'000, nullptr, kLong),
            -ECONNRESET);
}

TEST(CPipe, WakesWhoSleepsWhenItIsClosed) {
  Ends pipe(0, FARCALL_WAIT_BLOCK);
  std::atomic<pid_t> thread{0};
  std::string got;
  std::thread waits([&] {
    thread = ::gettid();
    got = receive(pipe.other);
  });
  EXPECT_TRUE(eventually([&] { return thread != 0 && is_asleep(thread); }));
  pipe.one.reset();
  waits.join();
  EXPECT_EQ(got, "EPIPE");
}

// Each half sleeps, and longer than on the futex: were there one doorbell for both, the one half
// would take what is meant for the other.
TEST(CPipe, WakesTwoThreadsThatSleepAtTheSameEnd) {
  for (int round = 0; round < 3; ++round) {
    const Ends pipe(4096, FARCALL_WAIT_BLOCK);
    while (send(pipe.one, "full", 0) == 0) {
    }
    std::atomic<pid_t> sender{0};
    std::atomic<pid_t> receiver{0};
    std::thread sends([&] {
      sender = ::gettid();
      EXPECT_EQ(send(pipe.one, "behind"), 0);
    });
    std::thread receives([&] {
      receiver = ::gettid();
      EXPECT_EQ(receive(pipe.one), "answer");
    });
    EXPECT_TRUE(eventually(
        [&] { return sender != 0 && receiver != 0 && is_asleep(sender) && is_asleep(receiver); }));
    std::this_thread::sleep_for(kGlance);  // beyond the shallow sleep
    if (round != 1) {
      EXPECT_EQ(send(pipe.other, "answer"), 0);
    }
    std::string last;
    for (int i = 0; i < 200 && last != "behind"; ++i) last = receive(pipe.other);
    EXPECT_EQ(last, "behind");
    if (round == 1) {
      EXPECT_EQ(send(pipe.other, "answer"), 0);
    }
    sends.join();
    receives.join();
  }
}

TEST(CPipe, CarriesAHundredThousandMessagesBetweenProcesses) {
  constexpr std::uint64_t kMessages = 100'000 / kSlow;
  Ends pipe(4096);
  Child child([&] {
    pipe.one.reset();
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(farcall_pipe_receive(pipe.other.get(), &number, sizeof number, nullptr, kLong), 8);
      ASSERT_EQ(number, i);
      if (i % 100 == 0) {
        ASSERT_EQ(farcall_pipe_send(pipe.other.get(), &number, sizeof number, kLong), 0);
      }
    }
    EXPECT_EQ(receive(pipe.other), "EPIPE");
    pipe.other.reset();
  });
  pipe.other.reset();
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(farcall_pipe_send(pipe.one.get(), &i, sizeof i, kLong), 0);
    std::uint64_t number = 0;
    if (i % 100 != 0) continue;
    ASSERT_EQ(farcall_pipe_receive(pipe.one.get(), &number, sizeof number, nullptr, kLong), 8);
    ASSERT_EQ(number, i);
  }
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(receive(pipe.one), "EPIPE");
}

TEST(CPipe, SaysWhichVersionItIs) { EXPECT_STREQ(farcall_version(), FARCALL_VERSION); }

TEST(CPipe, RefusesWhatCannotBe) {
  farcall_pipe* one = nullptr;
  farcall_pipe* other = nullptr;
  EXPECT_EQ(farcall_pipe_create(nullptr, nullptr, &other), -EINVAL);
  EXPECT_EQ(farcall_pipe_create(nullptr, &one, nullptr), -EINVAL);
  farcall_pipe_options options = options_of(0);
  options.wait = 3;
  EXPECT_EQ(farcall_pipe_create(&options, &one, &other), -EINVAL);
  options = options_of(0);
  options.kind = 2;
  EXPECT_EQ(farcall_pipe_create(&options, &one, &other), -EINVAL);
  options = options_of(0);
  options.size = 4;
  EXPECT_EQ(farcall_pipe_create(&options, &one, &other), -EINVAL);
  options = options_of(SIZE_MAX);
  EXPECT_EQ(farcall_pipe_create(&options, &one, &other), -EINVAL);
  EXPECT_EQ(farcall_pipe_create(nullptr, &one, &one), -EINVAL) << "one would be lost";
  EXPECT_EQ(one, nullptr);
  EXPECT_EQ(other, nullptr);

  const Ends pipe;
  EXPECT_EQ(farcall_pipe_send(nullptr, "a", 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_send(pipe.one.get(), nullptr, 1, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), nullptr, 1, nullptr, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_receive(nullptr, nullptr, 0, nullptr, 0), -EINVAL);
  EXPECT_EQ(farcall_pipe_finish(nullptr), -EINVAL);
  farcall_pipe_close_sending(nullptr);
  EXPECT_EQ(farcall_pipe_poll_begin(nullptr), -EINVAL);
  EXPECT_EQ(farcall_pipe_poll_descriptor(nullptr), -EINVAL);
  EXPECT_EQ(farcall_pipe_descriptors(nullptr, nullptr), -EINVAL);
  farcall_pipe_poll_end(nullptr);
  farcall_pipe_close(nullptr);
}

// The structure of a later version is longer; that of an earlier one is shorter.
TEST(CPipe, UnderstandsCallersOfOtherVersions) {
  struct Later {
    farcall_pipe_options known;
    std::uint64_t unknown;
  } later{.known = options_of(4096), .unknown = 0};
  later.known.size = sizeof later;
  farcall_pipe* one = nullptr;
  farcall_pipe* other = nullptr;
  EXPECT_EQ(farcall_pipe_create(&later.known, &one, &other), 0);
  farcall_pipe_close(one);
  farcall_pipe_close(other);
  later.unknown = 1;
  EXPECT_EQ(farcall_pipe_create(&later.known, &one, &other), -EINVAL);

  farcall_pipe_options earlier = options_of(4096, 99);
  earlier.size = offsetof(farcall_pipe_options, wait);  // what it holds there is not asked for
  EXPECT_EQ(farcall_pipe_create(&earlier, &one, &other), 0);
  farcall_pipe_close(one);
  farcall_pipe_close(other);
}

TEST(CPipe, ASenderLearnsThatItsPeerWasKilledThoughThereIsRoom) {
  Ends pipe(std::size_t{64} << 20);
  Child peer([&] {
    pipe.one.reset();
    EXPECT_EQ(receive(pipe.other), "first");
    ::pause();
  });
  pipe.other.reset();
  EXPECT_EQ(send(pipe.one, "first"), 0);
  EXPECT_EQ(send(pipe.one, "second"), 0);
  peer.kill();
  EXPECT_TRUE(eventually([&] { return send(pipe.one, "in vain") == -EPIPE; }));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(send(pipe.one, "again"), -EPIPE) << "it had been told";
}

}  // namespace
}  // namespace farcall::c::test
