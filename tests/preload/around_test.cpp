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
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// --- calls by number

// With that text unread, in memory where there is any.
void put_in_memory(const UsedPair& pair, const std::string& text) {
  for (int i = 0; i < 1000; ++i) {
    pair.put(text);
    if (!preloaded() || !readable_for_kernel(pair.server.get())) return;
    // Its reader was taken for one that sleeps.
    epoll_event event{};
    EXPECT_EQ(::epoll_wait(pair.set.get(), &event, 1, 10'000), 1);
    EXPECT_EQ(receive(pair.server.get()), text);
  }
  ADD_FAILURE() << "not in memory";
}

struct OneMessage {
  explicit OneMessage(std::string& text) : part{.iov_base = text.data(), .iov_len = text.size()} {
    many.msg_hdr.msg_iov = &part;
    many.msg_hdr.msg_iovlen = 1;
  }
  OneMessage(const OneMessage&) = delete;
  OneMessage& operator=(const OneMessage&) = delete;
  iovec part;
  mmsghdr many{};
};

TEST(Calls, ReceivingByNumberFindsWhatIsThere) {
  std::string text(4, '.');
  OneMessage one(text);
  const std::function<long(int)> ways[] = {
      [&](int fd) { return ::syscall(SYS_read, fd, text.data(), 4); },
      [&](int fd) { return ::syscall(SYS_readv, fd, &one.part, 1); },
      [&](int fd) { return ::syscall(SYS_preadv2, fd, &one.part, 1, -1L, -1L, 0); },
      [&](int fd) { return ::syscall(SYS_recvfrom, fd, text.data(), 4, 0, nullptr, nullptr); },
      [&](int fd) { return ::syscall(SYS_recvmsg, fd, &one.many.msg_hdr, 0); },
      [&](int fd) {
        return ::syscall(SYS_recvmmsg, fd, &one.many, 1, 0, nullptr) == 1 ? one.many.msg_len : -1L;
      },
  };
  const UsedPair pair;
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    put_in_memory(pair, "here");
    EXPECT_EQ(way(pair.server.get()), 4) << errno_name();
    EXPECT_EQ(text, "here");
    text = "....";
  }
}

TEST(Calls, SendingByNumberKeepsTheOrder) {
  std::string text = "second";
  OneMessage one(text);
  const UniqueFd file(::memfd_create("second", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), std::ssize(text));
  const std::function<long(int)> ways[] = {
      [&](int fd) { return ::syscall(SYS_write, fd, text.data(), text.size()); },
      [&](int fd) { return ::syscall(SYS_writev, fd, &one.part, 1); },
      [&](int fd) { return ::syscall(SYS_pwritev2, fd, &one.part, 1, -1L, -1L, 0); },
      [&](int fd) { return ::syscall(SYS_sendto, fd, text.data(), text.size(), 0, nullptr, 0); },
      [&](int fd) { return ::syscall(SYS_sendmsg, fd, &one.many.msg_hdr, 0); },
      [&](int fd) {
        return ::syscall(SYS_sendmmsg, fd, &one.many, 1, 0) == 1 ? one.many.msg_len : -1L;
      },
      [&](int fd) {
        loff_t from = 0;
        return ::syscall(SYS_sendfile, fd, file.get(), &from, text.size());
      },
      [&](int fd) {
        int ends[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        const UniqueFd out(ends[0]);
        const UniqueFd in(ends[1]);
        EXPECT_EQ(::write(in.get(), text.data(), text.size()), std::ssize(text));
        return ::syscall(SYS_splice, out.get(), nullptr, fd, nullptr, 100, 0);
      },
  };
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    const UsedPair pair;
    put_in_memory(pair, "first");
    EXPECT_EQ(way(pair.client.get()), std::ssize(text)) << errno_name();
    pair.put("third");
    EXPECT_EQ(receive_exactly(pair.server.get(), 16), "firstsecondthird");
  }
}

TEST(Calls, ADuplicateByNumberIsTheSameSocket) {
  const UsedPair pair;
  UniqueFd other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = other.get();
  const std::function<long(int)> ways[] = {
      [&](int fd) {
        other.reset();  // the lowest that is free
        return ::syscall(SYS_dup, fd);
      },
      [&](int fd) { return ::syscall(SYS_dup3, fd, number, O_CLOEXEC); },
#ifdef SYS_dup2
      [&](int fd) { return ::syscall(SYS_dup2, fd, number); },
#endif
  };
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    put_in_memory(pair, "here");
    ASSERT_EQ(way(pair.server.get()), number) << errno_name();
    (void)other.release();
    other = UniqueFd(number);
    EXPECT_EQ(receive(number), "here");
  }
}

TEST(Calls, WhatIsShutDownByNumberSendsNothingMore) {
  const UsedPair pair;
  put_in_memory(pair, "last");
  ASSERT_EQ(::syscall(SYS_shutdown, pair.client.get(), SHUT_WR), 0);
  EXPECT_EQ(send(pair.client.get(), "more"), "(EPIPE)");
  EXPECT_EQ(receive(pair.server.get()), "last");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

// As by its name.
TEST(Calls, WhatIsClosedByNumberInARangeMissesWhatIsUnread) {
  UsedPair pair;
  put_in_memory(pair, "unread");
  const int server = pair.server.release();
  ASSERT_EQ(::syscall(SYS_close_range, server, server, 0), 0) << errno_name();
  // What has the number then is another file.
  std::vector<UniqueFd> files;
  while (files.empty() || files.back().get() < server)
    files.emplace_back(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(files.back().get(), server);
  char byte = 'x';
  EXPECT_EQ(::read(server, &byte, 1), 1) << errno_name();
  EXPECT_EQ(byte, '\0');
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
}

TEST(Calls, AnOptionByNumberIsKept) {
  const UsedPair pair;
  const int mark = 2;
  ASSERT_EQ(::syscall(SYS_setsockopt, pair.server.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, 4), 0);
  pair.put("by the kernel");
  EXPECT_TRUE(readable_for_kernel(pair.server.get()));
  EXPECT_EQ(receive(pair.server.get()), "by the kernel");
}

TEST(TcpCalls, AnOptionByNumberIsToldAsItWasSet) {
  const Pair pair;
  for (const int wanted : {0, 1}) {
    set_option(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, wanted);
    int value = -1;
    socklen_t size = sizeof value;
    ASSERT_EQ(::syscall(SYS_getsockopt, pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &size),
              0);
    EXPECT_EQ(value, wanted);
  }
}

// Where ends of unix sockets have looked for each other for long enough, later ones do.
void expect_to_be_accelerated(const std::function<Pair()>& make) {
  const int wanted = preloaded() ? 2 : 0;
  int shared = -1;
  for (int i = 0; i < 10 && shared != wanted; ++i) {
    if (i != 0) ::sleep(1);
    const int before = stream_mappings();
    const Pair pair = make();
    pair.talk(20);
    shared = stream_mappings() - before;
  }
  EXPECT_EQ(shared, wanted);
}

TEST(Calls, AConnectionMadeByNumberIsAccelerated) {
  for (const bool with_flags : {false, true})
    expect_to_be_accelerated([&] {
      Address address;
      const UniqueFd listener = listen_on_loopback(address);
      Pair pair(Pair::Unmade{});
      pair.client =
          UniqueFd(static_cast<int>(::syscall(SYS_socket, stream_family(), socket_type(), 0)));
      EXPECT_EQ(::syscall(SYS_connect, pair.client.get(), address.get(), address.size), 0);
      pair.server = UniqueFd(static_cast<int>(
          with_flags ? ::syscall(SYS_accept4, listener.get(), nullptr, nullptr, SOCK_CLOEXEC)
                     : ::syscall(SYS_accept, listener.get(), nullptr, nullptr)));
      return pair;
    });
}

TEST(Calls, APairMadeByNumberIsAccelerated) {
  if (!over_unix()) return;  // they are unix sockets
  expect_to_be_accelerated([] {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::syscall(SYS_socketpair, AF_UNIX, socket_type(), 0, ends), 0);
    Pair pair(Pair::Unmade{});
    pair.client = UniqueFd(ends[0]);
    pair.server = UniqueFd(ends[1]);
    return pair;
  });
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
#ifdef SYS_poll
      [&] {
        pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
        return ::syscall(SYS_poll, &wait, 1, 20'000);
      },
      [&] {
        fd_set wait;
        FD_ZERO(&wait);
        FD_SET(fd, &wait);
        timeval limit{.tv_sec = 20, .tv_usec = 0};
        return ::syscall(SYS_select, fd + 1, &wait, nullptr, nullptr, &limit);
      },
      [&] { return ::syscall(SYS_epoll_wait, set.get(), &event, 1, 20'000); },
#endif
  };
  for (std::size_t i = 0; i < 10 * std::size(ways); ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    ASSERT_EQ(ways[i % std::size(ways)](), 1) << i % std::size(ways);
    EXPECT_EQ(receive(fd), "x");
    // Now it is awake.
    EXPECT_EQ(receive(fd, 1, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Calls, ASetMadeByNumberIsTold) {
  const UsedPair::MakeSet ways[] = {
      [] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); },
#ifdef SYS_epoll_create
      [] { return ::syscall(SYS_epoll_create, 1); },
#endif
  };
  for (const auto& way : ways) {
    // Asserts that bytes go through memory.
    const UsedPair pair(way);
    const UniqueFd set(static_cast<int>(way()));
    put_in_memory(pair, "here");
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 7}};
    ASSERT_EQ(::syscall(SYS_epoll_ctl, set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
    EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 20'000), 1);
    EXPECT_EQ(event.data.u64, 7U);
    EXPECT_EQ(receive(pair.server.get()), "here");
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
