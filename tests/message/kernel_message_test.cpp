// SPDX-License-Identifier: Apache-2.0
//
// Messages over the module, where it differs from shared memory: for the emulated machine, where
// the module is.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <fstream>

#include "farcall/error.hpp"
#include "harness/error_of.hpp"
#include "message/channel.hpp"
#include "message/engine.hpp"
#include "message/kernel.hpp"

namespace farcall::message::test {
namespace {

// SIGUSR1 tells of itself, for in a static program the library does not know of handlers, and asks
// for what it has interrupted to be made again.
void let_signals_restart() {
  struct sigaction action {};
  action.sa_handler = [](int) { note_signal(); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
}

// What errno a thread's wait ends with that one signal interrupts once it sleeps. `end` has it end
// otherwise.
template <class Wait, class End>
int interrupted_once(Wait wait, End end) {
  let_signals_restart();
  std::atomic<pid_t> id{0};
  std::atomic<bool> over{false};
  int error = 0;
  std::thread thread([&] {
    id = static_cast<pid_t>(::syscall(SYS_gettid));
    error = wait() < 0 ? errno : 0;
    over = true;
  });
  EXPECT_TRUE(sleeps(id));
  ::pthread_kill(thread.native_handle(), SIGUSR1);
  if (!eventually([&] { return over.load(); })) end();
  thread.join();
  return error;
}

TEST(MessageModule, AHandlerThatRestartsEndsTheWaitForAMessage) {
  Channel channel;
  const auto end = [&] { farcall_pulse(channel.connection, 0, 1, 1); };
  EXPECT_EQ(interrupted_once([&] { return farcall_receive(channel.id, nullptr, 0, nullptr); }, end),
            EINTR);
  const auto reply_receive = [&] {
    return farcall_reply_receive(0, 0, nullptr, 0, channel.id, nullptr, 0, nullptr);
  };
  EXPECT_EQ(interrupted_once(reply_receive, end), EINTR);
}

TEST(MessageModule, AHandlerThatRestartsEndsTheWaitAfterAnAnswer) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 3); });
  const Message message = receive(channel.id);
  const auto wait = [&] {
    return farcall_reply_receive(message.id, 3, nullptr, 0, channel.id, nullptr, 0, nullptr);
  };
  EXPECT_EQ(interrupted_once(wait, [&] { farcall_pulse(channel.connection, 0, 1, 1); }), EINTR);
  client.join();
}

TEST(MessageModule, AHandlerThatRestartsEndsTheWaitOfWhoIsNotReceived) {
  Channel channel;
  const auto wait = [&] { return farcall_send(channel.connection, "x", 1, nullptr, 0); };
  const auto end = [&] { answer(receive(channel.id).id, 0); };
  EXPECT_EQ(interrupted_once(wait, end), EINTR);
  EXPECT_EQ(receive(channel.id, 1, 0ns).error, ETIMEDOUT) << "nobody waits for that any more";
}

// The handler runs when it has been answered.
TEST(MessageModule, AnAnswerIsNoTimeoutThoughASignalIsCaught) {
  let_signals_restart();
  Channel channel(FARCALL_UNBLOCK);
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").error, ETIMEDOUT); });
  const Message message = receive(channel.id);
  ::pthread_kill(client.native_handle(), SIGUSR1);
  EXPECT_EQ(receive(channel.id).info.value, message.id) << "it stays";
  EXPECT_EQ(farcall_error(message.id, ETIMEDOUT), 0);
  client.join();
}

// A handler that has run before the thread comes to the kernel.
TEST(MessageModule, ASignalThatWasCaughtBeforeEndsTheWait) {
  give_up_after(60s);
  let_signals_restart();
  const auto channel = kernel_engine()->create({}, 0, 0);
  UniqueFd descriptor = channel->connect();
  const auto connection = kernel_engine()->adopt(descriptor);
  ASSERT_NE(connection, nullptr);
  for (const Deadline deadline : {Deadline::after(kPatience), Deadline::never()}) {
    const SignalCount since = SignalCount::now();
    ASSERT_EQ(::raise(SIGUSR1), 0);
    EXPECT_EQ(error_of([&] { channel->receive({}, deadline, nullptr, since); }), EINTR);
    Sending sending{.message = {}, .room = {}, .descriptors = {}, .since = since};
    EXPECT_EQ(error_of([&] { connection->send(sending, deadline); }), EINTR);
    // What is there is received all the same.
    connection->pulse(0, 5, 6);
    farcall_info info{};
    EXPECT_EQ(channel->receive({}, deadline, &info, since), 0);
    EXPECT_EQ(info.code, 5);
  }
}

TEST(MessageModule, WhoseAnswerIsRefusedWaitsOn) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").text, "better"); });
  const Message message = receive(channel.id);
  const auto* nowhere = reinterpret_cast<const void*>(8);
  EXPECT_EQ(farcall_reply_receive(message.id, 0, nowhere, 100, channel.id, nullptr, 0, nullptr),
            -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(answer(message.id, 0, "better"), 0) << std::strerror(errno);
  EXPECT_EQ(answer(message.id, 0, "twice"), -1);
  EXPECT_EQ(errno, ESRCH);
  client.join();
}

TEST(MessageModule, AnIdIsGoodForNothingOnceItsAnswerWasGiven) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").text, "1"); });
  const Message message = receive(channel.id);
  farcall_timeout(0);
  EXPECT_EQ(farcall_reply_receive(message.id, 0, "1", 1, channel.id, nullptr, 0, nullptr), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_EQ(answer(message.id, 0, "2"), -1);
  EXPECT_EQ(errno, ESRCH);
  client.join();
}

// Sends a descriptor along, and expects to be told that the server has no room for it.
void expect_no_room(int connection) {
  const int descriptor = STDERR_FILENO;
  farcall_message message{};
  message.descriptors = &descriptor;
  message.descriptor_count = 1;
  EXPECT_EQ(farcall_send_message(connection, &message), -1);
  EXPECT_EQ(errno, EMFILE);
}

// No message stops the others of a server that has no descriptor left.
TEST(MessageModule, WhoSendsMoreThanTheServerHasRoomForIsToldAndNobodyElse) {
  Channel channel;
  const Shared<Event> go;
  const Shared<Event> next;
  Child greedy([&] {
    expect_no_room(channel.connection);
    ASSERT_TRUE(next->wait());
    expect_no_room(channel.connection);
  });
  pollfd first{.fd = farcall_channel_descriptor(channel.id), .events = POLLIN, .revents = 0};
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};  // which are open
  const std::string answers[] = {"1", "2"};
  Child modest([&] {
    ASSERT_TRUE(go->wait());
    for (const std::string& text : answers) EXPECT_EQ(send(channel.connection, text).text, text);
  });
  ASSERT_TRUE(eventually([&] { return ::poll(&first, 1, 0) == 1; }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  go->happens();
  Message message = receive(channel.id);
  EXPECT_EQ(message.text, "1") << std::strerror(message.error);
  next->happens();
  ASSERT_TRUE(eventually([&] { return ::poll(&first, 1, 0) == 1; }));
  message.text.resize(1);
  farcall_timeout(std::chrono::nanoseconds(kPatience).count());
  message.id = farcall_reply_receive(message.id, 0, message.text.data(), 1, channel.id,
                                     message.text.data(), 1, &message.info);
  EXPECT_GT(message.id, FARCALL_ONE_WAY) << std::strerror(errno);
  EXPECT_EQ(message.text, "2");
  EXPECT_EQ(answer(message.id, 0, message.text), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(greedy.join(), 0);
  EXPECT_EQ(modest.join(), 0);
}

// Its sender cannot be told any more, and has been told that it was received.
TEST(MessageModule, WhatWantsNoAnswerComesWithoutDescriptorsThatThereIsNoRoomFor) {
  give_up_after(60s);
  const auto channel = kernel_engine()->create({}, 0, 0);
  const UniqueFd connection = channel->connect();
  const std::int32_t file = STDERR_FILENO;
  char text[] = "text";
  std::thread sender([&] {
    SendArguments send{};
    send.send = ::stplr_bytes(text, 4);
    send.timeout_ns = -1;
    send.files = reinterpret_cast<std::uintptr_t>(&file);
    send.file_count = 1;
    send.flags = STPLR_SEND_ONE_WAY;
    EXPECT_EQ(::stplr_send_full(connection.get(), &send), 0);
  });
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};  // which are open
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  char came[8] = "";
  const iovec into{.iov_base = came, .iov_len = sizeof came};
  farcall_info info{};
  std::int64_t id = 0;
  EXPECT_EQ(error_of([&] {
              id = channel->receive(Buffers(&into, 1), Deadline::after(kPatience), &info,
                                    SignalCount::now());
            }),
            0);
  EXPECT_EQ(id, FARCALL_ONE_WAY);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(std::string_view(came, info.received), "text");
  EXPECT_EQ(info.descriptor_count, 0U);
  sender.join();
}

// The kernel knows its priority; the library has looked it up before.
TEST(MessageModule, APulseHasThePriorityThatItsSenderHasNow) {
  Channel channel;
  std::thread([&] {
    const int before = farcall_priority();
    const auto self = static_cast<id_t>(::syscall(SYS_gettid));
    ASSERT_EQ(::setpriority(PRIO_PROCESS, self, ::getpriority(PRIO_PROCESS, self) + 3), 0);
    EXPECT_EQ(farcall_pulse(channel.connection, 0, 1, 1), 0) << std::strerror(errno);
    EXPECT_EQ(receive(channel.id).info.priority, before - 3);
    EXPECT_EQ(farcall_pulse(channel.connection, before, 1, 1), -1);
    EXPECT_EQ(errno, EINVAL);
  }).join();
}

// On to a user namespace that shows the user as that number.
bool become_shown_as(uid_t number) {
  const std::string self = std::to_string(::geteuid());
  if (::unshare(CLONE_NEWUSER) != 0) return false;
  std::ofstream("/proc/self/uid_map") << number << " " << self << " 1";
  return ::geteuid() == number;
}

TEST(MessageModule, ANameIsTheUsersWhoseNumberTheKernelKnows) {
  const uid_t user = kNobody;
  const Shared<Event> serves;
  const Shared<Event> done;
  Child namesake([&] {
    ASSERT_TRUE(become(user));
    ASSERT_GT(farcall_name_attach("clock", 0, 0666), 0) << std::strerror(errno);
    serves->happens();
    ASSERT_TRUE(done->wait());
  });
  ASSERT_TRUE(serves->wait());
  in_child([&] {
    ASSERT_TRUE(become_shown_as(user)) << std::strerror(errno);
    EXPECT_EQ(farcall_name_open("clock"), -1) << "it is somebody else's";
    EXPECT_EQ(errno, ENOENT);
    EXPECT_GT(farcall_name_attach("clock", 0, 0600), 0) << std::strerror(errno);
    EXPECT_GT(farcall_name_open("clock"), 0) << std::strerror(errno);
  });
  done->happens();
  EXPECT_EQ(namesake.join(), 0);
}

// From here on an ioctl() on that descriptor ends this process.
bool let_ioctls_end_this(int descriptor) {
  const std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(descriptor), 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = const_cast<sock_filter*>(filter.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Its file system may be one of FUSE, whose server never answers.
TEST(MessageModule, NoFileIsAskedWhetherItIsAConnection) {
  const int file = ::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0) << std::strerror(errno);
  in_child([&] {
    ASSERT_TRUE(let_ioctls_end_this(file)) << std::strerror(errno);
    EXPECT_EQ(farcall_adopt(file), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_GE(::fcntl(file, F_GETFD), 0) << "it stays open";
  });
  ::close(file);
}

}  // namespace
}  // namespace farcall::message::test
