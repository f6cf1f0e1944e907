// SPDX-License-Identifier: Apache-2.0
//
// Bytes that are moved by other calls than read, write, send and receive, and descriptors that come
// and go in unusual ways. These tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "children.hpp"
#include "executed.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

extern "C" int __fcntl(int fd, int command, ...);

namespace farcall::preload {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

iovec part(std::string& text) { return {.iov_base = text.data(), .iov_len = text.size()}; }

// Receives so many bytes, in as many messages.
std::string receive_all(int fd, std::size_t count) {
  std::string all;
  while (all.size() < count) {
    const std::string more = receive(fd);
    if (more.front() == '(') return all + more;
    all += more;
  }
  return all;
}

// The kernel writes behind what is in memory already.
TEST(Calls, WhatIsWrittenWithFlagsOfFilesKeepsItsPlace) {
  for (const int flag : {RWF_DSYNC, RWF_SYNC, RWF_HIPRI, RWF_APPEND}) {
    const UsedPair pair;
    std::string second = "second ";
    const iovec piece = part(second);
    pair.put("first ");
    EXPECT_EQ(::pwritev2(pair.client.get(), &piece, 1, -1, flag), 7) << flag;
    pair.put("third");
    EXPECT_EQ(receive_all(pair.server.get(), 18), "first second third") << flag;
    pair.put("fourth");
    std::string room(6, '\0');
    const iovec into = part(room);
    EXPECT_EQ(::preadv2(pair.server.get(), &into, 1, -1, RWF_HIPRI | RWF_NOWAIT), 6);
    EXPECT_EQ(room, "fourth");
    pair.talk(3);
  }
}

// What the library does as the kernel would is no reason to leave.
TEST(Calls, WhoReadsAndWritesWithFlagsThatSocketsIgnoreStaysInMemory) {
  for (const int flags : {RWF_NOWAIT, RWF_DSYNC, RWF_SYNC | RWF_NOWAIT, RWF_HIPRI, RWF_APPEND}) {
    const UsedPair pair;
    std::string text = "written";
    const iovec piece = part(text);
    EXPECT_EQ(::pwritev2(pair.client.get(), &piece, 1, -1, flags), 7) << flags;
    text = "nothing";
    EXPECT_EQ(::preadv2(pair.server.get(), &piece, 1, -1, flags), 7) << flags;
    EXPECT_EQ(text, "written");
    EXPECT_EQ(pair.comes_to_memory(), preloaded()) << flags;
  }
}

// And refuses what is wrong before it asks the socket.
TEST(Calls, NothingIsMovedWithFlagsOfFilesWhereNoByteIsWanted) {
  const Pair pair;
  const int server = pair.server.get();
  const int client = pair.client.get();
  std::string byte(1, 'x');
  const iovec nothing{.iov_base = byte.data(), .iov_len = 0};
  const std::vector<iovec> many(2000, part(byte));
  volatile std::uintptr_t in_first_page = 16;  // not for the compiler to know
  const auto* const nowhere = reinterpret_cast<const iovec*>(in_first_page);
  for (const int flag : {0, RWF_NOWAIT}) {
    EXPECT_EQ(::preadv2(server, &nothing, 1, -1, flag), 0) << errno_name();
    EXPECT_EQ(::pwritev2(client, &nothing, 1, -1, flag), 0) << errno_name();
    EXPECT_EQ(::preadv2(server, many.data(), 2000, -1, flag), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::pwritev2(client, many.data(), 2000, -1, flag), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::preadv2(server, nowhere, 1, -1, flag), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::pwritev2(client, nowhere, 1, -1, flag), -1);
    EXPECT_EQ(errno, EFAULT);
    pair.talk(3);
  }
}

TEST(Calls, TheKernelsAsynchronousCallsKeepTheirPlace) {
  aio_context_t context = 0;
  if (::syscall(SYS_io_setup, 4, &context) != 0) GTEST_SKIP() << "this kernel has no AIO";
  const UsedPair pair;
  std::string second = "second ";
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_PWRITE;
  request.aio_fildes = static_cast<std::uint32_t>(pair.client.get());
  request.aio_buf = reinterpret_cast<std::uintptr_t>(second.data());
  request.aio_nbytes = second.size();
  iocb* requests[] = {&request};
  io_event event{};
  pair.put("first ");
  ASSERT_EQ(::syscall(SYS_io_submit, context, 1L, requests), 1);
  ASSERT_EQ(::syscall(SYS_io_getevents, context, 1L, 1L, &event, nullptr), 1);
  EXPECT_EQ(event.res, 7);
  pair.put("third");
  EXPECT_EQ(receive_all(pair.server.get(), 18), "first second third");
  ::syscall(SYS_io_destroy, context);
}

constexpr timespec kLongEnough{.tv_sec = 10, .tv_nsec = 0};

// A BPF program joins it to another there. Whether the kernel takes it makes no difference.
TEST(Calls, ASocketIsTheKernelsBeforeItIsPutIntoAMapOfBpf) {
  const UsedPair pair;
  pair.put("first ");
  const std::uint32_t key = 0;
  const std::int32_t value = pair.client.get();
  bpf_attr change{};
  change.map_fd = 1000;
  change.key = reinterpret_cast<std::uintptr_t>(&key);
  change.value = reinterpret_cast<std::uintptr_t>(&value);
  EXPECT_EQ(::syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &change, sizeof change), -1);
  pair.put("second");
  pollfd there{.fd = pair.server.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(kernel(SYS_ppoll, &there, 1, &kLongEnough, nullptr, 0), 1);
  EXPECT_EQ(receive_all(pair.server.get(), 12), "first second");
  pair.talk(3);
}

TEST(Calls, BytesAreSentFromAConnectionIntoAPipe) {
  const UsedPair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  pair.put("from memory");
  EXPECT_EQ(::sendfile(in.get(), pair.server.get(), nullptr, 11), 11);
  char text[16];
  EXPECT_EQ(::read(out.get(), text, sizeof text), 11);
  EXPECT_EQ(std::string(text, 11), "from memory");
  pair.talk(20);
}

TEST(Calls, WhoReceivesNothingIsWokenByTheFirstByte) {
  const UsedPair pair;
  std::thread sender([&] {
    std::this_thread::sleep_for(100ms);
    pair.put("something");
  });
  const auto start = Clock::now();
  EXPECT_EQ(::recv(pair.server.get(), nullptr, 0, 0), 0);
  EXPECT_LT(Clock::now() - start, 10s);
  sender.join();
  if (!over_packets()) {
    EXPECT_EQ(receive(pair.server.get()), "something");
  }
}

// The time is of the whole call, not of each piece that comes.
TEST(Calls, ATimeLimitIsOfTheWholeTcpCall) {
  const Pair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 600'000};
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::thread sender([&] {
    for (int i = 0; i < 40; ++i) {
      pair.put("x");
      std::this_thread::sleep_for(200ms);
    }
  });
  const std::string got = receive(pair.server.get(), 40, MSG_WAITALL);
  EXPECT_LT(got.size(), 20U);
  EXPECT_NE(got.front(), '(');
  sender.join();
}

TEST(Calls, ATcpSendEndsWithItsTimeLimitThoughSomeIsRead) {
  const Pair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 500'000};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      (void)receive(pair.server.get(), 300'000, MSG_DONTWAIT);
      std::this_thread::sleep_for(150ms);
    }
  });
  const std::string much(64 << 20, 'x');
  const auto start = Clock::now();
  EXPECT_LT(std::stoul(send(pair.client.get(), much)), much.size());
  EXPECT_LT(Clock::now() - start, 10s);
  done = true;
  reader.join();
}

// The C library writes there by itself.
TEST(Calls, AConnectionMayTakeThePlaceOfAnOpenFile) {
  const UsedPair pair;
  std::FILE* const stream = std::fopen("/dev/null", "w");
  ASSERT_NE(stream, nullptr);
  ASSERT_EQ(::dup2(pair.client.get(), fileno(stream)), fileno(stream));
  pair.put("first ");
  std::fputs("second ", stream);
  std::fflush(stream);
  pair.put("third");
  EXPECT_EQ(receive_all(pair.server.get(), 18), "first second third");
  std::fclose(stream);
  pair.talk(3);
}

TEST(Calls, CallsThatAreRefusedLeaveTheConnection) {
  const UsedPair pair;
  const Pair other;
  pair.put("still there");
  const int number = pair.server.get();
  EXPECT_EQ(::dup3(other.server.get(), number, O_APPEND), -1);
  EXPECT_EQ(errno, EINVAL);
  const auto range = static_cast<unsigned>(number);
  EXPECT_EQ(::close_range(range, range, 1 << 20), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(receive(number), "still there");
  pair.talk(3);
}

TEST(Calls, ACopyByTheOtherNameOfFcntlIsTheSameSocket) {
  const UsedPair pair;
  pair.put("text");
  const UniqueFd copy(__fcntl(pair.server.get(), F_DUPFD_CLOEXEC, 3));
  EXPECT_EQ(receive(copy.get(), 16, MSG_DONTWAIT), "text");
}

// No numbers mean the same to all threads any more.
TEST(Calls, AThreadMayCloseDescriptorsOfItsOwn) {
  EXPECT_EQ(exit_status(in_child([] {
              const Pair pair;
              const auto number = static_cast<unsigned>(pair.server.get());
              std::thread([&] {
                EXPECT_EQ(::close_range(number, number, CLOSE_RANGE_UNSHARE), 0);
              }).join();
              EXPECT_EQ(send(pair.client.get(), "here"), "4");
              EXPECT_EQ(receive(pair.server.get()), "here");
            })),
            0);
}

// It has the parent's memory, but is not the one that ends.
pid_t vfork_child_that_ends(bool by_number) {
  const pid_t child = ::vfork();
  if (child != 0) return child;
  if (by_number) ::syscall(SYS_exit_group, 0);
  ::_exit(0);
}

TEST(TcpCalls, TheEndOfAVforkChildIsNotTheParents) {
  for (const bool by_number : {false, true}) {
    Pair pair(false);
    EXPECT_EQ(exit_status(vfork_child_that_ends(by_number)), 0);
    pair.warm_up();  // expects that memory is shared: nobody else holds the connection
  }
}

// Its descriptors are its own, its memory is not.
TEST(Calls, AVforkChildsNewSocketIsNotTheParents) {
  const UsedPair pair;
  pair.put("kept");
  const int number = pair.server.get();
  const pid_t child = ::vfork();
  if (child == 0) {
    ::syscall(SYS_close, number);
    int fresh = -1;
    for (int i = 0; i < 100 && fresh != number; ++i) fresh = ::socket(AF_INET, SOCK_STREAM, 0);
    ::_exit(fresh == number ? 0 : 1);
  }
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(pair.server.get()), "kept");
  pair.talk(3);
  if (preloaded()) {
    EXPECT_NE(stream_mappings(), 0);
  }
}

// Nor is the file that it puts there and executes a program with.
TEST(Calls, AnotherFileAtTheNumberInAVforkChildGetsNothing) {
  const UsedPair pair;
  const int number = pair.client.get();
  int others[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, others), 0);
  const UniqueFd put(others[0]);
  const UniqueFd other(others[1]);
  pair.put("kept");
  const int file = put.get();
  const pid_t child = ::vfork();
  if (child == 0) {
    if (::dup2(file, number) == number) ::execlp("true", "true", nullptr);
    ::_exit(1);
  }
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(other.get(), 64, MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(receive(pair.server.get(), 64, MSG_DONTWAIT), "kept");
  EXPECT_EQ(pair.comes_to_memory(), preloaded());
}

// As a program does whose processors others want as well, to a peer that sleeps.
const bool kPlayed = [] {
  play_role("writes many parts", [] {
    const Pair pair;
    const pid_t sleeper = in_child([&] { (void)receive(pair.server.get()); });
    ::usleep(100'000);
    std::string ten = "0123456789";
    const std::vector<iovec> parts(100, part(ten));
    if (::fcntl(pair.client.get(), F_SETFL, O_NONBLOCK) != 0) return 2;
    const bool whole = ::writev(pair.client.get(), parts.data(), 100) == 1000;
    return exit_status(sleeper) == 0 && whole ? 0 : 3;
  });
  return true;
}();

// Who is told of less waits for the edge that says there is room again.
TEST(Calls, ManySmallTcpPartsAreTakenWholeWhereThereIsRoom) {
  ASSERT_TRUE(kPlayed);
  const auto [status, said] = execute_as("writes many parts", {"FARCALL_TEST_COMPETES=2"});
  EXPECT_EQ(status, 0) << said;
}

}  // namespace
}  // namespace farcall::preload
