// SPDX-License-Identifier: Apache-2.0
//
// What becomes of bytes that nobody has read: when their receiver goes where the library cannot
// follow it, when it waits in ways that the library does not see, and when it dies. The tests run
// twice, as they are and with the library preloaded; the kernel's answer is the right one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "connected.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

extern void (*when_last_library_ends)();  // last_library.cpp

namespace farcall::preload {
namespace {

int read_at_last = -1;

// Nothing is left unread then.
TEST(Ending, ADestructorOfALibraryReadsTheRest) {
  const Connected connected = with_child([](int peer) {
    read_at_last = peer;
    when_last_library_ends = [] {
      char rest[8];
      require(::recv(read_at_last, rest, sizeof rest, MSG_WAITALL) == sizeof rest, "the rest");
    };
    ::usleep(100'000);  // the rest is in memory by now
    std::exit(0);
  });
  ASSERT_EQ(::send(connected.fd.get(), "the rest", 8, MSG_NOSIGNAL), 8);
  EXPECT_EQ(connected.child->wait(), 0);
  char byte;
  EXPECT_EQ(::recv(connected.fd.get(), &byte, 1, 0), 0) << std::strerror(errno);
}

// As sandboxes have it: poll() is refused then.
TEST(Ending, WhoMayOpenNothingMoreSendsAll) {
  constexpr std::size_t kAll = 20 << 20;
  const Connected connected = with_child([](int peer) {
    std::string text(65'536, '\0');
    for (std::size_t got = 0; got < kAll;) {
      const ssize_t part = ::recv(peer, text.data(), text.size(), 0);
      require(part > 0, "receive");
      got += static_cast<std::size_t>(part);
      if (got < kAll / 4) ::usleep(500);
    }
  });
  const std::string all(kAll, 'a');
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const ssize_t sent = ::send(connected.fd.get(), all.data(), kAll, MSG_NOSIGNAL);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(sent, static_cast<ssize_t>(kAll));
  if (sent == static_cast<ssize_t>(kAll)) {
    EXPECT_EQ(connected.child->wait(), 0);
  }
}

// --- leaving

struct Way {
  const char* name;
  void (*go)(int fd);
};
void set_option(int fd, int option, int value) {
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, option, &value, sizeof value), 0);
}
const Way kWays[] = {
    {"system", [](int) { EXPECT_EQ(::system("true"), 0); }},
    {"popen", [](int) { EXPECT_EQ(::pclose(::popen("true", "r")), 0); }},
    {"dprintf", [](int fd) { EXPECT_EQ(::dprintf(fd, "%d", 7), 1); }},
    {"low_water_mark", [](int fd) { set_option(fd, SO_RCVLOWAT, 2); }},
    {"asynchronous",
     [](int fd) { EXPECT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0); }},
    {"duplicate",
     [](int fd) {
       const UniqueFd kept(::dup(STDIN_FILENO));
       EXPECT_EQ(::dup2(fd, STDIN_FILENO), STDIN_FILENO);
       EXPECT_EQ(::dup2(kept.get(), STDIN_FILENO), STDIN_FILENO);
     }},
};

class Leaving : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Leaving, InTheMiddleOfAStreamLosesNothing) {
  ::signal(SIGIO, SIG_IGN);
  constexpr std::size_t kAll = 6 << 20;
  const Connected connected = with_child([](int peer) {
    send_stream(peer, 0, kAll, 50'000);
    ::shutdown(peer, SHUT_WR);
    char byte = 0;
    while (::recv(peer, &byte, 1, 0) > 0) continue;
  });
  const std::size_t done = expect_stream(connected.fd.get(), 0, 1 << 20);
  // Ring and kernel fill up.
  ::usleep(50'000);
  kWays[GetParam()].go(connected.fd.get());
  EXPECT_EQ(expect_stream(connected.fd.get(), done, kAll), kAll);
  char byte = 0;
  EXPECT_EQ(::recv(connected.fd.get(), &byte, 1, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, Leaving, ::testing::Range(std::size_t{0}, std::size(kWays)),
                         [](const auto& tested) { return kWays[tested.param].name; });

// What the peer does when it has sent all.
const char* const kStates[] = {"half_closed", "closed", "ended", "stopped", "asleep", "waiting"};

class Successor : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Successor, WithoutTheLibraryReadsWhatIsLeft) {
  const std::string state = kStates[GetParam()];
  // More than the ring holds, or as many such pieces as the kernel keeps of a unix stream.
  const std::size_t many = over_unix() ? 60'000 : 400'000;
  for (const std::size_t all : {std::size_t{3000}, many}) {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const UniqueFd ready_in(ready[0]);
    const UniqueFd ready_out(ready[1]);
    const Connected connected = with_child([&](int peer) {
      send_stream(peer, 0, all, 1000);
      if (state == "half_closed") ::shutdown(peer, SHUT_WR);
      if (state == "closed") ::close(peer);
      require(::write(ready_out.get(), "", 1) == 1, "write");
      char byte = 0;
      if (state == "waiting") (void)::recv(peer, &byte, 1, 0);
      if (state == "ended") return;
      const timespec longer{.tv_sec = 50, .tv_nsec = 0};
      kernel(SYS_nanosleep, &longer, nullptr);
    });
    char byte = 0;
    ASSERT_EQ(::read(ready_in.get(), &byte, 1), 1);
    if (state == "stopped") {
      EXPECT_EQ(connected.child->kill(SIGSTOP), 0);
    }
    if (state == "ended") {
      EXPECT_EQ(connected.child->wait(), 0);
    }
    ASSERT_EQ(expect_stream(connected.fd.get(), 0, 500), 500u);
    int said[2];
    ASSERT_EQ(::pipe2(said, O_CLOEXEC), 0);
    const UniqueFd said_in(said[0]);
    UniqueFd said_out(said[1]);
    Child successor([&] {
      require(::dup2(connected.fd.get(), STDIN_FILENO) == 0, "dup2");
      require(::dup2(said_out.get(), STDOUT_FILENO) == 1, "dup2");
      const std::string size = std::to_string(all - 500);
      const char* const nothing[] = {nullptr};
      ::execle("/usr/bin/head", "head", "-c", size.c_str(), nullptr, nothing);
      require(false, "execute head");
    });
    said_out.reset();
    EXPECT_EQ(expect_stream(said_in.get(), 500, all), all) << state;
    EXPECT_EQ(successor.wait(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Peers, Successor, ::testing::Range(std::size_t{0}, std::size(kStates)),
                         [](const auto& tested) { return kStates[tested.param]; });

// All ways of executing a program, which inherits the connection.
const struct {
  const char* name;
  int (*go)(const char* const* arguments);
} kExecutions[] = {
    {"execv", [](const char* const* all) { return ::execv("/bin/sh", const_cast<char**>(all)); }},
    {"execvp", [](const char* const* all) { return ::execvp("sh", const_cast<char**>(all)); }},
    {"execve",
     [](const char* const* all) { return ::execve("/bin/sh", const_cast<char**>(all), environ); }},
    {"execvpe",
     [](const char* const* all) { return ::execvpe("sh", const_cast<char**>(all), environ); }},
    {"fexecve",
     [](const char* const* all) {
       const int file = ::open("/bin/sh", O_RDONLY | O_CLOEXEC);
       return ::fexecve(file, const_cast<char**>(all), environ);
     }},
    {"execveat",
     [](const char* const* all) {
       return ::execveat(AT_FDCWD, "/bin/sh", const_cast<char**>(all), environ, 0);
     }},
    {"execl",
     [](const char* const* all) { return ::execl("/bin/sh", "sh", "-c", all[2], nullptr); }},
    {"execlp", [](const char* const* all) { return ::execlp("sh", "sh", "-c", all[2], nullptr); }},
    {"execle",
     [](const char* const* all) {
       return ::execle("/bin/sh", "sh", "-c", all[2], nullptr, environ);
     }},
    {"SYS_execve",
     [](const char* const* all) {
       return static_cast<int>(::syscall(SYS_execve, "/bin/sh", all, environ));
     }},
    {"SYS_execveat",
     [](const char* const* all) {
       return static_cast<int>(::syscall(SYS_execveat, AT_FDCWD, "/bin/sh", all, environ, 0));
     }},
};

class Executed : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Executed, FindsWhatIsUnread) {
  const Steps steps;
  const Connected connected = with_child([&](int peer) {
    for (;;) {
      steps.await();
      require(::send(peer, "unread", 6, MSG_NOSIGNAL) == 6, "send");
      steps.done();
    }
  });
  const int fd = connected.fd.get();
  steps.step();
  // On a busy machine it may have found its reader asleep, to whom the kernel brings it.
  for (int i = 0; i < 1000 && preloaded() && readable_for_kernel(fd); ++i) {
    char bytes[6];
    ASSERT_EQ(::recv(fd, bytes, sizeof bytes, 0), 6);
    steps.step();
  }
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(fd)) << "not in memory";
  }
  int said[2];
  ASSERT_EQ(::pipe2(said, O_CLOEXEC), 0);
  const UniqueFd said_in(said[0]);
  UniqueFd said_out(said[1]);
  Child successor([&] {
    require(::dup2(said_out.get(), STDOUT_FILENO) == 1, "dup2");
    const std::string script = "head -c 6 <&" + std::to_string(fd);
    const char* const arguments[] = {"sh", "-c", script.c_str(), nullptr};
    kExecutions[GetParam()].go(arguments);
    require(false, "execute");
  });
  said_out.reset();
  std::string text(6, '.');
  std::size_t got = 0;
  for (ssize_t part = 1; part > 0; got += static_cast<std::size_t>(part)) {
    part = ::read(said_in.get(), text.data() + got, text.size() - got);
    ASSERT_GE(part, 0);
  }
  EXPECT_EQ(text, "unread");
  EXPECT_EQ(successor.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, Executed, ::testing::Range(std::size_t{0}, std::size(kExecutions)),
                         [](const auto& tested) { return kExecutions[tested.param].name; });

TEST(Leaving, GoesOnAtOnceWithManyConnections) {
  constexpr std::size_t kSent = 100'000;
  std::vector<Connected> all;
  for (int i = 0; i < 12; ++i)
    all.push_back(with_child([](int peer) {
      send_stream(peer, 0, kSent, 5000);
      // Busy with something else.
      for (;;) kernel(SYS_sched_yield);
    }));
  ::usleep(20'000);
  EXPECT_EQ(::system("true"), 0);
  for (const Connected& one : all) EXPECT_EQ(expect_stream(one.fd.get(), 0, kSent), kSent);
}

// As event loops do that are told of room once.
void send_stream_edge_triggered(int fd, std::size_t to) {
  require(::fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLOUT | EPOLLET, .data = {}};
  require(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
  for (std::size_t from = 0; from < to;) {
    const std::string text = bytes_at(from, std::min<std::size_t>(20'000, to - from));
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      require(::epoll_wait(set, &event, 1, 20'000) == 1, "nobody has told of room");
      continue;
    }
    require(sent > 0, "send the stream");
    from += static_cast<std::size_t>(sent);
  }
}

// A program that is started inherits the connection, of which another thread receives meanwhile,
// and sleeps in between.
TEST(Leaving, WhileAnotherThreadReceivesLosesNothing) {
  constexpr std::size_t kSize = 3'000'000;
  for (int round = 0; round < 12 && !testing::Test::HasFailure(); ++round) {
    const Connected peer = with_child([](int fd) { send_stream_edge_triggered(fd, kSize); });
    std::atomic<std::size_t> come{0};
    std::thread receiver([&] {
      while (come < kSize) {
        const std::size_t before = come;
        const std::size_t here =
            expect_stream(peer.fd.get(), before, std::min(before + 20'000, kSize));
        if (here == before) break;
        come = here;
      }
    });
    const std::size_t when = kSize / 16 * static_cast<std::size_t>(round + 1);
    while (come < when && !testing::Test::HasFailure()) ::sched_yield();
    pid_t started = 0;
    const char* arguments[] = {"true", nullptr};
    EXPECT_EQ(::posix_spawn(&started, "/bin/true", nullptr, nullptr, const_cast<char**>(arguments),
                            environ),
              0);
    EXPECT_EQ(::waitpid(started, nullptr, 0), started);
    receiver.join();
    EXPECT_EQ(come, kSize);
    EXPECT_EQ(peer.child->wait(), 0);
  }
}

TEST(Leaving, KeepsTheEndOfABorrowedSocket) {
  // The peer is killed after it was helped: nobody else may hold its socket.
  const Connected connected = with_child([](int peer) {
    send_stream(peer, 0, 3000, 1000);
    for (;;) kernel(SYS_sched_yield);
  });
  ::usleep(20'000);
  EXPECT_EQ(::system("true"), 0);
  EXPECT_EQ(expect_stream(connected.fd.get(), 0, 3000), 3000u);
  EXPECT_EQ(connected.child->kill(SIGKILL), 0);
  char byte = 0;
  EXPECT_LE(::recv(connected.fd.get(), &byte, 1, 0), 0);
}

TEST(Leaving, IsPossibleForBothThoughOneHasShutDown) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd told(ends[0]);
  const UniqueFd tell(ends[1]);
  const Connected connected = with_child([&](int peer) {
    char byte = 0;
    require(::recv(peer, &byte, 1, MSG_PEEK) == 1, "recv");
    send_stream(peer, 0, 3000, 1000);
    set_option(peer, SO_RCVLOWAT, 2);
    require(::shutdown(peer, SHUT_WR) == 0, "shutdown");
    require(::write(tell.get(), "", 1) == 1, "write");
    require(expect_stream(peer, 0, 1000) == 1000, "receive what was given back");
  });
  send_stream(connected.fd.get(), 0, 1000, 1000);
  char byte = 0;
  ASSERT_EQ(::read(told.get(), &byte, 1), 1);
  set_option(connected.fd.get(), SO_RCVLOWAT, 2);
  EXPECT_EQ(expect_stream(connected.fd.get(), 0, 3000), 3000u);
  EXPECT_EQ(::recv(connected.fd.get(), &byte, 1, 0), 0);
  EXPECT_EQ(connected.child->wait(), 0);
}

// A sender that is told that its peer sends nothing more goes over to the kernel. What it has put
// into memory before must not stand in front of that there: nobody could put it there any more.
TEST(Leaving, OfWhoHasShutDownLosesNothingOfAPeerThatHasFinished) {
  const UsedPair pair;
  ASSERT_EQ(::shutdown(pair.server.get(), SHUT_WR), 0);
  EXPECT_EQ(receive(pair.client.get()), "(end)");
  std::string sent;
  for (int i = 0; i < 150; ++i) {  // no more than the kernel holds
    const std::string text = std::to_string(i) + " ";
    pair.put(text);
    sent += text;
  }
  ASSERT_EQ(::shutdown(pair.client.get(), SHUT_WR), 0);
  set_option(pair.server.get(), SO_RCVLOWAT, 2);
  std::string got;
  for (std::string part; (part = receive(pair.server.get())) != "(end)"; got += part)
    ASSERT_NE(part[0], '(') << part;
  EXPECT_EQ(got, sent);
}

// What it has left in memory nobody can send any more: that is no end of the stream.
TEST(Leaving, TheDeadLosesWhatIsUnreadWithAReset) {
  const Steps steps;
  const Connected connected = with_child([&](int peer) {
    require(::send(peer, "unread", 6, MSG_NOSIGNAL) == 6, "send");
    steps.done();
    steps.await();
  });
  const int fd = connected.fd.get();
  steps.await_done();
  const bool in_memory = preloaded() && !readable_for_kernel(fd);
  EXPECT_EQ(connected.child->kill(SIGKILL), 0);
  connected.child->wait();
  int on = 1;
  ASSERT_EQ(::ioctl(fd, FIOASYNC, &on), 0);
  EXPECT_EQ(receive(fd), in_memory ? "(ECONNRESET)" : "unread");
}

// --- waiting

constexpr timespec kLong{.tv_sec = 10, .tv_nsec = 0};

// Waits by a system call that no library sees.
bool wait_unseen(int fd) {
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  timespec time = kLong;
  return kernel(SYS_ppoll, &look, 1, &time, nullptr, kKernelMaskSize) == 1;
}

void answer_unseen(int fd, int rounds, bool until_empty) {
  char bytes[256];
  for (int i = 0; i < rounds; ++i) {
    require(wait_unseen(fd), "nobody told of bytes");
    if (until_empty) {
      ssize_t got = 0;
      bool any = false;
      while ((got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) any = true;
      require(any, "told of nothing");
    } else {
      require(::recv(fd, bytes, 64, MSG_WAITALL) == 64, "recv");
    }
    require(::send(fd, bytes, 64, MSG_NOSIGNAL) == 64, "send");
  }
}

TEST(UnseenWaitOnASocket, IsEndedWhenThePeerWaitsInACall) {
  for (const bool until_empty : {false, true}) {
    const Connected connected =
        with_child([&](int peer) { answer_unseen(peer, 300, until_empty); });
    char bytes[64] = {};
    for (int i = 0; i < 300; ++i) {
      ASSERT_EQ(::send(connected.fd.get(), bytes, 64, MSG_NOSIGNAL), 64);
      ASSERT_EQ(::recv(connected.fd.get(), bytes, 64, MSG_WAITALL), 64) << i;
    }
    EXPECT_EQ(connected.child->wait(), 0);
  }
}

TEST(UnseenWaitOnASocket, IsEndedWhenBothWaitSoAndLookUntilNothingIsLeft) {
  const Connected connected = with_child([](int peer) {
    ::fcntl(peer, F_SETFL, O_NONBLOCK);
    answer_unseen(peer, 300, true);
  });
  ::fcntl(connected.fd.get(), F_SETFL, O_NONBLOCK);
  char bytes[64] = {};
  EXPECT_LT(::recv(connected.fd.get(), bytes, 64, 0), 0);
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(::send(connected.fd.get(), bytes, 64, MSG_NOSIGNAL), 64);
    ASSERT_TRUE(wait_unseen(connected.fd.get())) << i;
    ASSERT_EQ(::recv(connected.fd.get(), bytes, 64, 0), 64);
    ASSERT_LE(::recv(connected.fd.get(), bytes, 64, 0), 0);
  }
  EXPECT_EQ(connected.child->wait(), 0);
}

// --- dying

// The peer goes at every moment from when the bytes are sent until after their sender sleeps.
void expect_resets(void (*go)(int)) {
  for (int round = 0; round < 150; ++round) {
    const Connected connected = with_child([&](int peer) {
      pollfd look{.fd = peer, .events = POLLIN, .revents = 0};
      while (::poll(&look, 1, 0) == 0) continue;
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(round);
      while (std::chrono::steady_clock::now() < end) continue;
      go(peer);
    });
    ASSERT_EQ(::send(connected.fd.get(), "unread", 6, MSG_NOSIGNAL), 6);
    char byte = 0;
    ASSERT_EQ(::recv(connected.fd.get(), &byte, 1, 0), -1) << round;
    ASSERT_EQ(errno, ECONNRESET) << round;
  }
}

TEST(PeerThatHasNotRead, IsMissedByAResetWhenItIsKilled) {
  expect_resets([](int) { kernel(SYS_kill, kernel(SYS_getpid), SIGKILL); });
}

TEST(PeerThatHasNotRead, IsMissedByAResetWhenItCloses) {
  expect_resets([](int peer) { ::close(peer); });
}

}  // namespace
}  // namespace farcall::preload
