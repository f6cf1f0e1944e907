// SPDX-License-Identifier: Apache-2.0
//
// Programs that filter their system calls.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "executed.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// After the connection has been used `rounds` times the server allows itself to read, write and
// end, and is killed for anything else.
void confine_after(int rounds, const std::function<void()>& confine_itself) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const pid_t server = ::fork();
  if (server == 0) {
    ::alarm(60);
    const int fd = ::accept(listener.get(), nullptr, nullptr);
    char bytes[16];
    for (int i = 0;; ++i) {
      if (i == rounds) confine_itself();
      const ssize_t got = ::read(fd, bytes, sizeof bytes);
      if (got <= 0) kernel(SYS_exit, got == 0 ? 0 : 1, 0, 0);
      if (::write(fd, bytes, static_cast<std::size_t>(got)) != got) kernel(SYS_exit, 2, 0, 0);
    }
  }
  UniqueFd client = connect_to(address);
  expect_answers(client.get(), 100);
  client.reset();
  EXPECT_EQ(exit_status(server), 0) << "confined after " << rounds;
}

TEST(Calls, WhoMayOnlyReadAndWriteStillReadsAndWrites) {
  for (const int rounds : {0, 2, 50})
    confine_after(rounds, [] { ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); });
}

// Kills this process at its first call that is none of these.
enum class By { name, number, old_number };
void allow_only(const std::vector<long>& calls, By by = By::name) {
  std::vector<sock_filter> steps{{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}};
  for (const long call : calls) {
    steps.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)});
    steps.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
  }
  steps.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS});
  const sock_fprog program{.len = static_cast<unsigned short>(steps.size()),
                           .filter = steps.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  switch (by) {
    case By::name: ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program); break;
    case By::number: ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program); break;
    case By::old_number: ::syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program); break;
  }
  std::vector<sock_filter>().swap(steps);
}

TEST(Calls, WhoFiltersItsCallsMakesNoneThatItDidNotMakeBefore) {
  for (const By by : {By::name, By::number, By::old_number})
    for (const int rounds : {0, 2, 50})
      confine_after(rounds, [=] {
        // Memory is given back when the filter is there.
        allow_only({SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_munmap, SYS_brk}, by);
      });
}

// As a service manager has it: fails at `refused`, and kills at the others.
void filter_calls(const std::vector<long>& refused, const std::vector<long>& fatal) {
  std::vector<sock_filter> steps{{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}};
  const auto add = [&](const std::vector<long>& calls, std::uint32_t action) {
    for (const long call : calls) {
      steps.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)});
      steps.push_back({BPF_RET | BPF_K, 0, 0, action});
    }
  };
  add(refused, SECCOMP_RET_ERRNO | EPERM);
  add(fatal, SECCOMP_RET_KILL_PROCESS);
  steps.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
  const sock_fprog program{.len = static_cast<unsigned short>(steps.size()),
                           .filter = steps.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int talk_without_acceleration() {
  const Pair pair(false);
  pair.talk(200);
  int status = 0;
  const bool childless = ::waitpid(-1, &status, 0) == -1 && errno == ECHILD;
  return stream_mappings() == 0 && childless && !::testing::Test::HasFailure() ? 0 : 3;
}

int talk_with_acceleration() {
  const Pair pair;
  return ::testing::Test::HasFailure() ? 3 : 0;
}

// Whoever makes eventfds with flags that there are not waits until that is answered, as the library
// does that tries what is permitted. Returns where it is told of.
int hold_who_tries() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_eventfd2, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ~0U, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Unseen: whom the library sees confine itself it leaves.
  return static_cast<int>(
      kernel(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

seccomp_notif await_who_tries(int told) {
  seccomp_notif call{};
  EXPECT_EQ(kernel(SYS_ioctl, told, SECCOMP_IOCTL_NOTIF_RECV, &call), 0) << errno_name();
  return call;
}

void let_go_on(int told, const seccomp_notif& call) {
  seccomp_notif_resp answer{.id = call.id, .val = 0, .error = 0, .flags = 0};
  answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  EXPECT_EQ(kernel(SYS_ioctl, told, SECCOMP_IOCTL_NOTIF_SEND, &answer), 0) << errno_name();
}

int fork_while_a_thread_tries() {
  const int told = hold_who_tries();
  if (told < 0) return 5;
  std::thread thread([] { const Pair pair; });
  const seccomp_notif call = preloaded() ? await_who_tries(told) : seccomp_notif{};
  if (!preloaded()) thread.join();  // it may be anywhere, where a child could not go on
  const pid_t child = in_child([] {
    ::alarm(20);
    const Pair pair;
  });
  // What the child may do it has to try itself.
  pollfd look{.fd = told, .events = POLLIN, .revents = 0};
  if (preloaded() && ::poll(&look, 1, 20'000) == 1) let_go_on(told, await_who_tries(told));
  const int status = exit_status(child);
  if (preloaded()) {
    let_go_on(told, call);
    thread.join();
  }
  return status == 0 && !::testing::Test::HasFailure() ? 0 : 3;
}

const bool kPlayed = [] {
  play_role("forks while a thread tries", fork_while_a_thread_tries);
  play_role("is forbidden memory", talk_without_acceleration);
  play_role("is forbidden clocks", talk_with_acceleration);
  return true;
}();

void forbid_threads_with_descriptors_of_their_own() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, CLONE_THREAD | CLONE_FILES),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLONE_THREAD, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(4);
}

// What a process is started under it has not chosen, and it may know nothing of it.
// Where the processor has such a register and the kernel can forbid it.
TEST(Calls, WhoMayNotReadTheClockRegisterGoesOn) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    const Pair pair;
    ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    pair.talk(30);
    const Pair later(false);
    later.talk(30);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Calls, AFilterThatIsInheritedKillsNobodyWhoTalks) {
  ASSERT_TRUE(kPlayed);
  void (*const filters[])() = {
      [] { filter_calls({}, {SYS_memfd_create}); },
      // Nor where the filter keeps the library from asking what it permits.
      [] {
        filter_calls({SYS_clone, SYS_clone3}, {SYS_memfd_create});
      },
      [] { filter_calls({SYS_prctl}, {SYS_memfd_create}); },
      [] {
        filter_calls({}, {SYS_prctl, SYS_memfd_create});
      },
      // Those that the library seldom makes would kill later.
      [] { filter_calls({}, {SYS_eventfd2}); },
      [] { filter_calls({}, {SYS_nanosleep}); },
      [] { filter_calls({}, {SYS_epoll_pwait}); },
      [] { filter_calls({}, {SYS_tkill}); },
      [] { filter_calls({}, {SYS_getppid}); },
      forbid_threads_with_descriptors_of_their_own,
  };
  for (const auto& filter : filters) {
    const auto [status, said] = execute_as("is forbidden memory", {}, filter);
    EXPECT_EQ(status, 0) << "filter " << &filter - filters << ": " << said;
  }
}

// Whatever it is that the library might want to call one day.
TEST(Calls, AFilterThatKillsAtACallOfTheLibraryKillsNobodyWhoTalks) {
  static long forbidden;
  for (const long call :
       {SYS_pidfd_open,  SYS_pidfd_getfd,   SYS_ftruncate,         SYS_fstatfs,     SYS_mremap,
        SYS_getresuid,   SYS_tgkill,        SYS_rt_tgsigqueueinfo, SYS_pselect6,    SYS_ppoll,
        SYS_sched_yield, SYS_rt_sigpending, SYS_readlinkat,        SYS_getdents64,  SYS_epoll_ctl,
        SYS_close_range, SYS_sendmsg,       SYS_recvmsg,           SYS_getpeername, SYS_shutdown}) {
    forbidden = call;
    const auto [status, said] =
        execute_as("is forbidden memory", {}, [] { filter_calls({}, {forbidden}); });
    EXPECT_EQ(status, 0) << call << ": " << said;
  }
}
TEST(Calls, AFilterThatForbidsOtherThingsKeepsNobodyFromMemory) {
  const auto [status, said] = execute_as("is forbidden clocks", {}, [] {
    filter_calls({}, {SYS_clock_settime, SYS_prctl});
  });
  EXPECT_EQ(status, 0) << said;
}

TEST(Calls, AChildForkedWhileAThreadFindsOutWhatIsPermittedGoesOn) {
  const auto [status, said] = execute_as("forks while a thread tries", {});
  EXPECT_EQ(status, 0) << said;
}

TEST(Calls, WhoFiltersItsCallsWaitsClosesAndEnds) {
  const Pair pair;
  std::vector<long> calls = {SYS_epoll_ctl, SYS_epoll_pwait, SYS_close,  SYS_dup, SYS_socket,
                             SYS_write,     SYS_exit_group,  SYS_munmap, SYS_brk};
#ifdef SYS_epoll_wait
  calls.push_back(SYS_epoll_wait);
#endif
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd confined(ends[0]);
  const UniqueFd say_confined(ends[1]);
  const pid_t child = in_child([&] {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    const int later = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = pair.server.get()}};
    ::epoll_ctl(set, EPOLL_CTL_ADD, pair.server.get(), &event);
    allow_only(calls);
    const bool said = ::write(say_confined.get(), "x", 1) == 1;
    const bool told = ::epoll_wait(set, &event, 1, 20'000) == 1;
    ::epoll_ctl(later, EPOLL_CTL_ADD, pair.server.get(), &event);
    const bool told_again = ::epoll_wait(later, &event, 1, 20'000) == 1;
    ::close(::dup(pair.server.get()));
    ::close(::socket(AF_INET, SOCK_DGRAM, 0));
    ::close(pair.server.get());
    ::close(set);
    ::_exit(said && told && told_again ? 0 : 5);
  });
  char byte;
  EXPECT_EQ(::read(confined.get(), &byte, 1), 1);
  EXPECT_EQ(send(pair.client.get(), "x"), "1");
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(pair.server.get()), "x");
  pair.talk(5);
}

}  // namespace
}  // namespace farcall::preload
