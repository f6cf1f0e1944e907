// SPDX-License-Identifier: Apache-2.0
//
// What unix streams have and TCP does not: names, credentials that come with bytes, pairs, errors
// of their own. As the tests of streams these run as they are and with the library preloaded; the
// kernel's answer is the right one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "harness/scratch.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

// Both ends wait for each other, so that bytes go through memory.
template <class Work>
void with_echo(const Pair& pair, Work work) {
  std::thread echo([&] {
    for (std::string text; (text = receive(pair.server.get())) != "(end)";)
      if (text[0] == '(' || send(pair.server.get(), text)[0] == '(') break;
  });
  work();
  ::shutdown(pair.client.get(), SHUT_WR);
  echo.join();
}

// Who counts down to know that all has been read.
TEST(UnixStream, HasBytesOnTheirWayUntilTheyAreRead) {
  const UsedPair pair;
  const auto on_their_way = [&] {
    int bytes = -1;
    EXPECT_EQ(::ioctl(pair.client.get(), SIOCOUTQ, &bytes), 0);
    return bytes;
  };
  EXPECT_EQ(on_their_way(), 0);
  pair.put("text");
  EXPECT_GT(on_their_way(), 0);
  EXPECT_EQ(receive(pair.server.get()), "text");
  EXPECT_EQ(on_their_way(), 0);
}

// As kernels tell it from 6.17 on.
TEST(UnixStream, TellsHowMuchIsLeft) {
  constexpr int kInQueue = 84;  // SO_INQ
  const UsedPair pair;
  const int on = 1;
  const bool known = ::setsockopt(pair.server.get(), SOL_SOCKET, kInQueue, &on, sizeof on) == 0;
  pair.put("some text");
  char bytes[4];
  test::AncillaryMessage message(bytes, sizeof bytes, CMSG_SPACE(sizeof(int)));
  EXPECT_EQ(message.receive(pair.server.get()), 4);
  ASSERT_EQ(message.first() != nullptr, known);
  EXPECT_EQ(message.find<int>(SOL_SOCKET, kInQueue), known ? std::optional(5) : std::nullopt);
  EXPECT_EQ(receive(pair.server.get()), " text");
}

// --- credentials

TEST(UnixStream, CredentialsComeFromTheMomentTheyAreAskedFor) {
  const Pair pair;
  pair.put("before");
  const int one = 1;
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_PASSCRED, &one, sizeof one), 0);
  EXPECT_EQ(receive(pair.server.get()), "before");
  for (int round = 0; round < 20; ++round) {
    pair.put("behind");
    const Got got = receive_with(pair.server.get());
    EXPECT_EQ(got.text, "behind");
    EXPECT_TRUE(got.has_credentials);
    EXPECT_EQ(got.credentials.pid, ::getpid());
    EXPECT_EQ(got.credentials.uid, ::geteuid());
  }
}

TEST(UnixStream, ThePeerHasCredentials) {
  const Pair pair;
  for (const int fd : {pair.client.get(), pair.server.get()}) {
    ucred peer{};
    socklen_t size = sizeof peer;
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
    EXPECT_EQ(peer.pid, ::getpid());
  }
}

// --- names

TEST(UnixStream, APathIsAsGoodAsAnAbstractName) {
  const test::ScratchDirectory folder;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = folder.file("socket");
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  ASSERT_EQ(::bind(listener.get(), address, sizeof name), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  Pair pair(false);
  pair.client = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(pair.client.get(), address, sizeof name), 0);
  pair.server = accept_from(listener);
  const int before = stream_mappings();
  pair.talk(20);
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), before + 2) << "not accelerated";
  }
  // Bytes come with the name of their sender, which is the listener's.
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(send(pair.server.get(), "named"), "5");
    EXPECT_EQ(receive_with(pair.client.get()).name.c_str(), path);
    pair.put("nameless");
    EXPECT_EQ(receive_with(pair.server.get()).name, "");
    ASSERT_EQ(send(pair.server.get(), "named"), "5");
    sockaddr_un from{};
    socklen_t size = sizeof from;
    char bytes[10];
    EXPECT_EQ(::recvfrom(pair.client.get(), bytes, sizeof bytes, 0,
                         reinterpret_cast<sockaddr*>(&from), &size),
              5);
    EXPECT_EQ(static_cast<const char*>(from.sun_path), path);
    EXPECT_EQ(size, sizeof(sa_family_t) + path.size() + 1);
  }
  EXPECT_EQ(::unlink(path.c_str()), 0);
  EXPECT_TRUE(folder.files().empty());
}

TEST(UnixStream, OneCannotSendToAnAddress) {
  const Pair pair;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, "/nowhere", 9);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(::sendto(pair.client.get(), "x", 1, MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&name),
                       sizeof name),
              -1);
    EXPECT_EQ(errno, EISCONN);
    pair.talk(3);
  }
}

TEST(UnixStream, OptionsOfTcpAreRefused) {
  const Pair pair;
  const int one = 1;
  EXPECT_EQ(::setsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  int value = 0;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &size), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// --- the end

TEST(UnixStream, ToSendToAClosedPeerIsAnErrorAtOnce) {
  Pair pair;
  with_echo(pair, [&] {
    for (int i = 0; i < 100; ++i) {
      pair.put("x");
      EXPECT_EQ(receive(pair.client.get()), "x");
    }
  });
  Pair closed;
  closed.talk(100);
  closed.server.reset();
  EXPECT_EQ(send(closed.client.get(), "x"), "(EPIPE)");
  EXPECT_EQ(receive(closed.client.get()), "(end)");
}

TEST(UnixStream, ToCloseWithBytesUnreadResets) {
  Pair pair;
  pair.put("unread");
  ASSERT_EQ(send(pair.server.get(), "last"), "4");
  pair.server.reset();
  EXPECT_EQ(receive(pair.client.get()), "last");
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
  EXPECT_EQ(send(pair.client.get(), "x"), "(EPIPE)");
}

TEST(UnixStream, ToCloseWithAllReadIsAnEnd) {
  Pair pair;
  pair.put("read");
  EXPECT_EQ(receive(pair.server.get()), "read");
  ASSERT_EQ(send(pair.server.get(), "last"), "4");
  pair.server.reset();
  EXPECT_EQ(receive(pair.client.get()), "last");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(UnixStream, WhoDoesNotReadAnyMoreIsNotSentTo) {
  const UsedPair both;
  ASSERT_EQ(::shutdown(both.server.get(), SHUT_RDWR), 0);
  EXPECT_EQ(send(both.client.get(), "x"), "(EPIPE)");
  const Pair pair;
  ASSERT_EQ(::shutdown(pair.server.get(), SHUT_RD), 0);
  EXPECT_EQ(send(pair.client.get(), "x"), "(EPIPE)");
  ASSERT_EQ(send(pair.server.get(), "the other way"), "13");
  EXPECT_EQ(receive(pair.client.get()), "the other way");
}

// --- pairs

TEST(UnixStream, APairOfOneProcessTalks) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  Pair pair(false);
  pair.client = UniqueFd(fds[0]);
  pair.server = UniqueFd(fds[1]);
  pair.talk(200);
  pair.put("to the end");
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get()), "to the end");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(UnixStream, APairIsItsProgramsStandardStreams) {
  for (int round = 0; round < 3; ++round) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd own(fds[0]);
    UniqueFd other(fds[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(other.get(), STDIN_FILENO);
      ::dup2(other.get(), STDOUT_FILENO);
      ::execl("/bin/cat", "cat", nullptr);
      ::_exit(1);
    }
    other.reset();
    for (int i = 0; i < 300; ++i) {
      ASSERT_EQ(send(own.get(), "line\n"), "5");
      ASSERT_EQ(receive(own.get()), "line\n");
    }
    ASSERT_EQ(::shutdown(own.get(), SHUT_WR), 0);
    EXPECT_EQ(receive(own.get()), "(end)");
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

// --- how much it keeps

TEST(UnixStream, KeepsNoLessThanTheKernelDoes) {
  const auto fill = [](int fd, std::size_t piece) {
    const std::string text(piece, 'f');
    std::size_t sent = 0;
    for (ssize_t now = 0; (now = ::send(fd, text.data(), piece, MSG_DONTWAIT)) > 0;)
      sent += static_cast<std::size_t>(now);
    EXPECT_EQ(errno, EAGAIN);
    return sent;
  };
  for (const std::size_t piece : {std::size_t{100}, std::size_t{4096}, std::size_t{100'000}}) {
    Pair pair;
    const std::size_t kept = fill(pair.client.get(), piece);
    EXPECT_GE(kept, std::size_t{20'000});
    std::size_t read = 0;
    while (read < kept) {
      const std::string part = receive(pair.server.get(), 65'536, MSG_DONTWAIT);
      ASSERT_NE(part[0], '(') << part << " at " << read << " of " << kept;
      read += part.size();
    }
    EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
    EXPECT_EQ(read, kept);
  }
}

// Who waits for all looks for an error when there is nothing more, and says nothing of it.
// The time is of each buffer of the kernel's, not of the whole call.
TEST(UnixStream, ASendGoesOnAsLongAsSomeIsReadInItsTime) {
  const Pair pair;
  const timeval limit{.tv_sec = 1, .tv_usec = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string much(3 << 19, 'x');
  std::thread reader([&] {
    for (std::size_t got = 0; got < much.size();) {
      const std::string more = receive(pair.server.get(), 65'536);
      if (more.front() == '(') break;
      got += more.size();
      ::usleep(150'000);
    }
  });
  EXPECT_EQ(send(pair.client.get(), much), std::to_string(much.size()));
  ::shutdown(pair.client.get(), SHUT_WR);
  reader.join();
}

TEST(UnixStream, AResetIsLostOnWhoWaitsForAll) {
  for (const int more : {0, int{MSG_DONTWAIT}}) {
    Pair pair;
    pair.put("part");
    EXPECT_EQ(send(pair.server.get(), "unread"), "6");
    pair.client.reset();
    EXPECT_EQ(receive(pair.server.get(), 100, MSG_WAITALL | more), "part");
    EXPECT_EQ(receive(pair.server.get()), "(end)");
  }
}

// The same where what is unread lies in memory, of which the kernel knows nothing.
TEST(UnixStream, AResetThatTheKernelDoesNotKnowIsLostOnWhoWaitsForAll) {
  for (const int more : {0, int{MSG_DONTWAIT}}) {
    UsedPair pair;
    std::swap(pair.client, pair.server);  // so that what the other sends lies in memory
    pair.put("part");
    EXPECT_EQ(send(pair.server.get(), "unread"), "6");
    if (preloaded()) {
      EXPECT_FALSE(readable_for_kernel(pair.client.get()));
    }
    pair.client.reset();
    EXPECT_EQ(receive(pair.server.get(), 100, MSG_WAITALL | more), "part");
    EXPECT_EQ(receive(pair.server.get()), "(end)");
  }
}

}  // namespace
}  // namespace farcall::preload
