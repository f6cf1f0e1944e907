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
// once that thread has told the kernel what becomes of the call.
std::atomic<pid_t> victim{0};
std::atomic<pid_t> stopper{0};
std::atomic<int> result_of_read{0};

bool is(unsigned long command, unsigned long wanted) {
  return _IOC_TYPE(command) == STPLR_IOCTL && _IOC_NR(command) == _IOC_NR(wanted);
}

void stop_victim() {
  if (victim == 0 || stopper != 0) return;
  EXPECT_TRUE(stop_process(victim));
  stopper = ::gettid();
}

void let_victim_go_on() {
  if (stopper != ::gettid()) return;
  EXPECT_EQ(::kill(victim.exchange(0), SIGCONT), 0);
  stopper = 0;
}

}  // namespace
}  // namespace farcall::door::test

// The library's calls come by here, too.
extern "C" int ioctl(int fd, unsigned long command, ...) noexcept {
  namespace test = farcall::door::test;
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  const bool reads = test::is(command, STPLR_READ);
  if (reads) test::stop_victim();
  const long result = ::syscall(SYS_ioctl, fd, command, argument);
  const int error = result < 0 ? errno : 0;
  if (reads && test::stopper == ::gettid()) test::result_of_read = error;
  if (test::is(command, STPLR_DOOR_RETURN)) test::let_victim_go_on();
  errno = error;
  return static_cast<int>(result);
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
    victim = client.pid();
    go->happens();
    EXPECT_EQ(client.join(), 0);
    EXPECT_EQ(victim, 0) << "it was not stopped";
    EXPECT_EQ(result_of_read.exchange(0), EAGAIN);
  }
}

}  // namespace
}  // namespace farcall::door::test
