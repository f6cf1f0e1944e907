// SPDX-License-Identifier: Apache-2.0
//
// Datagrams while signal handlers send or jump.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "children.hpp"
#include "datagrams.hpp"

namespace farcall::preload {
namespace {

// Keeps signals from this thread and from those that it starts.
struct NoSignals {
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  sigset_t before{};
};

// Echoes until an empty datagram comes, in a thread to which no signals come.
struct Echo {
  Echo() {
    const NoSignals held;
    thread = std::thread([this] { serve(); });
  }
  void end(const Socket& by) {
    by.send("");
    thread.join();
  }
  void serve() {
    for (;;) {
      char bytes[64];
      sockaddr_in from{};
      socklen_t size = sizeof from;
      const ssize_t got = ::recvfrom(socket.fd.get(), bytes, sizeof bytes, 0,
                                     reinterpret_cast<sockaddr*>(&from), &size);
      if (got == 0) return;
      if (got > 0 && bytes[0] == 'h') ++from_handlers;
      if (got > 0 && bytes[0] != 'h')
        ::sendto(socket.fd.get(), bytes, static_cast<std::size_t>(got), 0,
                 reinterpret_cast<sockaddr*>(&from), size);
    }
  }
  Socket socket;
  std::atomic<int> from_handlers{0};
  std::thread thread;
};

struct Alarm {
  explicit Alarm(void (*handler)(int), int flags, int microseconds = 300) {
    stopped = 0;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = microseconds},
                          .it_value = {.tv_sec = 0, .tv_usec = microseconds}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  // From a handler, at its end: what it interrupts goes on in between, however long it takes.
  static void once_more(int microseconds) {
    const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = microseconds}};
    if (stopped == 0) ::setitimer(ITIMER_REAL, &once, nullptr);
  }
  static void stop() {
    stopped = 1;
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
  }

 private:
  static inline volatile sig_atomic_t stopped = 0;
};

sigjmp_buf jump_to;
volatile sig_atomic_t may_jump = 0;
void jump(int) {
  if (may_jump == 0) return;
  may_jump = 0;
  ::siglongjmp(jump_to, 1);
}

TEST(DatagramCorners, AReceiveCallCanBeLeftByAJump) {
  const int status = outcome_in_child([] {
    Echo echo;
    const Socket own;
    own.connect_to(echo.socket);
    const Alarm alarm(jump, SA_NODEFER);
    volatile int jumps = 0;
    volatile bool well = true;
    for (volatile int i = 0; i < 20'000 && jumps < 300 && well;) {
      i = i + 1;
      if (sigsetjmp(jump_to, 1) != 0) {
        jumps = jumps + 1;
        // What was on its way.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        while (own.receive(MSG_DONTWAIT) == "ping") continue;
      }
      if (::send(own.fd.get(), "ping", 4, 0) != 4) well = false;
      may_jump = 1;
      char bytes[8];
      const ssize_t got = ::recv(own.fd.get(), bytes, sizeof bytes, 0);
      may_jump = 0;
      if (got != 4 && !(got < 0 && errno == EINTR)) well = false;
    }
    Alarm::stop();
    echo.end(own);
    return well && jumps > 0;
  });
  EXPECT_EQ(status, 0);
}

// What the call had put into the message in place of the program's own would still be there.
TEST(DatagramCorners, AJumpLeavesTheMessageAsItWas) {
  const int status = outcome_in_child([] {
    const Two pair;
    static sockaddr_in from;
    static char bytes[8];
    static iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
    static msghdr message;
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    const Alarm alarm(jump, SA_NODEFER);
    if (sigsetjmp(jump_to, 1) == 0) {
      may_jump = 1;
      ::recvmsg(pair.near.fd.get(), &message, 0);
      return false;
    }
    Alarm::stop();
    return message.msg_name == &from && message.msg_iov == &part;
  });
  EXPECT_EQ(status, 0);
}

TEST(DatagramCorners, OtherThreadsGoOnAfterAJumpOutOfAReceiveCall) {
  const int status = outcome_in_child([] {
    const Socket receiver;
    const Socket sender;
    sender.connect_to(receiver);
    std::atomic<bool> sending{true};
    std::atomic<bool> jumping{true};
    int received = 0;
    std::thread threads[2];
    {
      const NoSignals held;
      threads[0] = std::thread([&] {
        while (sending) (void)::send(sender.fd.get(), "x", 1, 0);
      });
      threads[1] = std::thread([&] {
        while (jumping) std::this_thread::yield();
        while (received < 5000 && receiver.receive() == "x") ++received;
      });
    }
    const Alarm alarm(jump, SA_NODEFER);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 1'000'000 && jumps < 300;) {
      i = i + 1;
      if (sigsetjmp(jump_to, 1) != 0) jumps = jumps + 1;
      char byte = 0;
      may_jump = 1;
      (void)::recv(receiver.fd.get(), &byte, 1, 0);
      may_jump = 0;
    }
    Alarm::stop();
    // What hangs from here on is ended by a signal.
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(60);
    jumping = false;
    threads[1].join();
    sending = false;
    threads[0].join();
    return received == 5000 && jumps > 0;
  });
  EXPECT_EQ(status, 0);
}

const Socket* handlers_receiver = nullptr;
void receive_in_handler(int) {
  const int error = errno;
  char bytes[16];
  for (int i = 0; i < 3; ++i)
    (void)::recv(handlers_receiver->fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  Alarm::once_more(20);
  errno = error;
}

// The receiver takes the memory in the middle of a call that sends by the kernel.
TEST(DatagramCorners, KeepTheirOrderWhereTheReceiverJoinsInTheMiddleOfACall) {
  for (int round = 0; round < 20; ++round) {
    const Ends two;
    handlers_receiver = &two.far;
    const Alarm alarm(receive_in_handler, SA_RESTART, 20);
    for (int i = 0; i < 8; ++i) two.near.send("x");
    Alarm::stop();
    while (two.far.receive(MSG_DONTWAIT) == "x") continue;
    two.warm();
    two.send_by_kernel("first");
    two.near.send("second");
    ASSERT_EQ(two.far.receive(), "first") << round;
    ASSERT_EQ(two.far.receive(), "second") << round;
  }
}

int handlers_fd = -1;
std::atomic<int> handled{0};
const std::atomic<int>* handled_came = nullptr;
// No more than the kernel keeps for a receiver that has no processor for a while.
void send_from_handler(int) {
  const int error = errno;
  if (handled - *handled_came < 100 && ::send(handlers_fd, "h", 1, 0) == 1) ++handled;
  errno = error;
}

TEST(DatagramCorners, AHandlerMaySendInTheMiddleOfACall) {
  Echo echo;
  const Socket own;
  own.connect_to(echo.socket);
  handlers_fd = own.fd.get();
  handled_came = &echo.from_handlers;
  const Alarm alarm(send_from_handler, SA_RESTART);
  for (int i = 0; i < 20'000 && handled < 300; ++i) {
    own.send("ping");
    std::string answer;
    while ((answer = own.receive()) == "(EINTR)") continue;
    ASSERT_EQ(answer, "ping");
  }
  Alarm::stop();
  EXPECT_GT(handled, 0);
  echo.end(own);
  EXPECT_EQ(echo.from_handlers, handled);
}

}  // namespace
}  // namespace farcall::preload
