// SPDX-License-Identifier: Apache-2.0
//
// Programs that have closed their standard streams write to them all the same: what a channel
// keeps is none of these three.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

class StandardStreams : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Channel, StandardStreams, testing::ValuesIn(all_mechanisms()), test_name);
class StandardStreamsNamed : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Channel, StandardStreamsNamed,
                         testing::ValuesIn(mechanisms_where(&Properties::by_name)), test_name);

Deadline in_good_time() { return Deadline::after(std::chrono::seconds(kSanitized ? 40 : 20)); }

// Which of the three are open, as bits.
int open_ones() {
  int open = 0;
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) open |= 1 << fd;
  return open;
}

constexpr int kFailed = 100;

// What `run` returns in a child that has no standard streams.
template <class Run>
int without_streams(Run run) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int fd = 0; fd < 3; ++fd) ::close(fd);
    try {
      ::_exit(run());
    } catch (const std::exception&) {
      ::_exit(kFailed);
    }
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
}

TEST_P(StandardStreams, AreNoneOfAChannelsDescriptors) {
  EXPECT_EQ(without_streams([] {
              const AnyChannel made = channel();
              return open_ones();
            }),
            0);
}

TEST_P(StandardStreams, AreNoneOfItsEnds) {
  EXPECT_EQ(without_streams([] {
              const auto ends = channel().take_both();
              return open_ones();
            }),
            0);
}

TEST_P(StandardStreamsNamed, AreNoneOfItsEnds) {
  const std::string name = "standard-streams-" + std::to_string(::getpid());
  EXPECT_EQ(without_streams([&] {
              const pid_t server = ::fork();
              if (server == 0) {
                const auto writer = AnyChannel::serve_writer(mechanism(), name, {}, in_good_time());
                ::_exit(open_ones());
              }
              const auto reader = AnyChannel::open_reader(mechanism(), name, {}, in_good_time());
              int status = kFailed;
              ::waitpid(server, &status, 0);
              return open_ones() | status;
            }),
            0);
}

}  // namespace
}  // namespace farcall::channel::test
