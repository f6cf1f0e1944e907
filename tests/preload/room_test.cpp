// SPDX-License-Identifier: Apache-2.0
//
// Room: of a stack, and for what is sent.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "contract.hpp"
#include "farcall/memory.hpp"

namespace farcall::preload {
namespace {

// A thread with a small stack.
void run_on_little_stack(std::size_t bytes, const std::function<void()>& work) {
  pthread_attr_t attributes;
  ASSERT_EQ(::pthread_attr_init(&attributes), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  ASSERT_EQ(::pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)),
            0);
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
}

TEST(Contract, WaitsInThreadsWithLittleStacks) {
  constexpr std::size_t kStack =
      20 * 1024;  // the least is 16, of which threads' variables take some
  const Pair pair;
  pair.talk(20);
  const int fd = pair.server.get();
  UniqueFd ends[2];
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ends[0] = UniqueFd(pipe[0]);
  ends[1] = UniqueFd(pipe[1]);
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  fd_set read;
  FD_ZERO(&read);
  char byte = 0;
  std::vector<iovec> parts(400, iovec{.iov_base = &byte, .iov_len = 1});
  int done = 0;
  const std::function<void()> ways[] = {
      [&] { done = ::poll(&one, 1, 20'000) == 1 && ::recv(fd, &byte, 1, 0) == 1 ? 1 : 0; },
      [&] {
        FD_SET(fd, &read);
        done =
            ::select(fd + 1, &read, nullptr, nullptr, nullptr) == 1 && ::recv(fd, &byte, 1, 0) == 1
                ? 1
                : 0;
      },
      [&] { done = static_cast<int>(::readv(fd, parts.data(), 400)); },
      [&] { done = static_cast<int>(::recv(fd, &byte, 1, MSG_TRUNC)); },
      [&] {
        done = over_packets() ? static_cast<int>(::recv(fd, &byte, 1, 0))
                              : static_cast<int>(::splice(fd, nullptr, pipe[1], nullptr, 1, 0));
      },
  };
  for (const auto& way : ways)
    for (int i = 0; i < 5; ++i) {
      SCOPED_TRACE(&way - ways);
      pair.put("x");
      done = 0;
      run_on_little_stack(kStack, way);
      ASSERT_EQ(done, 1);
    }
}

TEST(Calls, AsManyPartsAsTheKernelTakesAreReceivedOnALittleStack) {
  constexpr std::size_t kStack = 20 * 1024;
  constexpr std::size_t kMost = 1024;
  const Pair pair;
  const int fd = pair.server.get();
  std::string bytes(kMost, '\0');
  std::vector<iovec> parts;
  for (char& byte : bytes) parts.push_back({.iov_base = &byte, .iov_len = 1});
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = kMost;
  ssize_t got = 0;
  const std::function<void()> ways[] = {
      [&] { got = ::readv(fd, parts.data(), kMost); },
      [&] { got = ::recvmsg(fd, &message, 0); },
      [&] { got = ::recvmsg(fd, &message, MSG_WAITALL); },
  };
  std::string sent(kMost, '\0');
  for (std::size_t i = 0; i < kMost; ++i) sent[i] = static_cast<char>('a' + i % 23);
  for (const auto& way : ways)
    for (const bool asleep : {false, true, false, true}) {
      SCOPED_TRACE(&way - ways);
      std::thread sender([&] {
        if (asleep) std::this_thread::sleep_for(50ms);
        pair.put(sent);
      });
      if (!asleep) sender.join();
      bytes.assign(kMost, '.');
      got = 0;
      run_on_little_stack(kStack, way);
      if (asleep) sender.join();
      ASSERT_EQ(got, static_cast<ssize_t>(kMost));
      EXPECT_EQ(bytes, sent);
    }
}

TEST(Contract, WritesUntilThereIsNoRoomAndSaysWhenThereIsAgain) {
  const Pair pair;
  set_nonblocking(pair.client.get());
  set_nonblocking(pair.server.get());
  const std::string block(10'000, 'x');
  std::size_t written = 0;
  const auto fill = [&] {
    for (;;) {
      const ssize_t sent = ::send(pair.client.get(), block.data(), block.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno;
      written += static_cast<std::size_t>(sent);
    }
  };
  EXPECT_EQ(fill(), EAGAIN);
  EXPECT_GT(written, 100'000u);
  // A late acknowledgement may make room once more.
  for (int i = 0; i < 10 && poll_once(pair.client.get(), POLLOUT) != 0; ++i) {
    EXPECT_EQ(fill(), EAGAIN);
  }
  EXPECT_EQ(poll_once(pair.client.get(), POLLOUT), 0);
  std::size_t read = 0;
  std::string buffer(50'000, '\0');
  while (read < written) {
    ASSERT_NE(poll_once(pair.server.get(), POLLIN, 20'000), 0);
    const ssize_t got = ::recv(pair.server.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(got, 0);
    read += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(poll_once(pair.client.get(), POLLOUT, 20'000), POLLOUT);
  EXPECT_EQ(receive(pair.server.get()), "(EAGAIN)");
}

TEST(Contract, ABlockedWriterGoesOnWhenTheReaderReads) {
  const Pair pair;
  std::string all(8'000'000, '\0');
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i * 131 >> 7);
  std::thread writing([&] { EXPECT_EQ(send(pair.client.get(), all), std::to_string(all.size())); });
  std::this_thread::sleep_for(30ms);
  std::string seen;
  while (seen.size() < all.size()) {
    const std::string part = receive(pair.server.get(), 100'000);
    ASSERT_GT(part.size(), 20u) << part;
    seen += part;
  }
  writing.join();
  EXPECT_TRUE(seen == all);
}

TEST(Contract, ManyPartsAreWrittenToASleeper) {
  const Pair pair;
  std::string bytes(400, 'p');
  const std::vector<iovec> parts(1000, {.iov_base = bytes.data(), .iov_len = bytes.size()});
  std::thread reading([&] {
    for (std::size_t left = parts.size() * bytes.size(); left != 0;) {
      const std::string part = receive(pair.server.get(), std::min<std::size_t>(left, 65536));
      ASSERT_EQ(part[0], 'p') << part;
      left -= part.size();
    }
  });
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(::writev(pair.client.get(), parts.data(), 1000), 400'000);
  reading.join();
}

}  // namespace
}  // namespace farcall::preload
