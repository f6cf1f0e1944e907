// SPDX-License-Identifier: Apache-2.0
//
// Calls that go around those of the library: by their numbers, asynchronously, and by streams of
// the C library. These tests run as those of contract_test.cpp do.
#include <aio.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "calls.hpp"
#include "children.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// --- calls by number

TEST(Calls, SendingByNumberKeepsTheOrder) {
  const Pair pair;
  std::string expected;
  for (int i = 0; i < 10; ++i) {
    const auto next = [&] {
      static thread_local std::string text;
      text = "<" + std::to_string(expected.size()) + ">";
      expected += text;
      return iovec{.iov_base = text.data(), .iov_len = text.size()};
    };
    iovec part = next();
    ASSERT_EQ(send(pair.client.get(), std::string(static_cast<char*>(part.iov_base), part.iov_len)),
              std::to_string(part.iov_len));
    part = next();
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    ASSERT_EQ(::syscall(SYS_sendmmsg, pair.client.get(), &message, 1, 0), 1);
    part = next();
    ASSERT_GT(::syscall(SYS_pwritev2, pair.client.get(), &part, 1, -1L, -1L, 0), 0);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    const UniqueFd in(ends[1]);
    part = next();
    ASSERT_EQ(::write(in.get(), part.iov_base, part.iov_len), static_cast<ssize_t>(part.iov_len));
    ASSERT_GT(::syscall(SYS_splice, out.get(), nullptr, pair.client.get(), nullptr, 100, 0), 0);
  }
  EXPECT_EQ(receive_exactly(pair.server.get(), expected.size()), expected);
}

TEST(Calls, WaitingByNumberIsTold) {
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  timespec long_enough{.tv_sec = 20, .tv_nsec = 0};
  const int fd = pair.server.get();
  const std::function<long()> ways[] = {
      [&] {
        pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
        return ::syscall(SYS_ppoll, &wait, 1, &long_enough, nullptr, 8);
      },
      [&] {
        fd_set wait;
        FD_ZERO(&wait);
        FD_SET(fd, &wait);
        return ::syscall(SYS_pselect6, fd + 1, &wait, nullptr, nullptr, &long_enough, nullptr);
      },
      [&] { return ::syscall(SYS_epoll_pwait, set.get(), &event, 1, 20'000, nullptr, 8); },
  };
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    ASSERT_EQ(ways[i % 3](), 1) << i % 3;
    EXPECT_EQ(receive(fd), "x");
    // Now it is awake.
    EXPECT_EQ(receive(fd, 1, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Calls, AProgramHasTheEnvironmentThatItIsGiven) {
  const Pair pair;
  const pid_t child = in_child([] {
    char variable[] = "STATUS=42";
    char* const environment[] = {variable, nullptr};
    ::execle("/bin/sh", "sh", "-c", "exit $STATUS", nullptr, environment);
  });
  EXPECT_EQ(exit_status(child), 42);
}

// --- asynchronously

TEST(Calls, AsynchronousReadsAndWritesAreServed) {
  const Pair pair;
  std::thread peer([&] {
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
    EXPECT_EQ(receive(pair.client.get()), "answer");
    EXPECT_EQ(send(pair.client.get(), "listed"), "6");
    EXPECT_EQ(receive(pair.client.get()), "(end)");
  });
  char bytes[16] = {};
  aiocb request{};
  const aiocb* const list[] = {&request};
  const auto wait = [&]() -> ssize_t {
    const timespec long_enough{.tv_sec = 20, .tv_nsec = 0};
    return ::aio_suspend(list, 1, &long_enough) == 0 ? ::aio_return(&request) : -1;
  };
  const auto ask = [&](char* buffer, std::size_t size) {
    request = {};
    request.aio_fildes = pair.server.get();
    request.aio_buf = buffer;
    request.aio_nbytes = size;
  };
  ask(bytes, sizeof bytes);
  ASSERT_EQ(::aio_read(&request), 0);
  EXPECT_EQ(wait(), 5);
  EXPECT_STREQ(bytes, "hello");
  char answer[] = "answer";
  ask(answer, 6);
  ASSERT_EQ(::aio_write(&request), 0);
  EXPECT_EQ(wait(), 6);
  ask(bytes, sizeof bytes);
  request.aio_lio_opcode = LIO_READ;
  aiocb* const all[] = {&request};
  ASSERT_EQ(::lio_listio(LIO_WAIT, all, 1, nullptr), 0);
  EXPECT_EQ(::aio_return(&request), 6);
  ::shutdown(pair.server.get(), SHUT_WR);
  peer.join();
}

// --- streams of the C library

TEST(Calls, ANumberThatAStreamHadIsAnyFilesAfterwards) {
  for (const bool of_udp : {true, false}) {
    Pair pair;
    UniqueFd udp = udp_socket();
    UniqueFd& fd = of_udp ? udp : pair.server;
    const int number = fd.get();
    FILE* const stream = ::fdopen(fd.release(), "w");
    ASSERT_NE(stream, nullptr);
    ASSERT_EQ(::fclose(stream), 0);
    const UniqueFd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(file.get(), number) << "the lowest that is free";
    char byte = 0;
    EXPECT_EQ(::read(file.get(), &byte, 1), 1) << errno_name();
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
  }
}

TEST(Calls, AStreamMadeOfASocketSpeaksToItsPeer) {
  const Pair pair;
  FILE* const stream = ::fdopen(::dup(pair.server.get()), "r+");
  ASSERT_NE(stream, nullptr);
  std::thread peer([&] {
    EXPECT_EQ(send(pair.client.get(), "question\n"), "9");
    EXPECT_EQ(receive_exactly(pair.client.get(), 7), "answer\n");
  });
  char line[32] = {};
  EXPECT_NE(::fgets(line, sizeof line, stream), nullptr);
  EXPECT_STREQ(line, "question\n");
  EXPECT_GE(::fputs("answer\n", stream), 0);
  EXPECT_EQ(::fflush(stream), 0);
  peer.join();
  ::fclose(stream);
}

// The sender is in the middle of publishing when the receiver leaves.
TEST(Calls, LeavingLosesNothingWhileThePeerSends) {
  for (unsigned round = 0; round < 60; ++round) {
    const Pair pair;
    const auto byte = [](unsigned at) { return static_cast<char>((at * 2654435761U) >> 21); };
    constexpr unsigned kAll = 60'000;
    std::thread sender([&] {
      std::string text;
      for (unsigned at = 0, size = 1; at < kAll; at += size, size = size * 7 % 3001 + 1) {
        text.clear();
        for (unsigned i = 0; i < size; ++i) text += byte(at + i);
        if (send(pair.client.get(), text) != std::to_string(size)) break;
      }
      ::shutdown(pair.client.get(), SHUT_WR);
    });
    unsigned at = 0;
    bool left = false;
    for (std::string text; (text = receive(pair.server.get(), 1000)) != "(end)";) {
      for (const char one : text) ASSERT_EQ(one, byte(at++)) << at << " " << text.substr(0, 20);
      if (left || at < 2000 + round * 300) continue;
      left = true;
      FILE* const stream = ::fdopen(::dup(pair.server.get()), "r");
      ASSERT_NE(stream, nullptr);
      ::fclose(stream);
    }
    sender.join();
    EXPECT_GE(at, kAll);
  }
}

}  // namespace
}  // namespace farcall::preload
