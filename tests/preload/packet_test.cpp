// SPDX-License-Identifier: Apache-2.0
//
// What unix sockets of packets (SOCK_SEQPACKET) do: messages with boundaries and lengths. These
// tests run as they are and with the library preloaded; the kernel's answer is the right one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "contract.hpp"
#include "farcall/memory.hpp"
#include "packets.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

int queued(int fd) {
  int bytes = -1;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &bytes), 0);
  return bytes;
}

// --- messages

TEST(Packets, LieInMemory) {
  const Packets both;
  // Beside others that want the processor, one may go through the kernel.
  bool in_memory = false;
  for (int i = 0; i < 100 && !in_memory; ++i) {
    both.put("somewhere");
    in_memory = !readable_for_kernel(both.b());
    EXPECT_EQ(receive(both.b()), "somewhere");
  }
  EXPECT_EQ(in_memory, preloaded());
}

TEST(Packets, KeepTheirBoundaries) {
  const Packets both;
  for (int round = 0; round < 5; ++round) {
    for (const char* text : {"one", "two two", "3"}) both.put(text);
    EXPECT_EQ(receive(both.b()), "one");
    EXPECT_EQ(receive(both.b()), "two two");
    EXPECT_EQ(receive(both.b(), 100, MSG_WAITALL), "3");
    EXPECT_EQ(receive(both.b(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, WhatThereIsNoRoomForIsLost) {
  const Packets both;
  for (int round = 0; round < 5; ++round) {
    both.put("a long message");
    both.put("another one");
    both.put("whole");
    EXPECT_EQ(receive(both.b(), 6), "a long");
    const Got got = receive_all(both.b(), 3);
    EXPECT_EQ(got.text, "ano");
    EXPECT_EQ(got.flags, MSG_TRUNC);
    const Got whole = receive_all(both.b(), 5);
    EXPECT_EQ(whole.text, "whole");
    EXPECT_EQ(whole.flags, 0);
    EXPECT_EQ(receive(both.b(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, TheWholeLengthIsToldToWhoAsks) {
  const Packets both;
  char bytes[4] = {};
  for (int round = 0; round < 3; ++round) {
    both.put("fourteen bytes");
    EXPECT_EQ(::recv(both.b(), bytes, 4, MSG_TRUNC | MSG_PEEK), 14);
    EXPECT_EQ(::recv(both.b(), nullptr, 0, MSG_TRUNC | MSG_PEEK), 14);
    EXPECT_EQ(::recv(both.b(), bytes, 4, MSG_TRUNC), 14);
    EXPECT_EQ(std::string(bytes, 4), "four");
    EXPECT_EQ(::recv(both.b(), bytes, 4, MSG_TRUNC | MSG_DONTWAIT), -1);
    std::thread later([&] {
      std::this_thread::sleep_for(5ms);
      both.put("fourteen bytes");
    });
    const Got got = receive_all(both.b(), 2, MSG_TRUNC);
    EXPECT_EQ(got.result, 14);
    EXPECT_EQ(got.flags, MSG_TRUNC);
    later.join();
  }
}

TEST(Packets, ALookTakesNothing) {
  const Packets both;
  for (int round = 0; round < 3; ++round) {
    both.put("first");
    both.put("second");
    for (int look = 0; look < 2; ++look) {
      EXPECT_EQ(receive(both.b(), 100, MSG_PEEK), "first");
      EXPECT_EQ(receive(both.b(), 2, MSG_PEEK), "fi");
    }
    EXPECT_EQ(receive(both.b()), "first");
    EXPECT_EQ(receive(both.b(), 100, MSG_PEEK), "second");
    EXPECT_EQ(receive(both.b()), "second");
  }
}

TEST(Packets, AMessageMayHaveNoBytes) {
  const Packets both;
  char byte = 0;
  pollfd wait{.fd = both.b(), .events = POLLIN, .revents = 0};
  for (int round = 0; round < 5; ++round) {
    both.put("before");
    EXPECT_EQ(::send(both.a(), "", 0, 0), 0);
    EXPECT_EQ(::write(both.a(), "", 0), 0);
    both.put("behind");
    EXPECT_EQ(receive(both.b()), "before");
    EXPECT_EQ(::poll(&wait, 1, 0), 1);
    EXPECT_EQ(wait.revents, POLLIN);
    EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
    EXPECT_EQ(::read(both.b(), &byte, 1), 0);
    EXPECT_EQ(receive(both.b()), "behind");
    EXPECT_EQ(::poll(&wait, 1, 0), 0);
    EXPECT_EQ(receive(both.b(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, ASleeperGetsAMessageOfNoBytes) {
  const Packets both;
  char byte = 0;
  for (int round = 0; round < 5; ++round) {
    std::thread later([&] {
      std::this_thread::sleep_for(3ms);
      EXPECT_EQ(::send(both.a(), "", 0, 0), 0);
      both.put("behind");
    });
    EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
    EXPECT_EQ(receive(both.b()), "behind");
    later.join();
    both.talk(5);
  }
}

TEST(Packets, WhoReadsNothingTakesNothingUnlessHeReceives) {
  const Packets both;
  char byte = 0;
  const iovec none{.iov_base = &byte, .iov_len = 0};
  for (int round = 0; round < 3; ++round) {
    both.put("one");
    both.put("two");
    EXPECT_EQ(::read(both.b(), &byte, 0), 0);
    EXPECT_EQ(::readv(both.b(), &none, 1), 0);
    EXPECT_EQ(::recv(both.b(), &byte, 0, 0), 0);
    EXPECT_EQ(::writev(both.a(), &none, 1), 0);
    EXPECT_EQ(receive(both.b()), "two");
    EXPECT_EQ(receive(both.b(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, AreMadeOfParts) {
  const Packets both;
  char text[] = "abcdefghij";
  const iovec parts[] = {{text, 3}, {text + 3, 0}, {text + 3, 7}};
  char first[4] = {};
  char second[20] = {};
  const iovec room[] = {{first, 4}, {second, 20}};
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(::writev(both.a(), parts, 3), 10);
    EXPECT_EQ(::readv(both.b(), room, 2), 10);
    EXPECT_EQ(std::string(first, 4) + second, "abcdefghij");
  }
}

TEST(Packets, SeveralGoWithOneCall) {
  const Packets both;
  char text[] = "abcdef";
  for (int round = 0; round < 3; ++round) {
    iovec parts[] = {{text, 1}, {text + 1, 0}, {text + 1, 5}};
    mmsghdr out[3]{};
    char room[4][4] = {};
    iovec places[4];
    mmsghdr in[4]{};
    for (std::size_t i = 0; i < 4; ++i) {
      if (i < 3) out[i].msg_hdr.msg_iov = &parts[i];
      if (i < 3) out[i].msg_hdr.msg_iovlen = 1;
      places[i] = {room[i], 4};
      in[i].msg_hdr.msg_iov = &places[i];
      in[i].msg_hdr.msg_iovlen = 1;
    }
    ASSERT_EQ(::sendmmsg(both.a(), out, 3, 0), 3);
    EXPECT_EQ(out[2].msg_len, 5U);
    ASSERT_EQ(::recvmmsg(both.b(), in, 4, MSG_WAITFORONE, nullptr), 3);
    EXPECT_EQ(in[0].msg_len, 1U);
    EXPECT_EQ(in[1].msg_len, 0U);
    EXPECT_EQ(in[2].msg_len, 4U);
    EXPECT_EQ(in[2].msg_hdr.msg_flags & MSG_TRUNC, MSG_TRUNC);
    EXPECT_EQ(std::string(room[2], 4), "bcde");
  }
}

TEST(Packets, AllThatIsUnreadIsCounted) {
  const Packets both;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(queued(both.b()), 0);
    both.put("12345");
    both.put("");
    both.put(std::string(2000, 'x'));
    EXPECT_EQ(queued(both.b()), 2005);
    EXPECT_EQ(receive(both.b(), 2), "12");
    EXPECT_EQ(queued(both.b()), 2000);
    (void)receive(both.b());
    (void)receive(both.b());
  }
}

TEST(Packets, TheirSenderHasAName) {
  const Packets both;
  sockaddr_un name{};
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(both.b(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string wanted(name.sun_path, size - sizeof(sa_family_t));
  for (const char* text : {"named", ""}) {
    EXPECT_EQ(::send(both.b(), text, std::strlen(text), 0),
              static_cast<ssize_t>(std::strlen(text)));
    EXPECT_EQ(receive_all(both.a()).name, wanted);
    both.put("nameless");
    EXPECT_EQ(receive_all(both.b()).name, "");
  }
  // An address to send to is overlooked.
  EXPECT_EQ(::sendto(both.a(), "x", 1, 0, reinterpret_cast<sockaddr*>(&name), size), 1);
  EXPECT_EQ(receive(both.b()), "x");
}

TEST(Packets, OfAllLengthsComeAsTheyWere) {
  const Packets both;
  std::mt19937 random(3);
  std::thread echo([&] {
    std::vector<char> buffer(70'000);
    for (;;) {
      const ssize_t got = ::recv(both.b(), buffer.data(), buffer.size(), 0);
      ASSERT_GE(got, 0);
      if (got == 3 && std::memcmp(buffer.data(), "end", 3) == 0) return;
      ASSERT_EQ(::send(both.b(), buffer.data(), static_cast<std::size_t>(got), 0), got);
    }
  });
  std::vector<char> buffer(70'000);
  const std::size_t most[] = {1, 10, 100, 1000, 5000, 60'000};
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % most[random() % 6], '\0');
    for (char& byte : text) byte = static_cast<char>('a' + random() % 20);
    ASSERT_EQ(::send(both.a(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    const ssize_t got = ::recv(both.a(), buffer.data(), buffer.size(), 0);
    ASSERT_EQ(got, static_cast<ssize_t>(text.size())) << "round " << round;
    ASSERT_EQ(std::string(buffer.data(), text.size()), text) << "round " << round;
  }
  both.put("end");
  echo.join();
}

// --- how many there may be

// How many messages of that size there is room for.
template <class Send>
int fill(const std::string& text, Send send_one) {
  int count = 0;
  while (send_one(text) == static_cast<long>(text.size())) ++count;
  return count;
}

void expect_as_much_room_as_in_the_kernel(int option, const std::vector<int>& rooms) {
  for (const int room : rooms)
    for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{700},
                                   std::size_t{2000}, std::size_t{9000}}) {
      const Packets both;
      const Packets plain(false);
      const std::string text(size, 'f');
      if (room != 0) {
        for (const int fd : {both.a(), plain.a()}) {
          ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, option, &room, sizeof room), 0);
        }
      }
      const int kept = fill(text, [&](const std::string& one) {
        return ::send(both.a(), one.data(), one.size(), MSG_DONTWAIT);
      });
      const int by_kernel = fill(text, [&](const std::string& one) {
        return kernel(SYS_sendto, plain.a(), one.data(), one.size(), MSG_DONTWAIT, nullptr, 0);
      });
      // What has been taken once may be charged otherwise.
      EXPECT_GE(kept, by_kernel) << room << ", " << size;
      EXPECT_LE(kept, by_kernel + by_kernel / 5 + 1) << room << ", " << size;
      for (int i = 0; i < kept; ++i) {
        char bytes[9001];
        ASSERT_EQ(::recv(both.b(), bytes, sizeof bytes, MSG_DONTWAIT), static_cast<ssize_t>(size))
            << i << " of " << kept;
      }
      EXPECT_EQ(receive(both.b(), 10, MSG_DONTWAIT), "(EAGAIN)");
    }
}

TEST(Packets, ThereIsRoomForAsManyAsInTheKernel) {
  expect_as_much_room_as_in_the_kernel(SO_SNDBUF, {0, 2304, 20'000, 100'000});
}

TEST(Packets, ThereIsRoomForAsManyAsInTheKernelThoughItIsForced) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may force that";
  const Packets both(false);
  const int room = 2304;
  if (::setsockopt(both.a(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0) {
    ASSERT_EQ(errno, EPERM);
    return;  // root may not everywhere
  }
  expect_as_much_room_as_in_the_kernel(SO_SNDBUFFORCE, {2304, 20'000});
}

TEST(Packets, OneThatIsTooLongIsRefused) {
  const Packets both;
  for (const int room : {2304, 5000, 50'000}) {
    ASSERT_EQ(::setsockopt(both.a(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    const std::string text(static_cast<std::size_t>(2 * room - 32), 't');
    std::vector<char> buffer(200'000);
    EXPECT_EQ(send(both.a(), text), std::to_string(text.size()));
    EXPECT_EQ(send(both.a(), text + "x"), "(EMSGSIZE)");
    EXPECT_EQ(::recv(both.b(), buffer.data(), buffer.size(), 0), static_cast<ssize_t>(text.size()));
    both.talk(5);
  }
}

TEST(Packets, ASenderWaitsForRoom) {
  const Packets both;
  constexpr int kMany = 3000;
  std::thread sender([&] {
    for (int i = 0; i < kMany; ++i) {
      std::string text(static_cast<std::size_t>(i % 300), 'w');
      ASSERT_EQ(send(both.a(), text), std::to_string(text.size()));
    }
  });
  std::this_thread::sleep_for(5ms);
  char bytes[300];
  for (int i = 0; i < kMany; ++i) {
    ASSERT_EQ(::recv(both.b(), bytes, sizeof bytes, 0), i % 300) << i;
    if (i % 500 == 0) std::this_thread::sleep_for(2ms);
  }
  sender.join();
}

// --- waiting

TEST(Packets, AreTold) {
  const Packets both;
  for (int round = 0; round < 10; ++round) {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
      EXPECT_EQ(::send(both.a(), "", 0, 0), 0);
    });
    switch (round % 3) {
      case 0: {
        pollfd wait{.fd = both.b(), .events = POLLIN, .revents = 0};
        EXPECT_EQ(::poll(&wait, 1, 20'000), 1);
        break;
      }
      case 1: {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(both.b(), &set);
        EXPECT_EQ(::select(both.b() + 1, &set, nullptr, nullptr, nullptr), 1);
        break;
      }
      default: {
        epoll_event event{};
        EXPECT_EQ(::epoll_wait(both.set_b.get(), &event, 1, 20'000), 1);
        EXPECT_EQ(event.data.fd, both.b());
      }
    }
    later.join();
    char byte = 0;
    EXPECT_EQ(::recv(both.b(), &byte, 1, MSG_DONTWAIT), 0);
    EXPECT_EQ(receive(both.b(), 1, MSG_DONTWAIT), "(EAGAIN)");
    both.talk(3);
  }
}

TEST(Packets, NotWaitingSaysSo) {
  const Packets both;
  set_nonblocking(both.b());
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(receive(both.b()), "(EAGAIN)");
    both.put("x");
    EXPECT_EQ(receive(both.b()), "x");
  }
}

// --- other ways to send, and wrong ones

TEST(Packets, AreFilledFromAFileAndAPipe) {
  const Packets both;
  both.put("before");
  const UniqueFd file = new_file();
  ASSERT_EQ(::write(file.get(), "content", 7), 7);
  off_t from = 0;
  EXPECT_EQ(::sendfile(both.a(), file.get(), &from, 7), 7);
  both.put("behind");
  for (const char* text : {"before", "content", "behind"}) EXPECT_EQ(receive(both.b()), text);
  const Packets piped;
  piped.put("before");
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ASSERT_EQ(::write(pipe[1], "piped", 5), 5);
  EXPECT_EQ(::splice(pipe[0], nullptr, piped.a(), nullptr, 5, 0), 5);
  for (const char* text : {"before", "piped"}) EXPECT_EQ(receive(piped.b()), text);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Packets, APointerThatIsNoneLosesAMessage) {
  const Packets both;
  both.put("lost");
  both.put("kept");
  EXPECT_EQ(::recv(both.b(), nullptr, 10, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(receive(both.b()), "kept");
  EXPECT_EQ(::send(both.a(), nullptr, 10, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  both.put("behind");
  EXPECT_EQ(receive(both.b()), "behind");
}

}  // namespace
}  // namespace farcall::preload
