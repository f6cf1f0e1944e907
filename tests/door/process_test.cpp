// SPDX-License-Identifier: Apache-2.0
//
// door_revoke(), and what fork, exec and exit do to doors.
#include <gtest/gtest.h>
#include <spawn.h>

#include <cstdlib>
#include <span>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// ---- door_revoke ----

TEST(DoorRevoke, ClosesOneDescriptorAfterTheOther) {
  const int door = ::door_create(echo, nullptr, 0);
  const int second = ::dup(door);
  ASSERT_EQ(::door_revoke(door), 0);
  EXPECT_TRUE(is_open(second));
  EXPECT_EQ(::door_revoke(second), 0);
  EXPECT_FALSE(is_open(second));
  EXPECT_EQ(ERROR_OF(::door_revoke(second)), EBADF);
}

TEST(DoorRevoke, ClosesTheDescriptor) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_revoke(door), 0);
  EXPECT_FALSE(is_open(door));
  EXPECT_EQ(error_of(door), EBADF);
}

TEST(DoorRevoke, LaterCallersGetEbadf) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  const Shared<Event> called;
  const Shared<Event> revoked;
  Child child([&] {
    EXPECT_EQ(call(second.get(), "x").data, "x");
    called->happens();
    ASSERT_TRUE(revoked->wait());
    EXPECT_EQ(error_of(second.get(), "x"), EBADF);
  });
  EXPECT_EQ(call(second.get(), "x").data, "x");
  ASSERT_TRUE(called->wait());
  ASSERT_EQ(::door_revoke(door), 0);
  revoked->happens();
  EXPECT_EQ(error_of(second.get(), "x"), EBADF);
  EXPECT_EQ(child.join(), 0);
}

// A child has the same socket, and may shut it down.
TEST(DoorRevoke, IsItsCreatorsWhateverAChildDoes) {
  for (const bool is_used : {false, true}) {
    const int door = ::door_create(echo, nullptr, 0);
    if (is_used) {
      EXPECT_EQ(call(door, "x").data, "x");
    }
    const Shared<std::atomic<bool>> shut;
    in_child([&] { *shut = ::shutdown(door, SHUT_RDWR) == 0; });
    // A door of the kernel's is none.
    if (*shut) {
      pollfd end{.fd = door, .events = 0, .revents = 0};
      EXPECT_TRUE(eventually([&] { return ::poll(&end, 1, 0) == 1; }));
      std::this_thread::sleep_for(kGlance);  // the server's side is told a moment later
    }
    EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DATA_MAX, 100)), 0);
    EXPECT_EQ(ERROR_OF(::door_revoke(door)), 0);
    EXPECT_EQ(ERROR_OF(::fcntl(door, F_GETFD)), EBADF);
  }
}

TEST(DoorRevoke, FailsForWhatIsNoDoor) {
  for (const int fd : {-1, 9999, 0}) {
    EXPECT_EQ(ERROR_OF(::door_revoke(fd)), EBADF) << fd;
  }
  EXPECT_TRUE(is_open(0));
}

TEST(DoorRevoke, FailsForAClient) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    EXPECT_EQ(ERROR_OF(::door_revoke(door)), EPERM);
    EXPECT_TRUE(is_open(door));
    EXPECT_EQ(call(door, "x").data, "x");
  });
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST(DoorRevoke, LeavesOtherDoorsAlone) {
  const int revoked = ::door_create(echo, nullptr, 0);
  const int other = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_revoke(revoked), 0);
  in_server_and_client([&] { EXPECT_EQ(call(other, "x").data, "x"); });
}

TEST(DoorRevoke, LeavesNothingBehind) {
  auto round = [] {
    const int door = ::door_create(echo, nullptr, 0);
    ASSERT_EQ(call(door, "x").data, "x");
    ASSERT_EQ(::door_revoke(door), 0);
  };
  for (int i = 0; i < 5; ++i) round();
  // As long as a spare thread has not begun others are made.
  ASSERT_TRUE(others_come_to_rest());
  const std::size_t before = open_descriptors();
  const std::size_t running = threads();
  for (int i = 0; i < 100; ++i) round();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 2; })) << open_descriptors();
  // Those that close what others have left go after a moment without work.
  EXPECT_TRUE(eventually([&] { return threads() <= running + 1; })) << threads();
}

// ---- fork ----

TEST(DoorFork, AChildIsAClient) {
  const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
  const int shared = ::door_create(echo, nullptr, 0);
  const pid_t server = ::getpid();
  EXPECT_EQ(call(shared, "x").data, "x");
  in_child([&] {
    EXPECT_EQ(info_of(shared).di_target, server);
    EXPECT_EQ(info_of(shared).di_attributes, 0U);
    EXPECT_EQ(ERROR_OF(::door_revoke(shared)), EPERM);
    EXPECT_EQ(ERROR_OF(::door_setparam(shared, DOOR_PARAM_DATA_MAX, 1)), EPERM);
    EXPECT_EQ(ERROR_OF(::door_bind(door)), EINVAL);
    EXPECT_EQ(call(shared, "x").data, "x");
  });
  EXPECT_EQ(call(shared, "x").data, "x");
}

TEST(DoorFork, AChildIsServedByTheParentsThreads) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) { answer_number(::getpid()); };
  const int door = make_door(procedure);
  const pid_t server = ::getpid();
  in_server_and_client([&] { EXPECT_EQ(call(door).number<pid_t>(), server); });
}

TEST(DoorFork, ADoorMadeInAChildHasAPoolOfItsOwn) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) { answer_number(::getpid()); };
  const int parents = make_door(procedure);
  EXPECT_EQ(call(parents).number<pid_t>(), ::getpid());
  in_child([&] {
    static std::atomic<int> created{0};
    ::door_server_create([](door_info_t* info) {
      EXPECT_EQ(info, nullptr);
      ++created;
      std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
    });
    const int childs = make_door(procedure);
    ASSERT_GE(childs, 0);
    EXPECT_EQ(created, 1);
    EXPECT_EQ(call(childs).number<pid_t>(), ::getpid());
    EXPECT_EQ(call(parents).number<pid_t>(), ::getppid());
    EXPECT_EQ(info_of(childs).di_attributes, static_cast<uint_t>(DOOR_LOCAL));
    EXPECT_NE(id_of(childs), id_of(parents));
    in_child([&] {
      EXPECT_EQ(call(childs).number<pid_t>(), ::getppid());
      EXPECT_EQ(info_of(childs).di_attributes, 0U);
    });
  });
  EXPECT_EQ(call(parents).number<pid_t>(), ::getpid());
}

TEST(DoorFork, AChildsExitDoesNothingToTheParentsDoors) {
  const int door = ::door_create(echo, nullptr, 0);
  // The leak checker takes what the parent's threads hold for leaks of a child that exits.
  for (const bool quick : {true, kAddressSanitizer}) {
    Child child([&] {
      EXPECT_EQ(call(door, "x").data, "x");
      if (!quick) std::exit(HasFailure() ? 1 : 0);
    });
    EXPECT_EQ(child.join(), 0);
    in_server_and_client([&] { EXPECT_EQ(call(door, "x").data, "x"); });
  }
}

TEST(DoorFork, AClientsChildHasSessionsOfItsOwn) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    EXPECT_EQ(call(door, "parent").data, "parent");
    Child child([&] {
      for (int i = 0; i < 300; ++i) ASSERT_EQ(call(door, "child").data, "child");
    });
    for (int i = 0; i < 300; ++i) ASSERT_EQ(call(door, "parent").data, "parent");
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(call(door, "parent").data, "parent");
  });
}

TEST(DoorFork, AServerThreadMayFork) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(7);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    return Answer(std::string(data, size));
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(call(door, "x").data, "x");
  });
}

TEST(DoorFork, AChildOfAServerThreadDoesNotAnswerForIt) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      answer("the child");  // there it is in no call, and waits for one
      ::_exit(7);
    }
    std::this_thread::sleep_for(2 * kGlance);
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    return Answer(std::string(data, size));
  };
  const int door = make_door(procedure);
  in_server_and_client([&] { EXPECT_EQ(call(door, "x").data, "x"); });
}

// ---- exec ----

struct Ran {
  int status;
  std::string output;
};
Ran run_caller(const std::string& door, const std::string& text) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const char* const arguments[] = {FARCALL_CALLER, door.c_str(), text.c_str(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(::posix_spawn(&child, FARCALL_CALLER, &actions, nullptr,
                          const_cast<char* const*>(arguments), environ),
            0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  Ran ran{};
  char buffer[1000];
  for (ssize_t size; (size = ::read(out.get(), buffer, sizeof buffer)) > 0;)
    ran.output.append(buffer, static_cast<size_t>(size));
  EXPECT_EQ(::waitpid(child, &ran.status, 0), child);
  return ran;
}

TEST(DoorExec, AProgramCallsADoorItHasInherited) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd inherited(::dup(door));  // not close-on-exec
  const Ran ran = run_caller(std::to_string(inherited.get()), "hello");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.output, "hello");
}

TEST(DoorExec, ANewDoorIsNotInherited) {
  const int door = ::door_create(echo, nullptr, 0);
  const Ran ran = run_caller(std::to_string(door), "hello");
  EXPECT_EQ(WEXITSTATUS(ran.status), EBADF);
}

TEST(DoorExec, AReceivedDoorIsInherited) {
  auto give = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer({pass(::door_create(echo, nullptr, 0), DOOR_DESCRIPTOR | DOOR_RELEASE)}, "");
  };
  ScopedServer server([&] { return make_door(give); });
  const Reply reply = call(server.door());
  ASSERT_EQ(reply.descriptors.size(), 1U);
  const Ran ran = run_caller(std::to_string(fd_of(reply.descriptors[0])), "hello");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.output, "hello");
}

TEST(DoorExec, AServerThatExecutesAnotherProgramServesNoMore) {
  const Shared<Gate> gate;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Shared<Event> execute;
  Child child([&] {
    const int door = make_door(*gate);
    hand_over(ends[1], door);
    ASSERT_TRUE(execute->wait());
    ::execl("/bin/sleep", "sleep", "30", nullptr);
    FAIL() << std::strerror(errno);
  });
  const UniqueFd door(take_over(ends[0]));
  Caller caller(door.get(), "x");
  ASSERT_TRUE(gate->entered.wait());
  execute->happens();
  EXPECT_EQ(caller.reply().error, EINTR);
  EXPECT_EQ(error_of(door.get(), "x"), EBADF);
}

TEST(DoorExec, AServerMaySpawn) {
  const int door = ::door_create(echo, nullptr, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(std::system("exit 3") >> 8, 3);  // NOLINT(cert-env33-c)
    in_server_and_client([&] { EXPECT_EQ(call(door, "x").data, "x"); });
  }
}

// ---- exit ----

// A child that inherits all, and does nothing.
pid_t fork_idle() {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(30);
  ::pause();
  ::_exit(0);
}

TEST(DoorExit, RevokesAllDoorsOfTheProcess) {
  auto give = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer({pass(::door_create(echo, nullptr, 0), DOOR_DESCRIPTOR | DOOR_RELEASE)}, "");
  };
  ScopedServer server([&] { return make_door(give); });
  std::vector<int> doors{server.door()};
  for (int i = 0; i < 5; ++i) doors.push_back(fd_of(call(server.door()).descriptors.at(0)));
  for (std::size_t i = 1; i < doors.size(); ++i) EXPECT_EQ(call(doors[i], "x").data, "x");
  EXPECT_EQ(server.exit(), 0);
  for (const int door : doors) {
    EXPECT_EQ(error_of(door, "x"), EBADF);
    EXPECT_EQ(info_of(door).di_target, -1);
    EXPECT_NE(info_of(door).di_attributes & DOOR_REVOKED, 0U);
  }
}

TEST(DoorExit, ADescriptorHeldElsewhereDoesNotKeepADoorAlive) {
  // The child of a server inherits its doors; when the server dies they are dead all the same.
  const Shared<pid_t> grandchild;
  ScopedServer server([&] {
    const int door = ::door_create(echo, nullptr, 0);
    *grandchild = fork_idle();
    return door;
  });
  EXPECT_EQ(call(server.door(), "x").data, "x");
  server.kill();
  EXPECT_TRUE(eventually([&] { return error_of(server.door(), "x") == EBADF; }));
  EXPECT_EQ(info_of(server.door()).di_target, -1);
  ::kill(*grandchild, SIGKILL);
}

TEST(DoorExit, ACallInProgressEndsThoughAnotherHoldsTheServersDescriptors) {
  const Shared<Gate> gate;
  const Shared<Event> forked;
  const Shared<pid_t> grandchild;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Child server([&] {
    hand_over(ends[1], make_door(*gate));
    ASSERT_TRUE(gate->entered.wait());
    *grandchild = fork_idle();
    forked->happens();
    ::pause();
  });
  const UniqueFd door(take_over(ends[0]));
  Caller caller(door.get(), "x");
  ASSERT_TRUE(forked->wait());
  server.kill();
  EXPECT_EQ(caller.reply().error, EINTR);
  ::kill(*grandchild, SIGKILL);
}

// A program that has closed its standard streams writes to them all the same, some time.
TEST(DoorProcess, StandardStreamsThatAreClosedStayClosed) {
  in_child([] {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) ::close(fd);
    const int door = ::door_create(echo, nullptr, 0);
    const int other = ::dup(STDERR_FILENO);
    EXPECT_LE(other, STDOUT_FILENO) << "the library has taken what the door has left";
    EXPECT_EQ(call(door, "x").data, "x");
  });
}

// pthread_atfork() tells them nothing.
TEST(DoorProcess, AChildOfUnderscoreForkHasSessionsOfItsOwn) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    ASSERT_EQ(call(door, "first").data, "first");
    const pid_t child = ::_Fork();
    for (int i = 0; i < 2000; ++i) {
      const std::string text = (child == 0 ? "child " : "parent ") + std::to_string(i);
      if (call(door, text).data == text) continue;
      if (child == 0) ::_exit(1);
      ADD_FAILURE() << "after " << i;
    }
    if (child == 0) ::_exit(0);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

// It notices what it is while it forks, with nothing locked yet.
TEST(DoorProcess, AChildThatNobodyWasToldOfMayFork) {
  FARCALL_SKIP_UNDER_TSAN("does not see children of a bare clone");
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(call(door, "first").data, "first");
  in_child([&] {
    const int mine = ::door_create(echo, nullptr, DOOR_UNREF);  // forks count its descriptors
    ASSERT_EQ(call(mine, "x").data, "x");
    // Who runs may hold a lock of the C library's, which would stay locked in the child, or have a
    // descriptor that is not private yet.
    ASSERT_TRUE(eventually(others_sleep));
    const pid_t child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) {
      ::alarm(10);
      const pid_t grandchild = ::fork();
      if (grandchild == 0) ::_exit(call(door, "x").data == "x" ? 0 : 1);
      int status = -1;
      ::_exit(::waitpid(grandchild, &status, 0) == grandchild && status == 0 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

TEST(DoorProcess, AChildOfUnderscoreForkHidesNoDeath) {
  const Shared<Event> over;
  Shared<std::atomic<pid_t>> grandchild{};
  ScopedServer server([&] {
    static auto end_with_a_child = [&](char*, size_t, door_desc_t*, uint_t) {
      EXPECT_TRUE(eventually(others_sleep)) << "the client is still being let in";
      const pid_t child = ::_Fork();
      if (child == 0) {
        over->await();
        ::_exit(0);
      }
      grandchild->store(child);
      ::kill(::getpid(), SIGKILL);
    };
    return make_door(end_with_a_child);
  });
  const Reply reply = call(server.door(), "x");
  EXPECT_EQ(reply.error, EINTR);
  EXPECT_EQ(::kill(grandchild->load(), 0), 0) << "it ended first";
  over->happens();
}

// They are forked while the server makes sockets for clients, and none of those stays in them.
TEST(DoorProcess, ChildrenForkedAtAnyTimeHideNoDeath) {
  FARCALL_SKIP_UNDER_TSAN("may hang in a child that is forked while a thread allocates");
  FARCALL_SKIP_UNDER_ASAN("leaves its allocator locked in the child if another thread allocates");
  const Shared<Event> over;
  Shared<std::atomic<int>> forked{};
  constexpr int kMost = 100;
  const int count = over_module() ? 30 : kMost;  // an emulated machine takes long for each fork
  const int forks = 3 * count;
  ScopedServer server([&] {
    static auto body = [&](char* data, size_t size, door_desc_t*, uint_t) {
      if (std::string_view(data, size) == "wait") over->await();
      ::door_return(data, size, nullptr, 0);
    };
    std::thread([&, forks] {
      for (int i = 0; i < forks; ++i) {
        if (::fork() == 0) {
          over->await();
          ::_exit(0);
        }
        forked->fetch_add(1);
      }
    }).detach();
    return make_door(body);
  });
  Shared<std::array<std::atomic<int>, kMost>> errors{};
  Shared<std::atomic<int>> called{};
  std::deque<Child> clients;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    // One of them every few forks.
    EXPECT_TRUE(eventually([&] { return forked->load() >= static_cast<int>(i) * 2; }));
    clients.emplace_back([&, i] {
      EXPECT_EQ(call(server.door(), "x").data, "x");
      called->fetch_add(1);
      (*errors)[i] = call(server.door(), "wait").error;
    });
  }
  EXPECT_TRUE(eventually([&] { return called->load() == count && forked->load() == forks; }));
  server.kill();
  const std::span ended(errors->data(), static_cast<std::size_t>(count));
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(ended, [](const auto& error) { return error.load() != 0; });
  })) << "somebody waits for a server that is dead";
  for (const auto& error : ended) EXPECT_TRUE(error == EINTR || error == EBADF) << error;
  for (int i = 0; i < forked->load(); ++i) over->happens();
}

}  // namespace
}  // namespace farcall::door::test
