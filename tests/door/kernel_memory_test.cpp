// SPDX-License-Identifier: Apache-2.0
//
// A long request to a door of the kernel is read in two goes, and anything may become of its client
// in between. For the emulated machine, where the module is: see kernel/vm/doors.sh.
#include <gtest/gtest.h>
#include <stplr_doors.h>
#include <sys/ioctl.h>

#include <cstdarg>

#include "door/engines.hpp"
#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// The client that is stopped when a thread is about to read the rest of its request, and goes on
// once that thread has told the kernel what becomes of the call; 0: none.
pid_t victim = 0;
std::atomic<pid_t> stopper{0};
std::atomic<int> result_of_read{0};

pid_t victim_now() { return __atomic_load_n(&victim, __ATOMIC_SEQ_CST); }
void choose_victim(pid_t client) { __atomic_store_n(&victim, client, __ATOMIC_SEQ_CST); }

bool is(unsigned long command, unsigned long wanted) {
  return _IOC_TYPE(command) == STPLR_IOCTL && _IOC_NR(command) == _IOC_NR(wanted);
}

int ioctl_with_victim(int fd, unsigned long command, void* argument) {
  const bool reads = is(command, STPLR_READ);
  if (reads && stopper == 0) {
    EXPECT_TRUE(stop_process(victim_now()));
    stopper = ::gettid();
  }
  const long result = ::syscall(SYS_ioctl, fd, command, argument);
  const int error = result < 0 ? errno : 0;
  if (stopper == ::gettid()) {
    if (reads) result_of_read = error;
    if (is(command, STPLR_DOOR_RETURN)) {
      // Once it goes on it may end, and the test choose the next, before this thread runs again.
      const pid_t stopped = victim_now();
      stopper = 0;
      choose_victim(0);
      EXPECT_EQ(::kill(stopped, SIGCONT), 0);
    }
  }
  errno = error;
  return static_cast<int>(result);
}

}  // namespace
}  // namespace farcall::door::test

// The library's calls come by here, too. Threads of other tests are cancelled in it, at any moment:
// then there is nothing to clean up, and nothing is called that is declared not to throw. So it has
// another name in C++.
extern "C" int watched_ioctl(int fd, unsigned long command, ...) asm("ioctl");
extern "C" int watched_ioctl(int fd, unsigned long command, ...) {
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (__atomic_load_n(&farcall::door::test::victim, __ATOMIC_SEQ_CST) == 0)
    return static_cast<int>(::syscall(SYS_ioctl, fd, command, argument));
  return farcall::door::test::ioctl_with_victim(fd, command, argument);
}

namespace farcall::door::test {
namespace {

TEST(DoorOfTheKernel, TakesALongRequestOfAClientThatIsStoppedMeanwhile) {
  choose("kernel");
  const int door = ::door_create(echo, nullptr, 0);
  for (const std::size_t size : std::initializer_list<std::size_t>{20'000, 300'000, 3'000'000}) {
    SCOPED_TRACE(size);
    const Shared<Event> ready;
    const Shared<Event> go;
    Child client([&] {
      std::string request(size, 'x');
      for (std::size_t i = 0; i < size; ++i) request[i] = static_cast<char>(i * 31 % 251);
      ready->happens();
      go->await();
      const Reply reply = call(door, request, {pass(0)});
      EXPECT_EQ(reply.error, 0) << std::strerror(reply.error);
      EXPECT_TRUE(reply.data == request);
    });
    ASSERT_TRUE(ready->wait());
    choose_victim(client.pid());
    go->happens();
    EXPECT_EQ(client.join(), 0);
    EXPECT_EQ(victim_now(), 0) << "it was not stopped";
    EXPECT_EQ(result_of_read.exchange(0), EAGAIN);
  }
}

}  // namespace
}  // namespace farcall::door::test
