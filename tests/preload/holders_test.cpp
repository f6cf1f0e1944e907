// SPDX-License-Identifier: Apache-2.0
//
// Connections that several threads, processes and programs hold.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "contract.hpp"
#include "farcall/memory.hpp"
#include "harness/descriptors.hpp"
#include "preload/real.hpp"

extern char** environ;
// last_library.cpp, where the C library has none
extern "C" int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const* arguments,
                           char* const* environment);

namespace farcall::preload {
namespace {

TEST(Contract, TwoThreadsShareASocket) {
  const Pair pair;
  std::atomic<int> received{0};
  constexpr int kTotal = 100'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      char bytes[64];
      for (ssize_t got; (got = ::recv(pair.server.get(), bytes, sizeof bytes, 0)) > 0;)
        received += static_cast<int>(got);
    });
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i)
    senders.emplace_back([&] {
      for (int sent = 0; sent < kTotal / 2; sent += 10)
        EXPECT_EQ(send(pair.client.get(), "0123456789"), "10");
    });
  for (std::thread& thread : senders) thread.join();
  ::shutdown(pair.client.get(), SHUT_WR);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kTotal);
}

TEST(Contract, ADuplicateIsTheSameSocket) {
  Pair pair;
  UniqueFd copy(::dup(pair.server.get()));
  pair.put("hello world");
  EXPECT_EQ(receive(copy.get(), 6), "hello ");
  EXPECT_EQ(receive(pair.server.get()), "world");
  pair.server.reset();
  pair.put("still open");
  EXPECT_EQ(receive(copy.get()), "still open");
  EXPECT_EQ(send(copy.get(), "yes"), "3");
  EXPECT_EQ(receive(pair.client.get()), "yes");
  copy.reset();
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, ANumberThatIsReusedIsAnotherSocket) {
  const Pair pair;
  const Pair other;
  ASSERT_EQ(::dup2(other.server.get(), pair.server.get()), pair.server.get());
  other.put("other");
  EXPECT_EQ(receive(pair.server.get()), "other");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, AChildGoesOnWithTheConnection) {
  Pair pair;
  pair.put("for the child, for the parent");
  const pid_t child = in_child([&] {
    EXPECT_EQ(receive(pair.server.get(), 15), "for the child, ");
    EXPECT_EQ(send(pair.server.get(), "from the child"), "14");
  });
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(pair.server.get()), "for the parent");
  EXPECT_EQ(receive(pair.client.get()), "from the child");
  EXPECT_EQ(send(pair.server.get(), "still open"), "10");
  EXPECT_EQ(receive(pair.client.get()), "still open");
  pair.server.reset();
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, AServerThatForksForEachConnection) {
  const int before = stream_mappings();
  Pair pair(false);
  const pid_t child = in_child([&] {
    pair.client.reset();
    for (std::string text; (text = receive(pair.server.get())) != "(end)";)
      EXPECT_EQ(send(pair.server.get(), text), std::to_string(text.size()));
  });
  pair.server.reset();
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(send(pair.client.get(), "echo"), "4");
    EXPECT_EQ(receive(pair.client.get()), "echo");
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), before + 1);
  }
  pair.client.reset();
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, AnotherProgramGoesOnWithTheConnection) {
  Pair pair;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair.server.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, pair.server.get(), 1);
  const char* arguments[] = {"cat", nullptr};
  pid_t child = 0;
  ASSERT_EQ(
      ::posix_spawnp(&child, "cat", &actions, nullptr, const_cast<char**>(arguments), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  pair.server.reset();
  for (int i = 0; i < 20; ++i) {
    pair.put("meow");
    EXPECT_EQ(receive(pair.client.get()), "meow");
  }
  ::shutdown(pair.client.get(), SHUT_WR);
  EXPECT_EQ(receive(pair.client.get()), "(end)");
  EXPECT_EQ(exit_status(child), 0);
}

void expect_answers_of_cat(Pair& pair, pid_t child) {
  pair.server.reset();
  for (int i = 0; i < 20; ++i) {
    pair.put("meow");
    EXPECT_EQ(receive(pair.client.get()), "meow");
  }
  pair.client.reset();
  EXPECT_EQ(exit_status(child), 0);
}

pid_t process_of(int pidfd) {
  std::ifstream told("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string line; std::getline(told, line);)
    if (line.rfind("Pid:", 0) == 0) return std::stoi(line.substr(4));
  return -1;
}

TEST(Contract, AForkedChildExecutesAProgramOnTheConnection) {
  Pair pair;
  const pid_t child = in_child([&] {
    ::dup2(pair.server.get(), 0);
    ::dup2(pair.server.get(), 1);
    ::execlp("cat", "cat", nullptr);
  });
  expect_answers_of_cat(pair, child);
}

TEST(Contract, AChildOfVforkExecutesAProgramOnTheConnection) {
  Pair pair;
  const int fd = pair.server.get();
  const pid_t child = ::vfork();
  if (child == 0) {
    ::dup2(fd, 0);
    ::dup2(fd, 1);
    ::execlp("cat", "cat", nullptr);
    ::_exit(1);
  }
  expect_answers_of_cat(pair, child);
}

// It has copies of all descriptors, and the memory is its parent's.
TEST(Contract, AChildOfVforkClosesNothingOfItsParentAndLeavesNothingOpenThere) {
  // The peer has no library, so the connection is not moved to memory, but may be.
  const auto execute_with_connection = [](bool by_vfork) {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const UniqueFd client = connect_to(address);
    const UniqueFd server(static_cast<int>(kernel(SYS_accept4, listener.get(), 0, 0, 0)));
    char bytes[4];
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(send(client.get(), "ping"), "4");
      EXPECT_EQ(kernel(SYS_read, server.get(), bytes, sizeof bytes), 4);
      EXPECT_EQ(kernel(SYS_write, server.get(), bytes, sizeof bytes), 4);
      EXPECT_EQ(receive(client.get()), "ping");
    }
    EXPECT_EQ(::fcntl(client.get(), F_SETFD, 0), 0);
    const pid_t child = by_vfork ? ::vfork() : ::fork();
    if (child == 0) {
      ::execlp("true", "true", nullptr);
      ::_exit(1);
    }
    EXPECT_EQ(exit_status(child), 0);
  };
  execute_with_connection(false);
  const std::size_t before = test::open_descriptors();
  for (int i = 0; i < 3; ++i) execute_with_connection(true);
  EXPECT_EQ(test::open_descriptors(), before);
}

// A connection to another process that has sent what nobody has read: bytes in memory, if the
// library is there.
class Unread {
 public:
  static constexpr const char* kText = "sent before";

  Unread() : pair_(false) {
    int go[2];
    EXPECT_EQ(::pipe2(go, O_CLOEXEC), 0);
    const UniqueFd told(go[0]);
    go_ = UniqueFd(go[1]);
    child_ = in_child([&] {
      pair_.server.reset();
      go_.reset();
      for (char byte; ::read(told.get(), &byte, 1) == 1;) pair_.put(kText);
      EXPECT_EQ(receive(pair_.client.get()), "(end)");
    });
    pair_.client.reset();
    make_unread();
  }
  [[nodiscard]] int server() const { return pair_.server.get(); }
  void close() {
    pair_.server.reset();
    go_.reset();
    EXPECT_EQ(exit_status(child_), 0) << "the other process did not see the end";
  }

 private:
  void make_unread() const {
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, server(), &event), 0);
    const auto one_more = [&] {
      EXPECT_EQ(::write(go_.get(), "", 1), 1);
      EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 20'000), 1);
    };
    one_more();
    for (int i = 0; i < 300 && readable_for_kernel(server()); ++i) {
      EXPECT_EQ(receive(server()), kText);
      one_more();
    }
    EXPECT_EQ(readable_for_kernel(server()), !preloaded());
  }

  Pair pair_;
  UniqueFd go_;
  pid_t child_ = -1;
};

TEST(TcpContract, WhatIsReadAfterAProgramWasNotThereEndsAsEver) {
  Unread unread;
  const char* arguments[] = {"nothing", nullptr};
  EXPECT_EQ(::execv("/proc/self/nothing", const_cast<char**>(arguments)), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(receive(unread.server()), Unread::kText);
  unread.close();
}

TEST(Contract, AProgramThatIsTheChildOfAPidfdReadsWhatWasSentBefore) {
  Unread unread;
  ASSERT_EQ(::fcntl(unread.server(), F_SETFD, 0), 0);
  const std::string command = "timeout 10 head -c " + std::to_string(std::strlen(Unread::kText)) +
                              " <&" + std::to_string(unread.server()) + " | grep -q '" +
                              Unread::kText + "'";
  const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
  int child = -1;
  ASSERT_EQ(
      ::pidfd_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments), environ),
      0);
  const UniqueFd closes(child);
  EXPECT_EQ(exit_status(process_of(child)), 0);
  unread.close();
}

TEST(Contract, AChildOfABareCloneGoesOnWithTheConnection) {
  const Pair pair;
  for (int i = 0; i < 20; ++i) {
    const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) {
      char text[4];
      const bool fine = ::send(pair.server.get(), "ask?", 4, 0) == 4 &&
                        ::recv(pair.server.get(), text, 4, MSG_WAITALL) == 4;
      ::_exit(fine ? 0 : 1);
    }
    EXPECT_EQ(receive(pair.client.get()), "ask?");
    pair.put("told");
    EXPECT_EQ(exit_status(child), 0);
    pair.put("more");
    EXPECT_EQ(receive(pair.server.get()), "more");
  }
}

// Both go on with it, whoever has used it first.
TEST(Contract, AConnectionMayHaveTwoHoldersFromTheBeginning) {
  Pair pair(false);
  const pid_t child = in_child([&] {
    pair.client.reset();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(receive(pair.server.get(), 4), "ping");
      ASSERT_EQ(send(pair.server.get(), "pong"), "4");
    }
  });
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(send(pair.client.get(), "ping"), "4");
    ASSERT_EQ(receive(pair.client.get(), 4), "pong");
  }
  EXPECT_EQ(exit_status(child), 0);
  pair.talk(40);
}

// What was set when it was made holds when it shares memory.
TEST(Contract, AnAcceptedSocketThatDoesNotWaitNeverDoes) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  Pair pair(false);
  pair.client = connect_to(address);
  pair.server = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  send_at_once(pair.client.get());
  const int before = stream_mappings();
  pair.talk(40);
  EXPECT_EQ(stream_mappings() - before, preloaded() ? 2 : 0);
  EXPECT_EQ(receive(pair.server.get()), "(EAGAIN)");
}

TEST(Contract, AStreamOfTheCLibraryReadsAndWrites) {
  Pair pair;
  FILE* stream = ::fdopen(pair.server.release(), "r+");
  ASSERT_NE(stream, nullptr);
  pair.put("a line\n");
  char line[32];
  ASSERT_NE(std::fgets(line, sizeof line, stream), nullptr);
  EXPECT_STREQ(line, "a line\n");
  std::fseek(stream, 0, SEEK_CUR);
  std::fputs("an answer\n", stream);
  std::fclose(stream);
  EXPECT_EQ(receive(pair.client.get()), "an answer\n");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

// Which it reads and closes by itself.
TEST(Contract, AStandardStreamOfTheCLibraryMayBeAConnection) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const UniqueFd client = connect_to(address);
  const pid_t child = in_child([&] {
    ::close(STDIN_FILENO);
    ASSERT_EQ(::accept(listener.get(), nullptr, nullptr), STDIN_FILENO);
    for (int i = 0; i < 200; ++i) {
      ASSERT_EQ(receive(STDIN_FILENO), "ping");
      ASSERT_EQ(send(STDIN_FILENO, "pong"), "4");
    }
    char line[32];
    ASSERT_NE(std::fgets(line, sizeof line, stdin), nullptr);
    EXPECT_STREQ(line, "a line\n");
    EXPECT_EQ(std::fclose(stdin), 0);
    const int file = ::memfd_create("another", MFD_CLOEXEC);
    ASSERT_EQ(file, STDIN_FILENO);
    EXPECT_EQ(::write(file, "text", 4), 4);
    EXPECT_EQ(::lseek(file, 0, SEEK_END), 4);
  });
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(send(client.get(), "ping"), "4");
    ASSERT_EQ(receive(client.get()), "pong");
  }
  EXPECT_EQ(send(client.get(), "a line\n"), "7");
  EXPECT_EQ(receive(client.get()), "(end)");
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, WhatTheCLibraryPrintsStandsInItsPlace) {
  const Pair pair;
  pair.put("one ");
  EXPECT_EQ(::dprintf(pair.client.get(), "%s %d ", "two", 3), 6);
  pair.put("four");
  EXPECT_EQ(receive(pair.server.get(), 14, MSG_WAITALL), "one two 3 four");
}

// --- copies of a process, however they are made

// Answers until the end; after 40 answers it says so.
int answer(int fd, int say) {
  char bytes[16];
  ssize_t got;
  for (int i = 0; (got = ::recv(fd, bytes, sizeof bytes, 0)) > 0; ++i) {
    ::send(fd, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
    if (i == 40 && ::write(say, "x", 1) != 1) return 4;
  }
  return got == 0 ? 0 : 1;
}

// A server whose copy, made by `make`, answers, while the server itself closes the connection.
template <class Make>
pid_t serve_by_copy(int listener, Make make) {
  const pid_t server = ::fork();
  if (server != 0) return server;
  ::alarm(60);
  int ends[2];
  const int fd = ::accept(listener, nullptr, nullptr);
  if (fd < 0 || ::pipe(ends) != 0) ::_exit(2);
  const long copy = make();
  if (copy == 0) {
    ::alarm(60);
    ::_exit(answer(fd, ends[1]));
  }
  char byte;
  int status = 0;
  if (::read(ends[0], &byte, 1) != 1 || ::close(fd) != 0 ||
      ::waitpid(static_cast<pid_t>(copy), &status, 0) != copy)
    ::_exit(2);
  ::_exit(status == 0 ? 0 : 3);
}

TEST(Calls, ACopyOfAProcessMayBeMadeInAnyWay) {
  struct CloneArguments {
    std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
  };
  const std::function<long()> ways[] = {
      [] { return ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); },
      [] {
        CloneArguments arguments{};
        arguments.exit_signal = SIGCHLD;
        return ::syscall(SYS_clone3, &arguments, sizeof arguments);
      },
      [] { return static_cast<long>(::_Fork()); },
      [] { return kernel(SYS_clone, SIGCHLD, 0, 0, 0); },
  };
  for (const auto& way : ways) {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const pid_t server = serve_by_copy(listener.get(), way);
    UniqueFd client = connect_to(address);
    expect_answers(client.get(), 200);
    client.reset();
    EXPECT_EQ(exit_status(server), 0) << "way " << &way - ways;
  }
}

int answer_in_clone(void* fd) { return answer(*static_cast<int*>(fd), STDOUT_FILENO); }

TEST(Calls, ACloneOnAStackOfItsOwnGoesOnWithAConnection) {
  const Pair pair;
  static std::vector<char> stack(256 * 1024);
  int fd = pair.server.get();
  const int copy = ::clone(answer_in_clone, stack.data() + stack.size(), SIGCHLD, &fd);
  ASSERT_GT(copy, 0);
  expect_answers(pair.client.get(), 30);
  ::shutdown(pair.client.get(), SHUT_WR);
  EXPECT_EQ(exit_status(copy), 0);
}

}  // namespace
}  // namespace farcall::preload
