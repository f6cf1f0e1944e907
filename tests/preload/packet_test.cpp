// SPDX-License-Identifier: Apache-2.0
//
// What unix sockets of packets (SOCK_SEQPACKET) do: messages with boundaries, lengths, ends. These
// tests run as they are and with the library preloaded; the kernel's answer is the right one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

int queued(int fd) {
  int bytes = -1;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &bytes), 0);
  return bytes;
}

void set_nonblocking(int fd) {
  ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

UniqueFd set_with(int fd) {
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &wanted), 0);
  return set;
}

// Both ends, each in an epoll set, so that messages lie in memory between two calls.
struct Packets {
  explicit Packets(bool warm = true) : pair(false), set_a(set_with(a())), set_b(set_with(b())) {
    const int before = stream_mappings();
    if (!warm) return;
    talk(30);
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), before + 2) << "not accelerated";
    }
  }
  void talk(int rounds) const {
    for (int i = 0; i < rounds; ++i)
      for (const bool forth : {true, false}) {
        epoll_event event{};
        ASSERT_EQ(send(forth ? a() : b(), "talk"), "4");
        ASSERT_EQ(::epoll_wait((forth ? set_b : set_a).get(), &event, 1, 20'000), 1);
        ASSERT_EQ(receive(forth ? b() : a()), "talk");
      }
  }
  void put(const std::string& text) const {
    ASSERT_EQ(send(a(), text), std::to_string(text.size()));
  }
  [[nodiscard]] int a() const { return pair.client.get(); }
  [[nodiscard]] int b() const { return pair.server.get(); }

  Pair pair;
  UniqueFd set_a, set_b;
};

// --- messages

TEST(Packets, LieInMemory) {
  const Packets both;
  both.put("somewhere");
  EXPECT_EQ(readable_for_kernel(both.b()), !preloaded());
  EXPECT_EQ(receive(both.b()), "somewhere");
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

TEST(Packets, ThereIsRoomForAsManyAsInTheKernel) {
  for (const int room : {0, 2304, 20'000, 100'000})
    for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{700},
                                   std::size_t{2000}, std::size_t{9000}}) {
      const Packets both;
      const Packets plain(false);
      const std::string text(size, 'f');
      if (room != 0) {
        for (const int fd : {both.a(), plain.a()}) {
          ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
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

// --- what comes with them

TEST(Packets, ADescriptorComesWithItsMessage) {
  const Packets both;
  const UniqueFd file = new_file();
  for (int round = 0; round < 20; ++round) {
    both.put("before");
    both.put("before");
    ASSERT_EQ(send_with(both.a(), round % 2 == 0 ? "with" : "", {file.get()}),
              round % 2 == 0 ? 4 : 0);
    both.put("behind");
    for (int i = 0; i < 2; ++i) {
      const Got before = receive_all(both.b());
      EXPECT_EQ(before.text, "before");
      EXPECT_TRUE(before.fds.empty());
    }
    if (round % 3 == 0) {
      const Got look = receive_all(both.b(), 100, MSG_PEEK);
      EXPECT_EQ(look.fds.size(), 1U);
    }
    const Got got = receive_all(both.b());
    EXPECT_EQ(got.text, round % 2 == 0 ? "with" : "");
    ASSERT_EQ(got.fds.size(), 1U);
    EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
    const Got behind = receive_all(both.b());
    EXPECT_EQ(behind.text, "behind");
    EXPECT_TRUE(behind.fds.empty());
    both.talk(round % 3);
  }
}

TEST(Packets, CredentialsComeFromTheMomentTheyAreAskedFor) {
  const Packets both;
  both.put("before");
  both.put("");
  const int one = 1;
  ASSERT_EQ(::setsockopt(both.b(), SOL_SOCKET, SO_PASSCRED, &one, sizeof one), 0);
  EXPECT_EQ(receive(both.b()), "before");
  char byte = 0;
  EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
  for (int round = 0; round < 10; ++round) {
    both.put("behind");
    const Got got = receive_all(both.b());
    EXPECT_EQ(got.text, "behind");
    EXPECT_TRUE(got.has_credentials);
    EXPECT_EQ(got.credentials.pid, ::getpid());
  }
}

TEST(Packets, AndDescriptorsGoBothWaysWhileProcessesTalk) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  UniqueFd other(fds[1]);
  constexpr int kRounds = 2000;
  const auto is_with = [](int round) { return round % 7 == 3; };
  const auto reply = [&](int socket, const Got& got) {
    return got.fds.empty() ? ::send(socket, got.text.data(), got.text.size(), MSG_NOSIGNAL)
                           : send_with(socket, got.text, {got.fds[0].get()});
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    own.reset();
    for (int round = 0; round < kRounds; ++round) {
      const Got got = receive_all(other.get());
      if (got.text != std::to_string(round) || got.fds.size() != (is_with(round) ? 1U : 0U))
        ::_exit(1);
      if (reply(other.get(), got) < 0) ::_exit(2);
    }
    ::_exit(0);
  }
  other.reset();
  const UniqueFd file = new_file();
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = std::to_string(round);
    if (is_with(round))
      ASSERT_EQ(send_with(own.get(), text, {file.get()}), static_cast<ssize_t>(text.size()));
    else
      ASSERT_EQ(send(own.get(), text), std::to_string(text.size()));
    const Got got = receive_all(own.get());
    ASSERT_EQ(got.text, text);
    ASSERT_EQ(got.fds.size(), is_with(round) ? 1U : 0U);
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), 1) << "not accelerated";
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// --- the end

TEST(Packets, AnEndComesBehindAllMessages) {
  for (const bool closes : {false, true}) {
    Packets both;
    both.put("last");
    EXPECT_EQ(::send(both.a(), "", 0, 0), 0);
    both.put("very last");
    if (closes)
      both.pair.client.reset();
    else
      ASSERT_EQ(::shutdown(both.a(), SHUT_WR), 0);
    char byte = 0;
    EXPECT_EQ(receive(both.b()), "last");
    EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
    EXPECT_EQ(receive(both.b()), "very last");
    EXPECT_EQ(receive(both.b()), "(end)");
    EXPECT_EQ(receive(both.b()), "(end)");
  }
}

TEST(Packets, NoSignalComesOfAPeerThatHasGone) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &usual, nullptr);
  Packets both;
  both.pair.server.reset();
  EXPECT_EQ(send(both.a(), "x", 0), "(EPIPE)");
  EXPECT_EQ(receive(both.a()), "(end)");
}

TEST(Packets, ToCloseWithMessagesUnreadResets) {
  for (const bool sends : {false, true}) {
    Packets both;
    both.put("unread");
    ASSERT_EQ(send(both.b(), "last"), "4");
    both.pair.server.reset();
    // Unlike streams, these tell of it first.
    if (sends)
      EXPECT_EQ(send(both.a(), "x"), "(ECONNRESET)");
    else
      EXPECT_EQ(receive(both.a()), "(ECONNRESET)");
    EXPECT_EQ(receive(both.a()), "last");
    EXPECT_EQ(receive(both.a()), "(end)");
    EXPECT_EQ(send(both.a(), "x"), "(EPIPE)");
  }
}

TEST(Packets, WhoDoesNotReadAnyMoreIsNotSentTo) {
  const Packets both;
  both.put("there already");
  ASSERT_EQ(::shutdown(both.b(), SHUT_RD), 0);
  EXPECT_EQ(send(both.a(), "x"), "(EPIPE)");
  EXPECT_EQ(receive(both.b()), "there already");
  EXPECT_EQ(receive(both.b()), "(end)");
  ASSERT_EQ(send(both.b(), "the other way"), "13");
  EXPECT_EQ(receive(both.a()), "the other way");
}

TEST(Packets, ASleeperSeesTheEnd) {
  for (int round = 0; round < 5; ++round) {
    Packets both;
    std::thread later([&] {
      std::this_thread::sleep_for(3ms);
      both.pair.client.reset();
    });
    EXPECT_EQ(receive(both.b()), "(end)");
    later.join();
  }
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

// --- where the library cannot follow

constexpr const char* kUnread[] = {"first", "", "the third one"};

void put_unread(const Packets& both) {
  for (const char* text : kUnread) both.put(text);
  both.put(std::string(3000, 'l'));
}

// By the system call alone.
std::string receive_raw(int fd, std::size_t size = 4096) {
  std::string text(size, '\0');
  const long got =
      kernel(SYS_recvfrom, fd, text.data(), text.size(), MSG_DONTWAIT, nullptr, nullptr);
  if (got < 0) return "(" + std::string(strerrorname_np(static_cast<int>(-got))) + ")";
  text.resize(static_cast<std::size_t>(got));
  return text;
}

void expect_unread(int fd) {
  for (const char* text : kUnread) EXPECT_EQ(receive_raw(fd), text);
  EXPECT_EQ(receive_raw(fd), std::string(3000, 'l'));
  EXPECT_EQ(receive_raw(fd), "(EAGAIN)");
}

TEST(Packets, OneThatIsPassedOnKeepsWhatIsUnread) {
  const Packets carrier;
  for (int round = 0; round < 5; ++round) {
    Packets passed;
    put_unread(passed);
    ASSERT_EQ(send_with(carrier.a(), "with", {passed.b()}), 4);
    const Got got = receive_all(carrier.b());
    ASSERT_EQ(got.fds.size(), 1U);
    expect_unread(got.fds[0].get());
    passed.put("more");
    EXPECT_EQ(receive_raw(got.fds[0].get()), "more");
    EXPECT_EQ(send(got.fds[0].get(), "back"), "4");
    EXPECT_EQ(receive(passed.a()), "back");
  }
}

TEST(Packets, AStandardStreamKeepsWhatIsUnread) {
  Packets both;
  put_unread(both);
  const int kept = ::dup(STDIN_FILENO);
  ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
  expect_unread(STDIN_FILENO);
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
}

// It is too long to be given back, and may be there before memory is shared.
TEST(Packets, ALongOneInFrontKeepsItsPlace) {
  for (const bool warm : {false, true}) {
    Packets both(warm);
    const std::string text(60'000, 'l');
    both.put(text);
    for (int i = 0; i < 30; ++i) {
      epoll_event event{};
      ASSERT_EQ(send(both.b(), "ping"), "4");
      ASSERT_EQ(::epoll_wait(both.set_a.get(), &event, 1, 20'000), 1);
      ASSERT_EQ(receive(both.a()), "ping");
      ASSERT_EQ(::epoll_wait(both.set_b.get(), &event, 1, 20'000), 1);
      ASSERT_EQ(receive(both.b(), 2, MSG_PEEK), "ll");
    }
    both.put("behind");
    const int kept = ::dup(STDIN_FILENO);
    ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
    EXPECT_EQ(receive_raw(STDIN_FILENO, text.size()), text);
    EXPECT_EQ(receive_raw(STDIN_FILENO), "behind");
    ::dup2(kept, STDIN_FILENO);
    ::close(kept);
  }
}

// Both ends in one process: the sleeper is woken by what its program must not see.
TEST(Packets, ASleeperDoesNotSeeThatItsPeerLeaves) {
  for (int round = 0; round < 10; ++round) {
    Packets both;
    put_unread(both);
    std::thread sleeper([&] {
      switch (round % 3) {
        case 0: EXPECT_EQ(receive(both.a()), "back"); break;
        case 1: EXPECT_EQ(receive(both.a(), 100, MSG_PEEK), "back"); break;
        default: {
          pollfd wait{.fd = both.a(), .events = POLLIN, .revents = 0};
          while (receive(both.a(), 100, MSG_DONTWAIT) != "back") ::poll(&wait, 1, 20'000);
        }
      }
    });
    std::this_thread::sleep_for(5ms);
    const int kept = ::dup(STDIN_FILENO);
    ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
    expect_unread(STDIN_FILENO);
    ::dup2(kept, STDIN_FILENO);
    ::close(kept);
    EXPECT_EQ(send(both.b(), "back"), "4");
    sleeper.join();
    if (round % 3 == 1) {
      EXPECT_EQ(receive(both.a()), "back");
    }
    EXPECT_EQ(receive(both.a(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, AProgramThatIsExecutedReadsWhatIsUnread) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  UniqueFd other(fds[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    own.reset();
    for (int i = 0; i < 300; ++i)
      if (receive(other.get()) != "talk" || send(other.get(), "talk") != "4") ::_exit(1);
    // Some of these are unread.
    if (send(other.get(), "go") != "2") ::_exit(1);
    std::this_thread::sleep_for(20ms);
    if (receive(other.get()) != "line 0\n") ::_exit(1);
    ::fcntl(other.get(), F_SETFD, 0);
    ::dup2(other.get(), STDIN_FILENO);
    ::dup2(other.get(), STDOUT_FILENO);
    ::execl("/bin/cat", "cat", nullptr);
    ::_exit(1);
  }
  other.reset();
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(send(own.get(), "talk"), "4");
    ASSERT_EQ(receive(own.get()), "talk");
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), 1) << "not accelerated";
  }
  ASSERT_EQ(receive(own.get()), "go");
  for (int i = 0; i < 20; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_EQ(send(own.get(), line), std::to_string(line.size()));
  }
  for (int i = 1; i < 20; ++i) EXPECT_EQ(receive(own.get()), "line " + std::to_string(i) + "\n");
  ASSERT_EQ(::shutdown(own.get(), SHUT_WR), 0);
  EXPECT_EQ(receive(own.get()), "(end)");
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Packets, AChildGoesOn) {
  const Packets both;
  both.put("for whoever reads");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (receive(both.b()) != "for whoever reads") ::_exit(1);
    for (int i = 0; i < 100; ++i)
      if (receive(both.b()) != "question" || send(both.b(), "answer") != "6") ::_exit(2);
    ::_exit(0);
  }
  for (int i = 0; i < 100; ++i) {
    both.put("question");
    ASSERT_EQ(receive(both.a()), "answer");
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  both.talk(10);
}

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
