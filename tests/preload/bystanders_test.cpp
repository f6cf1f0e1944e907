// SPDX-License-Identifier: Apache-2.0
//
// Children that end without a word, programs that are spawned, and lists of requests: what the
// library has to do before and after them. These tests run as those of contract_test.cpp do.
#include <aio.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>

#include "calls.hpp"
#include "children.hpp"
#include "farcall/memory.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

extern char** environ;

namespace farcall::preload {
namespace {

int return_at_once(void*) { return 0; }

pid_t clone_that_returns() {
  constexpr std::size_t kStack = std::size_t{1} << 20;
  static std::byte* const stack = static_cast<std::byte*>(::mmap(
      nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
  return ::clone(return_at_once, stack + kStack, SIGCHLD, nullptr);
}
pid_t child_that_ends_by_number() {
  const pid_t child = ::fork();
  if (child == 0) ::syscall(SYS_exit_group, 0);
  return child;
}
pid_t child_that_ends() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  return child;
}

// It held the connection for a moment only, before memory was shared.
TEST(TcpBystanders, WhoHaveEndedAreNoHindrance) {
  for (const auto& make : {child_that_ends, child_that_ends_by_number, clone_that_returns}) {
    const Pair pair(false);
    pair.talk(1);
    const pid_t child = make();
    ASSERT_GT(child, 0);
    EXPECT_EQ(exit_status(child), 0);
    const int before = stream_mappings();
    pair.talk(40);
    EXPECT_EQ(stream_mappings() - before, preloaded() ? 2 : 0);
  }
}

// A child that holds it from the beginning has no part in memory that its parent would share later.
TEST(TcpBystanders, WhoHoldAConnectionReadWhatComes) {
  const Pair pair(false);
  const Steps steps;
  const pid_t child = in_child([&] {
    steps.await();
    pollfd wait{.fd = pair.server.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&wait, 1, 5000), 1) << "nothing came";
    EXPECT_EQ(receive(pair.server.get(), 100, MSG_DONTWAIT), "for the child");
  });
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  for (int i = 0; i < 60; ++i) {
    pair.put("x");
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
    EXPECT_EQ(receive(pair.server.get()), "x");
    EXPECT_EQ(send(pair.server.get(), "y"), "1");
    EXPECT_EQ(receive(pair.client.get()), "y");
  }
  pair.put("for the child");
  steps.tell();
  EXPECT_EQ(exit_status(child), 0);
}

// The descriptor itself is closed in it; what is left is the copy, of which nobody is told but by
// the list of what is to be done.
TEST(TcpBystanders, ASpawnedProgramReadsWhatIsUnread) {
  const UsedPair pair;
  pair.put("text");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  posix_spawn_file_actions_t actions;
  ASSERT_EQ(::posix_spawn_file_actions_init(&actions), 0);
  ASSERT_EQ(::posix_spawn_file_actions_adddup2(&actions, pair.server.get(), STDIN_FILENO), 0);
  ASSERT_EQ(::posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO), 0);
  char name[] = "head";
  char option[] = "-c4";
  char* const arguments[] = {name, option, nullptr};
  pid_t child = -1;
  ASSERT_EQ(::posix_spawn(&child, "/usr/bin/head", &actions, nullptr, arguments, environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  in.reset();
  pollfd said{.fd = out.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(kernel(SYS_poll, &said, 1, 10'000), 1) << "it waits";
  ::kill(child, SIGKILL);
  char text[8] = {};
  EXPECT_EQ(::read(out.get(), text, sizeof text - 1), 4);
  EXPECT_STREQ(text, "text");
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

TEST(TcpBystanders, TheLastRequestOfAListFindsWhatIsUnread) {
  const UsedPair pair;
  pair.put("unread");
  char bytes[16] = {};
  aiocb request{};
  request.aio_fildes = pair.server.get();
  request.aio_buf = bytes;
  request.aio_nbytes = sizeof bytes;
  request.aio_lio_opcode = LIO_READ;
  aiocb* const all[] = {&request};
  ASSERT_EQ(::lio_listio(LIO_NOWAIT, all, 1, nullptr), 0);
  const aiocb* const waited[] = {&request};
  const timespec longest{.tv_sec = 10, .tv_nsec = 0};
  ASSERT_EQ(::aio_suspend(waited, 1, &longest), 0) << errno_name();
  EXPECT_EQ(::aio_return(&request), 6);
  EXPECT_STREQ(bytes, "unread");
}

// By either of the functions that a program calls, whatever its compiler makes of the format.
int print(bool checked, int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  using Print = int(int, const char*, va_list);
  using Checked = int(int, int, const char*, va_list);
  const int written =
      checked ? reinterpret_cast<Checked*>(::dlsym(RTLD_DEFAULT, "__vdprintf_chk"))(fd, 1, format,
                                                                                    arguments)
              : reinterpret_cast<Print*>(::dlsym(RTLD_DEFAULT, "vdprintf"))(fd, format, arguments);
  va_end(arguments);
  return written;
}

TEST(TcpBystanders, WhatIsPrintedStandsBehindWhatIsInMemory) {
  for (const bool checked : {false, true}) {
    const UsedPair pair;
    const timeval longest{.tv_sec = 10, .tv_usec = 0};
    ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest),
              0);
    pair.put("one ");
    EXPECT_EQ(print(checked, pair.client.get(), "%s %d ", "two", 3), 6);
    pair.put("four");
    EXPECT_EQ(receive(pair.server.get(), 14, MSG_WAITALL), "one two 3 four");
  }
}

// The peer has written past its library, whatever it was, and ended.
TEST(TcpBystanders, WhatWasSentUnseenIsReadBeforeTheEnd) {
  const UsedPair pair;
  const int fd = pair.server.get();
  ASSERT_EQ(kernel(SYS_sendto, pair.client.get(), "unseen", 6, MSG_NOSIGNAL, nullptr, 0), 6);
  ASSERT_EQ(kernel(SYS_shutdown, pair.client.get(), SHUT_WR), 0);
  std::string got = "(EAGAIN)";
  for (int i = 0; i < 10'000 && got == "(EAGAIN)"; ++i) {
    got = receive(fd, 100, MSG_DONTWAIT);
    if (got == "(EAGAIN)") ::usleep(100);
  }
  EXPECT_EQ(got, "unseen");
  EXPECT_EQ(receive(fd, 100, MSG_DONTWAIT), "(end)");
}

}  // namespace
}  // namespace farcall::preload
