// SPDX-License-Identifier: Apache-2.0
//
// What is told of messages over shared memory only, or differs over the module.
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "farcall/call.hpp"
#include "message/channel.hpp"
#include "message/status.hpp"

namespace farcall::message::test {
namespace {

TEST(MessageShared, ANameWhoseHolderTakesNobodyIsNotWaitedForLongerThanAsked) {
  const std::string name = unique_name("squatted");
  const std::string full = "farcall/message/" + std::to_string(::geteuid()) + "/" + name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, full.data(), full.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(listener, where, size), 0);
  ASSERT_EQ(::listen(listener, 0), 0);
  std::vector<int> others;
  do others.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  while (::connect(others.back(), where, size) == 0);
  ASSERT_EQ(errno, EAGAIN);
  const std::int64_t begun = now_ns();
  farcall_timeout(100'000'000);
  EXPECT_EQ(farcall_name_open(name.c_str()), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_GE(now_ns() - begun, 100'000'000);
  // Nobody waits for ever, whatever they have said.
  EXPECT_EQ(farcall_name_open(name.c_str()), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  for (const int fd : others) ::close(fd);
  ::close(listener);
}

// Threads of a process that is stopped and continued while they receive.
void stop_and_continue(int threads, bool with_handlers) {
  const std::string name = unique_name("stopped");
  const Shared<Event> ready;
  Child server([&] {
    for (const int signal : {SIGALRM, SIGUSR1})  // of the watchdog, of other tests
      if (!with_handlers) ::signal(signal, SIG_DFL);
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    const auto serve = [&] {
      char byte;
      const std::int64_t id = farcall_receive(channel, &byte, 1, nullptr);
      EXPECT_GT(id, FARCALL_ONE_WAY) << std::strerror(errno);
      if (id > FARCALL_ONE_WAY) answer(id, 0);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(serve);
    ready->happens();
    serve();
    for (std::thread& other : others) other.join();
  });
  ASSERT_TRUE(ready->wait());
  std::this_thread::sleep_for(50ms * kSlow);  // all of them sleep by now
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'S'; }));
  ASSERT_EQ(::kill(server.pid(), SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'T'; }));
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'S'; }));
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0) << std::strerror(errno);
  for (int i = 0; i < threads; ++i) EXPECT_EQ(send(connection, "x").error, 0);
  EXPECT_EQ(server.join(), 0);
  farcall_disconnect(connection);
}

TEST(MessageShared, AProcessThatWasStoppedReceivesOn) { stop_and_continue(1, false); }
TEST(MessageShared, SoItDoesWhereItHasHandlersOfSignals) { stop_and_continue(1, true); }
TEST(MessageShared, SoDoThreadsThatReceiveTogether) {
  FARCALL_SKIP_UNDER_ASAN("has handlers of its own, so that signals look caught");
  FARCALL_SKIP_UNDER_TSAN("has handlers of its own, so that signals look caught");
  stop_and_continue(3, false);
}

// The C library tells all threads of it by a signal, which no handler of the program ever sees.
void change_ids_during_calls(void (*handler)(int)) {
  in_child([handler] {
    for (const int signal : {SIGALRM, SIGUSR1}) ::signal(signal, handler);
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    std::atomic<int> ended{0};
    std::thread sender([&] {
      EXPECT_EQ(send(connection, "x").error, 0);
      ++ended;
    });
    std::int64_t id = 0;
    std::thread receiver([&] {
      char byte;
      id = farcall_receive(channel, &byte, 1, nullptr);
      EXPECT_EQ(farcall_receive(channel, &byte, 1, nullptr), 0) << std::strerror(errno);
      ++ended;
    });
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(10ms);
      EXPECT_EQ(::setgid(::getgid()), 0);
    }
    EXPECT_EQ(ended, 0);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), 0);
    receiver.join();
    EXPECT_EQ(answer(id, 0), 0);
    sender.join();
  });
}
TEST(MessageShared, AChangeOfIdsByAnotherThreadEndsNoCall) {
  FARCALL_SKIP_UNDER_ASAN("has handlers of its own, so that signals look caught");
  FARCALL_SKIP_UNDER_TSAN("has handlers of its own, so that signals look caught");
  change_ids_during_calls(SIG_DFL);
}
TEST(MessageShared, NorWhereTheProgramHasHandlers) {
  FARCALL_SKIP_UNDER_ASAN("has handlers of its own, so that signals look caught");
  FARCALL_SKIP_UNDER_TSAN("has handlers of its own, so that signals look caught");
  change_ids_during_calls([](int) {});
}

// A server that may raise its priority as far as its limits let it, and has no privilege beside
// that; or, where limits cannot be set, that has given its privileges up meanwhile.
TEST(MessageShared, WhoMayNotRaiseItByPrivilegeGetsItsOwnBackToo) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const sched_param real_time{.sched_priority = 7};
  const sched_param usual{.sched_priority = 0};
  if (::sched_setscheduler(0, SCHED_FIFO, &real_time) != 0)
    GTEST_SKIP() << "no permission for real time";
  ::sched_setscheduler(0, SCHED_OTHER, &usual);
  const std::string name = unique_name("limited");
  const Shared<Event> ready;
  Child server([&] {
    const rlimit limit{.rlim_cur = 50, .rlim_max = 50};
    const bool limited = ::setrlimit(RLIMIT_RTPRIO, &limit) == 0;
    if (limited) {
      ASSERT_TRUE(become(kNobody));
    }
    const int channel = farcall_name_attach(name.c_str(), FARCALL_INHERIT, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    const int own = farcall_priority();
    ready->happens();
    const Message message = receive(channel);
    EXPECT_EQ(message.info.priority, 47);
    EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_FIFO);
    in_child([] { EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_OTHER); });
    if (!limited) {
      ASSERT_TRUE(become(kNobody));
    }
    answer(message.id, 0);
    EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_OTHER);
    EXPECT_EQ(farcall_priority(), own);
  });
  ASSERT_TRUE(ready->wait());
  std::thread([&] {
    ASSERT_EQ(::sched_setscheduler(0, SCHED_FIFO, &real_time), 0);
    farcall_priority_changed();
    int connection = farcall_name_open((std::to_string(kNobody) + "/" + name).c_str());
    if (connection < 0) connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "x").error, 0);
  }).join();
  EXPECT_EQ(server.join(), 0);
}

TEST(MessageShared, SaysHowMuchNobodyHasAskedFor) {
  const std::string name = unique_name("unsolicited");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  const int connection = farcall_connect(channel);
  ASSERT_GT(connection, 0);
  const auto says = [&](const char* what) { return says_of(name, what); };
  EXPECT_TRUE(says(" unsolicited 0\n"));
  const UniqueFd way_in(::dup(farcall_connection_descriptor(connection)));
  send_descriptors(way_in.get(), std::array{0, 0}, kFirstOwnPurpose + 5);
  EXPECT_TRUE(eventually([&] { return says(" unsolicited 2\n"); }));
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

// That a server's table is full is no want of its client's.
TEST(MessageShared, AServerWithoutDescriptorsIsToBeTriedAgain) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const std::string name = unique_name("full");
  const Shared<std::atomic<int>> more;
  const Shared<Event> next;
  const Shared<Event> ready;
  constexpr int kMost = 6;
  *more = 0;
  Child server([&] {
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    ASSERT_GT(channel, 0);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const int first = ::dup(0);
    ::close(first);
    for (; *more < kMost; ++*more) {
      limit.rlim_cur = static_cast<rlim_t>(first + *more);
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      ready->happens();
      ASSERT_TRUE(next->wait());
    }
  });
  for (int i = 0; i < kMost; ++i) {
    ASSERT_TRUE(ready->wait());
    const int connection = farcall_name_open(name.c_str());
    if (connection < 0) {
      EXPECT_EQ(errno, EAGAIN) << i << ": " << std::strerror(errno);
    } else {
      EXPECT_GT(i, 1) << "there was no room for one";
      farcall_disconnect(connection);
    }
    next->happens();
  }
  EXPECT_EQ(server.join(), 0);
}

TEST(MessageShared, AConnectionThatCouldNotBeMadeIsNone) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const std::string name = unique_name("full");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  EXPECT_TRUE(says_of(name, " connections 0 "));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(::dup(0));
  // One that is there, of the two that it takes.
  const rlimit few{.rlim_cur = static_cast<rlim_t>(next.get()) + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const int connection = farcall_connect(channel);
  const int error = errno;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connection, -1);
  EXPECT_EQ(error, EMFILE);
  EXPECT_TRUE(says_of(name, " connections 0 "));
  const int other = farcall_connect(channel);
  EXPECT_GT(other, 0);
  EXPECT_TRUE(says_of(name, " connections 1 "));
  farcall_disconnect(other);
  EXPECT_TRUE(eventually([&] { return says_of(name, " connections 0 "); }));
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

TEST(MessageShared, WhatIsNoConnectionStaysItsOwners) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(farcall_adopt(file.get()), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_GE(::fcntl(file.get(), F_GETFD), 0);
  EXPECT_EQ(farcall_adopt(1'000'000), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(MessageShared, NothingIsNoName) {
  EXPECT_EQ(farcall_name_open(nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_name_attach(nullptr, 0, 0600), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_channel_status(nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(MessageShared, AModeHasNothingButPermissions) {
  const std::string name = unique_name("mode");
  for (const mode_t mode : {mode_t{01000}, mode_t{02600}, mode_t{07777}}) {
    EXPECT_EQ(farcall_name_attach(name.c_str(), 0, mode), -1);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST(MessageShared, AnErrorIsAnErrno) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").error, EHWPOISON); });
  const Message message = receive(channel.id);
  for (const int none : {0, -1, EHWPOISON + 1}) {
    EXPECT_EQ(farcall_error(message.id, none), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(farcall_error(message.id, EHWPOISON), 0);
  client.join();
}

TEST(MessageShared, APulseSaysThroughWhichConnectionItCame) {
  Channel channel;
  ASSERT_EQ(farcall_pulse(channel.connection, 0, 1, 2), 0);
  const Message pulse = receive(channel.id);
  EXPECT_NE(pulse.info.connection, 0);
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.info.connection, pulse.info.connection);
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
}

TEST(MessageShared, AStatusIsNotBelowZero) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, INT_MAX); });
  const Message message = receive(channel.id);
  for (const int none : {-1, INT_MIN}) {
    EXPECT_EQ(farcall_reply(message.id, none, nullptr, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(farcall_replyv(message.id, none, nullptr, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    farcall_timeout(0);
    EXPECT_EQ(farcall_reply_receive(message.id, none, nullptr, 0, channel.id, nullptr, 0, nullptr),
              -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(answer(message.id, INT_MAX), 0);
  client.join();
}

// Nothing of such a buffer is touched: it is address space, and nobody's memory.
TEST(MessageShared, ABufferMayBeAsLongAsTheLongestMessage) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  constexpr std::size_t kMost = FARCALL_MESSAGE_MAX;
  const Mapping space(
      ::mmap(nullptr, kMost + 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
      kMost + 1);
  ASSERT_NE(space.data(), MAP_FAILED);
  Channel channel;
  std::thread client([&] {
    EXPECT_EQ(farcall_send(channel.connection, "x", 1, space.data(), kMost + 1), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    EXPECT_EQ(farcall_send(channel.connection, nullptr, 0, space.data(), kMost), 7);
  });
  farcall_info info{};
  EXPECT_EQ(farcall_receive(channel.id, space.data(), kMost + 1, &info), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  farcall_timeout(std::chrono::nanoseconds(kPatience).count());
  const std::int64_t id = farcall_receive(channel.id, space.data(), kMost, &info);
  ASSERT_GT(id, FARCALL_ONE_WAY);
  EXPECT_EQ(info.room, kMost);
  EXPECT_EQ(answer(id, 7), 0);
  client.join();
}

TEST(MessageShared, SoManyBuffersMayBeGivenAsTheKernelTakes) {
  Channel channel;
  std::vector<char> bytes(IOV_MAX + 1, 'x');
  std::vector<iovec> each;
  for (char& byte : bytes) each.push_back({.iov_base = &byte, .iov_len = 1});
  std::thread client([&] {
    EXPECT_EQ(farcall_sendv(channel.connection, each.data(), IOV_MAX + 1, nullptr, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(farcall_sendv(channel.connection, each.data(), IOV_MAX, nullptr, 0), 0);
  });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.text, std::string(IOV_MAX, 'x'));
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
}

TEST(MessageShared, AReplyHasSoManyWritesAtMost) {
  constexpr int kMost = 4096;
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").text.substr(0, 2), "ab"); });
  const Message message = receive(channel.id);
  EXPECT_EQ(farcall_write(message.id, 0, "a", 1), 1);
  for (int i = 1; i < kMost; ++i) ASSERT_EQ(farcall_write(message.id, 1, "b", 1), 1) << i;
  EXPECT_EQ(farcall_write(message.id, 1, "c", 1), -1);
  EXPECT_EQ(errno, ENOBUFS);
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
}

// Each of them goes by itself where something between them has not been written.
TEST(MessageShared, AReplyWithGapsMayHaveAsManyWritesAndTheAnswer) {
  constexpr std::size_t kMost = 4096;
  Channel channel;
  std::string buffer(2 * kMost + 2, '.');
  std::thread client([&] {
    EXPECT_EQ(farcall_send(channel.connection, "x", 1, buffer.data(), buffer.size()), 0);
  });
  const Message message = receive(channel.id);
  for (std::size_t i = 1; i <= kMost; ++i)
    ASSERT_EQ(farcall_write(message.id, 2 * i, "b", 1), 1) << i;
  EXPECT_EQ(answer(message.id, 0, "a"), 0);
  client.join();
  std::string expected = "a.";
  for (std::size_t i = 1; i <= kMost; ++i) expected += "b.";
  EXPECT_TRUE(buffer == expected);
}

// With gaps it needs room of the library's.
TEST(MessageShared, AReplyThatFindsNoRoomIsAWantOfMemory) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  Channel channel;
  Child client([&] {
    std::string buffer(1 << 20, '.');
    const auto ask = [&] {
      return farcall_send(channel.connection, "x", 1, buffer.data(), buffer.size());
    };
    ASSERT_EQ(ask(), 0);
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};  // less than is mapped
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    EXPECT_EQ(ask(), -1);
    EXPECT_EQ(errno, ENOMEM);
  });
  const std::string part(100'000, 'x');
  for (int i = 0; i < 2; ++i) {
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    EXPECT_EQ(farcall_write(message.id, 500'000, part.data(), part.size()), 100'000);
    EXPECT_EQ(answer(message.id, 0, part), 0);
  }
  EXPECT_EQ(client.join(), 0);
}

// Who has closed a connection does not want to know any more.
TEST(MessageShared, OfAConnectionThatWasClosedNoDeathIsTold) {
  const Channel own;
  const std::string name = unique_name("dies");
  NamedServer server(name, [](int) {
    for (;;) ::pause();
  });
  const int closed = farcall_name_open(name.c_str());
  const int open = farcall_name_open(name.c_str());
  ASSERT_GT(closed, 0);
  ASSERT_GT(open, 0);
  ASSERT_EQ(farcall_watch_death(closed, own.id, 7), 0);
  ASSERT_EQ(farcall_watch_death(open, own.id, 8), 0);
  EXPECT_EQ(farcall_disconnect(closed), 0);
  server.kill();
  EXPECT_EQ(receive(own.id).info.value, 8);
  EXPECT_EQ(receive(own.id, 4096, kGlance).error, ETIMEDOUT);
  farcall_disconnect(open);
}

// farcall-messages(7): words of FARCALL_ENGINE, of which the first use of a channel takes note.
TEST(MessageEngine, IsTheOneThatIsNamed) {
  const auto with = [](const char* word, int error) {
    in_child([&] {
      ASSERT_EQ(::setenv("FARCALL_ENGINE", word, 1), 0);
      errno = 0;
      if (error == 0) {
        EXPECT_STREQ(farcall_engine(), word);
        return;
      }
      EXPECT_EQ(farcall_engine(), nullptr);
      EXPECT_EQ(errno, error);
      errno = 0;
      EXPECT_EQ(farcall_channel_create(0), -1);
      EXPECT_EQ(errno, error);
    });
  };
  with("shared", 0);
  with("fast", EINVAL);
  with("kernel", ::access("/dev/stplr", F_OK) == 0 ? 0 : ENODEV);
}

}  // namespace
}  // namespace farcall::message::test
