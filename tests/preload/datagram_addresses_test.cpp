// SPDX-License-Identifier: Apache-2.0
//
// Whose an address is when sockets come and go there: it is free when the socket has been closed,
// and of several the kernel's choice receives. The tests run as those of datagram_contract_test.cpp
// do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"

namespace farcall::preload {
namespace {

// Enough for both ends to have met in every way: each step of theirs is one of these calls.
constexpr int kMostRounds = 12;

// An address of this process alone, and ports that the kernel gives to nobody who does not ask for
// them: so nobody else takes what is free.
std::string own_address() {
  const auto number = static_cast<unsigned>(::getpid());
  return "127." + std::to_string(64 + (number >> 16)) + "." + std::to_string(number >> 8 & 255) +
         "." + std::to_string(number & 255);
}
constexpr in_port_t kNearPort = 20'001;
constexpr in_port_t kFarPort = 20'002;

// Zero, or the errno.
int bind_to(int fd, const sockaddr_storage& name, socklen_t size) {
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) == 0 ? 0 : errno;
}

void share_address(int fd) {
  const int yes = 1;
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
}

TEST(DatagramAddresses, AreOfTheSocketThatIsConnectedToByNumber) {
  const Awake two;
  const Socket third;
  ASSERT_EQ(::syscall(SYS_connect, two.near.fd.get(), &third.name, third.size), 0);
  two.near.send("to the third");
  EXPECT_EQ(third.receive(), "to the third");
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
}

TEST(DatagramAddresses, AreFreeWhenTheirSocketIsClosed) {
  for (int rounds = 0; rounds <= kMostRounds; ++rounds)
    for (int unread = 0; unread <= 2; ++unread)
      for (const bool close_receiver : {true, false}) {
        Socket near(own_address().c_str(), AF_INET, kNearPort);
        Socket far(own_address().c_str(), AF_INET, kFarPort);
        ASSERT_TRUE(near.bound && far.bound);
        near.connect_to(far);
        far.connect_to(near);
        for (int i = 0; i < rounds; ++i) {
          near.send("ping");
          EXPECT_EQ(far.receive(), "ping");
          far.send("pong");
          EXPECT_EQ(near.receive(), "pong");
        }
        for (int i = 0; i < unread; ++i) near.send("unread");
        Socket& closed = close_receiver ? far : near;
        closed.fd.reset();
        const UniqueFd successor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(bind_to(successor.get(), closed.name, closed.size), 0)
            << rounds << " rounds, " << unread << " unread at the "
            << (close_receiver ? "closed" : "other") << " end";
      }
}

// A sender that is killed behind its last datagrams, which nobody has received so far.
class Killed {
 public:
  explicit Killed(int rounds) {
    EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0);
    const UniqueFd told(pipe_[0]);
    const UniqueFd tell(pipe_[1]);
    const pid_t child = ::fork();
    if (child == 0) send_and_die(rounds);
    // One that was there before a fork shares no memory.
    far_ = std::make_unique<Socket>(own_address().c_str());
    EXPECT_EQ(::write(tell.get(), &far_->name, sizeof far_->name),
              static_cast<ssize_t>(sizeof far_->name));
    for (int i = 0; i < rounds; ++i) {
      char text[8];
      size_ = sizeof address_;
      EXPECT_EQ(::recvfrom(far_->fd.get(), text, sizeof text, 0,
                           reinterpret_cast<sockaddr*>(&address_), &size_),
                4);
      EXPECT_EQ(::write(tell.get(), "x", 1), 1);
    }
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  }
  [[nodiscard]] int bind_to_its_address(int fd) const { return bind_to(fd, address_, size_); }
  [[nodiscard]] const Socket& receiver() const { return *far_; }

 private:
  [[noreturn]] void send_and_die(int rounds) const {
    ::alarm(60);
    const Socket near(own_address().c_str(), AF_INET, kNearPort);
    sockaddr_storage to{};
    (void)!::read(pipe_[0], &to, sizeof to);
    (void)::connect(near.fd.get(), reinterpret_cast<const sockaddr*>(&to), near.size);
    for (int i = 0; i < rounds; ++i) {
      near.send("ping");
      char byte;
      (void)!::read(pipe_[0], &byte, 1);
    }
    near.send("first");
    near.send("second");
    ::raise(SIGKILL);
    ::_exit(1);
  }

  int pipe_[2] = {-1, -1};
  std::unique_ptr<Socket> far_;
  sockaddr_storage address_{};
  socklen_t size_ = 0;
};

TEST(DatagramAddresses, AreFreeWhenTheirProcessIsKilled) {
  for (int rounds = 1; rounds <= kMostRounds; ++rounds) {
    const Killed sender(rounds);
    const UniqueFd successor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(sender.bind_to_its_address(successor.get()), 0) << rounds << " rounds";
    EXPECT_EQ(sender.receiver().receive(), "first");
    EXPECT_EQ(sender.receiver().receive(), "second");
    EXPECT_EQ(sender.receiver().receive(MSG_DONTWAIT), "(EAGAIN)");
  }
}

// A socket that has received through memory, and another at its address.
struct Shared : Awake {
  Shared() {
    share_address(far.fd.get());
    share_address(other.get());
  }
  void talk() const {
    for (int i = 0; i < 40; ++i) {
      near.send("x");
      EXPECT_EQ(far.receive(), "x");
    }
  }
  void bind_other() const { ASSERT_EQ(bind_to(other.get(), far.name, far.size), 0); }
  void connect_other() const {
    ASSERT_EQ(::connect(other.get(), reinterpret_cast<const sockaddr*>(&near.name), near.size), 0);
  }
  // That the other one receives what is sent from now on.
  void expect_other() const {
    for (int i = 0; i < 40; ++i) {
      near.send("to the other");
      EXPECT_EQ(far.receive(MSG_DONTWAIT), "(EAGAIN)");
      char text[32];
      EXPECT_EQ(::recv(other.get(), text, sizeof text, MSG_DONTWAIT), 12);
    }
  }
  void close_other() {
    other.reset();
    for (int i = 0; i < 40; ++i) {
      near.send("again");
      EXPECT_EQ(far.receive(), "again");
    }
  }
  UniqueFd other{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
};

TEST(DatagramAddresses, AreOfTheSocketThatWasBoundLast) {
  Shared sockets;
  sockets.bind_other();
  sockets.expect_other();
  sockets.close_other();
}

// As servers of DTLS do for each client.
TEST(DatagramAddresses, AreOfTheSocketThatIsConnectedToTheSender) {
  Shared sockets;
  sockets.bind_other();
  sockets.connect_other();
  sockets.expect_other();
  sockets.close_other();
}

TEST(DatagramAddresses, AreOfTheSocketThatIsConnectedLater) {
  Shared sockets;
  // One that is bound to all addresses comes last until then.
  sockaddr_storage all = sockets.far.name;
  reinterpret_cast<sockaddr_in&>(all).sin_addr.s_addr = htonl(INADDR_ANY);
  ASSERT_EQ(bind_to(sockets.other.get(), all, sockets.far.size), 0);
  sockets.talk();
  sockets.connect_other();
  sockets.expect_other();
  sockets.close_other();
}

TEST(DatagramAddresses, AreOfTheSocketThatIsBoundToTheDevice) {
  Shared sockets;
  sockets.bind_other();
  // Until then they are of the one that is bound last.
  UniqueFd& last = sockets.far.fd;
  last.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  ASSERT_EQ(::setsockopt(last.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  share_address(last.get());
  ASSERT_EQ(bind_to(last.get(), sockets.far.name, sockets.far.size), 0);
  sockets.talk();
  ASSERT_EQ(::setsockopt(sockets.other.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 3), 0);
  sockets.expect_other();
  sockets.close_other();
}

TEST(DatagramAddresses, KeepWhatWasSentToThemBefore) {
  Shared sockets;
  sockets.near.send("first");
  sockets.near.send("second");
  sockets.bind_other();
  sockets.connect_other();
  sockets.near.send("third");
  EXPECT_EQ(sockets.far.receive(), "first");
  EXPECT_EQ(sockets.far.receive(), "second");
  EXPECT_EQ(sockets.far.receive(MSG_DONTWAIT), "(EAGAIN)");
  char text[32];
  EXPECT_EQ(::recv(sockets.other.get(), text, sizeof text, MSG_DONTWAIT), 5);
  sockets.expect_other();
}

// Binds a socket to the address that comes from `go`, so that it is before those of all addresses;
// says so, and waits for the datagram that is meant for it.
[[noreturn]] void take_over(int go, int tell) {
  ::alarm(60);
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 3, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  share_address(fd.get());
  sockaddr_storage name{};
  if (::read(go, &name, sizeof name) != sizeof name) ::_exit(3);
  if (bind_to(fd.get(), name, sizeof(sockaddr_in)) != 0 || ::write(tell, "b", 1) != 1) ::_exit(2);
  for (char byte = 0; byte != '!';)
    if (::recv(fd.get(), &byte, 1, 0) != 1) ::_exit(1);
  ::_exit(0);
}

// Whoever has just sent to the old one sends what follows to the new one, in whatever way it was
// told of it.
TEST(DatagramAddresses, AreOfTheSocketOfAnotherProcessThatIsBoundLater) {
  for (int round = 0; round < 10; ++round) {
    int go[2];
    int told[2];
    ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(told, O_CLOEXEC | O_NONBLOCK), 0);
    const UniqueFd ends[] = {UniqueFd(go[0]), UniqueFd(go[1]), UniqueFd(told[0]),
                             UniqueFd(told[1])};
    const pid_t child = ::fork();
    if (child == 0) take_over(go[0], told[1]);
    const Socket far("0.0.0.0");
    share_address(far.fd.get());
    sockaddr_storage name = far.name;
    reinterpret_cast<sockaddr_in&>(name).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const Socket near;
    ASSERT_EQ(::connect(near.fd.get(), reinterpret_cast<const sockaddr*>(&name), far.size), 0);
    for (int i = 0; i < 200; ++i) {
      near.send("x");
      ASSERT_EQ(poll_once(far.fd.get(), 1000), POLLIN);
      EXPECT_EQ(far.receive(), "x");
    }
    ASSERT_EQ(::write(go[1], &name, sizeof name), static_cast<ssize_t>(sizeof name));
    for (char byte = 0; ::read(told[0], &byte, 1) != 1;) {
      near.send("x");
      if (poll_once(far.fd.get(), 50) == POLLIN) (void)far.receive();
    }
    for (int i = 0; i < 4; ++i) near.send("x");
    near.send("!");
    EXPECT_EQ(exit_status(child), 0) << "round " << round;
  }
}

// The kernel names one of those who listen, but all get it.
TEST(DatagramAddresses, WhatIsForAllWhoListenReachesAll) {
  const int yes = 1;
  const Socket one("0.0.0.0");
  ASSERT_EQ(::setsockopt(one.fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  const UniqueFd other(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::setsockopt(other.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&one.name), one.size), 0);
  const UniqueFd sender(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::setsockopt(sender.get(), SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes), 0);
  sockaddr_in all{};
  std::memcpy(&all, &one.name, sizeof all);
  ASSERT_EQ(::inet_pton(AF_INET, "127.255.255.255", &all.sin_addr), 1);
  ASSERT_EQ(::connect(sender.get(), reinterpret_cast<const sockaddr*>(&all), sizeof all), 0);
  constexpr int kDatagrams = 60;
  char byte = 0;
  for (int i = 0; i < kDatagrams; ++i) {
    ASSERT_EQ(::send(sender.get(), "x", 1, 0), 1);
    ASSERT_EQ(poll_once(other.get(), 1000), POLLIN);
    ASSERT_EQ(::recv(other.get(), &byte, 1, 0), 1);
  }
  int came = 0;
  while (one.receive(MSG_DONTWAIT) == "x") ++came;
  EXPECT_EQ(came, kDatagrams);
}

}  // namespace
}  // namespace farcall::preload
