// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that come with the bytes of a unix socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 2000; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST(UnixStream, ADescriptorComesWithTheLastOfItsBytes) {
  const Pair pair;
  const UniqueFd file = new_file();
  for (int round = 0; round < 50; ++round) {
    pair.put("before");
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    pair.put("behind");
    std::string text;
    std::size_t end_of_with = 0;
    while (text.size() < 16) {
      const Got got = receive_with(pair.server.get());
      ASSERT_NE(got.text[0], '(') << got.text;
      text += got.text;
      if (got.fds.empty()) continue;
      ASSERT_EQ(got.fds.size(), 1U);
      EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
      EXPECT_EQ(end_of_with, 0U) << "twice";
      end_of_with = text.size();
    }
    EXPECT_EQ(text, "beforewithbehind");
    // No call returns bytes behind those that a descriptor came with.
    EXPECT_EQ(end_of_with, 10U) << "round " << round;
    pair.talk(round % 3);
  }
}

TEST(UnixStream, DescriptorsOfTwoMessagesComeApart) {
  const Pair pair;
  const UniqueFd one = new_file();
  const UniqueFd two = new_file();
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(send_with(pair.client.get(), "one", {one.get()}), 3);
    ASSERT_EQ(send_with(pair.client.get(), "two", {two.get(), one.get()}), 3);
    Got got = receive_with(pair.server.get());
    EXPECT_EQ(got.text, "one");
    ASSERT_EQ(got.fds.size(), 1U);
    EXPECT_EQ(number_of(got.fds[0].get()), number_of(one.get()));
    got = receive_with(pair.server.get());
    EXPECT_EQ(got.text, "two");
    ASSERT_EQ(got.fds.size(), 2U);
    EXPECT_EQ(number_of(got.fds[0].get()), number_of(two.get()));
    EXPECT_EQ(number_of(got.fds[1].get()), number_of(one.get()));
    pair.talk(5);
  }
}

TEST(UnixStream, WhoReadsWithoutRoomForDescriptorsGetsBytesAlone) {
  const Pair pair;
  const UniqueFd file = new_file();
  const int before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    pair.put("behind");
    EXPECT_EQ(receive(pair.server.get()), "with");
    EXPECT_EQ(receive(pair.server.get()), "behind");
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    const Got got = receive_with(pair.server.get(), 100, 0, 0);
    EXPECT_EQ(got.text, "with");
    EXPECT_EQ(got.flags & MSG_CTRUNC, MSG_CTRUNC);
    pair.talk(3);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(UnixStream, ADescriptorStopsAWaitForAll) {
  const Pair pair;
  const UniqueFd file = new_file();
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    pair.put("behind");
    const Got got = receive_with(pair.server.get(), 10, MSG_WAITALL);
    EXPECT_EQ(got.text, "with");
    EXPECT_EQ(got.fds.size(), 1U);
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "behind");
    pair.talk(3);
  }
}

TEST(UnixStream, ALookShowsDescriptorsAndLeavesThem) {
  const Pair pair;
  const UniqueFd file = new_file();
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    for (int look = 0; look < 2; ++look) {
      const Got got = receive_with(pair.server.get(), 100, MSG_PEEK);
      EXPECT_EQ(got.text, "with");
      ASSERT_EQ(got.fds.size(), 1U);
      EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
    }
    const Got got = receive_with(pair.server.get());
    EXPECT_EQ(got.text, "with");
    EXPECT_EQ(got.fds.size(), 1U);
    pair.talk(3);
  }
}

TEST(UnixStream, DescriptorsAreClosedOnExecutionIfAsked) {
  const Pair pair;
  const UniqueFd file = new_file();
  for (const int flags : {0, static_cast<int>(MSG_CMSG_CLOEXEC)}) {
    ASSERT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    const Got got = receive_with(pair.server.get(), 100, flags);
    ASSERT_EQ(got.fds.size(), 1U);
    EXPECT_EQ((::fcntl(got.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0, flags != 0);
    pair.talk(3);
  }
}

TEST(UnixStream, AWaitingReceiverGetsADescriptor) {
  const Pair pair;
  const UniqueFd file = new_file();
  for (int round = 0; round < 20; ++round) {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 4));
      EXPECT_EQ(send_with(pair.client.get(), "with", {file.get()}), 4);
    });
    const Got got = receive_with(pair.server.get());
    later.join();
    EXPECT_EQ(got.text, "with");
    ASSERT_EQ(got.fds.size(), 1U);
    EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
    pair.talk(3);
  }
}

TEST(UnixStream, AConnectionThatIsPassedOnKeepsWhatIsUnread) {
  const Pair carrier;
  for (const std::size_t size : {std::size_t{5}, std::size_t{100'000}}) {
    Pair passed;
    const std::string text(size, 'u');
    passed.put(text);
    ASSERT_EQ(send_with(carrier.client.get(), "with", {passed.server.get()}), 4);
    const Got got = receive_with(carrier.server.get());
    ASSERT_EQ(got.fds.size(), 1U);
    passed.server.reset();
    std::string read;
    while (read.size() < size) {
      const std::string part = receive(got.fds[0].get(), size - read.size());
      ASSERT_NE(part[0], '(') << part;
      read += part;
    }
    EXPECT_EQ(read, text);
    passed.put("more");
    EXPECT_EQ(receive(got.fds[0].get()), "more");
  }
}

TEST(UnixStream, DescriptorsAndBytesGoBothWaysWhileProcessesTalk) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  UniqueFd other(fds[1]);
  constexpr int kRounds = 2000;
  const auto is_with = [](int round) { return round % 7 == 3; };
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    own.reset();
    for (int round = 0; round < kRounds; ++round) {
      const Got got = receive_with(other.get());
      if (got.text != std::to_string(round) || got.fds.size() != (is_with(round) ? 1U : 0U))
        ::_exit(1);
      std::vector<int> back;
      if (!got.fds.empty()) back.push_back(got.fds[0].get());
      if (send_with(other.get(), got.text, back) < 0) ::_exit(2);
    }
    ::_exit(0);
  }
  other.reset();
  const UniqueFd file = new_file();
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = std::to_string(round);
    std::vector<int> with;
    if (is_with(round)) with.push_back(file.get());
    ASSERT_EQ(send_with(own.get(), text, with), static_cast<ssize_t>(text.size()));
    const Got got = receive_with(own.get());
    ASSERT_EQ(got.text, text);
    ASSERT_EQ(got.fds.size(), with.size());
    if (!got.fds.empty()) {
      EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
    }
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), 1) << "not accelerated";
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farcall::preload
