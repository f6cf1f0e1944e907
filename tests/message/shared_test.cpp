// SPDX-License-Identifier: Apache-2.0
//
// What is told of messages over shared memory only, or differs over the module.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "farcall/call.hpp"
#include "message/channel.hpp"

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
  // Nobody waits for ever, whatever he has said.
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
  if (!door::test::is_root()) GTEST_SKIP() << "only root can become somebody else";
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
      ASSERT_TRUE(door::test::become(door::test::kNobody));
    }
    const int channel = farcall_name_attach(name.c_str(), FARCALL_INHERIT, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    const int own = farcall_priority();
    ready->happens();
    const Message message = receive(channel);
    EXPECT_EQ(message.info.priority, 47);
    EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_FIFO);
    if (!limited) {
      ASSERT_TRUE(door::test::become(door::test::kNobody));
    }
    answer(message.id, 0);
    EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_OTHER);
    EXPECT_EQ(farcall_priority(), own);
  });
  ASSERT_TRUE(ready->wait());
  std::thread([&] {
    ASSERT_EQ(::sched_setscheduler(0, SCHED_FIFO, &real_time), 0);
    farcall_priority_changed();
    int connection = farcall_name_open((std::to_string(door::test::kNobody) + "/" + name).c_str());
    if (connection < 0) connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "x").error, 0);
  }).join();
  EXPECT_EQ(server.join(), 0);
}

// Whether that is in what a channel of this user says of itself.
bool says_of(const std::string& name, std::string_view what) {
  std::array<char, 4000> text{};
  EXPECT_GT(farcall_channel_status((std::to_string(::geteuid()) + "/" + name).c_str(), text.data(),
                                   text.size() - 1),
            0);
  return std::string_view(text.data()).find(what) != std::string_view::npos;
}

TEST(MessageShared, SaysNothingOfABlockedClientThatHasDied) {
  const std::string name = unique_name("died");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
  ASSERT_GT(channel, 0);
  Child client([&] { send(farcall_name_open(name.c_str()), "x"); });
  const Message message = receive(channel);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_TRUE(says_of(name, "reply-blocked"));
  client.kill();
  EXPECT_EQ(receive(channel).info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_FALSE(says_of(name, "reply-blocked"));
  farcall_channel_destroy(channel);
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
  EXPECT_EQ(receive(own.id, 4096, door::test::kGlance).error, ETIMEDOUT);
  farcall_disconnect(open);
}

}  // namespace
}  // namespace farcall::message::test
