// SPDX-License-Identifier: Apache-2.0
//
// What becomes of datagrams that nobody has read when their socket goes where the library cannot
// follow it. The tests run as those of datagram_contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "preload/datagram_ring.hpp"

namespace farcall::preload {
namespace {

// Two datagrams that the receiver could read, and where the library is there the kernel could not.
struct Unread : Two {
  using Two::Two;
  void put() const {
    // Who has waited last in a call of the library is taken to do so again.
    std::thread later = in_a_moment(near, "awaited");
    EXPECT_EQ(far.receive(), "awaited");
    later.join();
    near.send("first");
    near.send("second");
    if (preloaded()) {
      EXPECT_FALSE(readable_for_kernel(far.fd.get())) << "not in memory";
    }
  }
};

// What a socket has to be read, each with a sign where it is not from there.
std::string all_of(int fd, const sockaddr_storage& sender) {
  std::string all;
  for (;;) {
    pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&look, 1, all.empty() ? 20'000 : 0) != 1) return all;
    char text[64];
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const ssize_t got =
        ::recvfrom(fd, text, sizeof text, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &size);
    if (got < 0) return all + strerrorname_np(errno);
    all += std::string(text, static_cast<std::size_t>(got)) +
           (std::memcmp(&from, &sender, size) == 0 ? " " : "? ");
  }
}

// Sends a descriptor to this very process; the one that arrives is another.
UniqueFd passed(int fd) {
  int pair[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd here(pair[0]);
  const UniqueFd there(pair[1]);
  EXPECT_TRUE(test::send_descriptor(here.get(), fd));
  return UniqueFd(test::receive_descriptor(there.get()));
}

// `far` gets two datagrams of a process that is no more.
void send_and_die(const char* at, int family, Socket& far, sockaddr_storage& from) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd read_end(fds[0]);
  const UniqueFd write_end(fds[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const Socket near(at, family);
    sockaddr_storage to{};
    (void)!::read(read_end.get(), &to, sizeof to);
    (void)::connect(near.fd.get(), reinterpret_cast<const sockaddr*>(&to), near.size);
    for (char byte = 'x'; byte == 'x';) {
      near.send("ping");
      (void)!::read(read_end.get(), &byte, 1);
    }
    near.send("first");
    near.send("second");
    ::raise(SIGKILL);
  }
  // One that was there before a fork shares no memory.
  const int before = shared_mappings();
  far = Socket(at, family);
  ASSERT_EQ(::write(write_end.get(), &far.name, sizeof far.name),
            static_cast<ssize_t>(sizeof far.name));
  const auto receive = [&] {
    char text[8];
    socklen_t size = sizeof from;
    return ::recvfrom(far.fd.get(), text, sizeof text, 0, reinterpret_cast<sockaddr*>(&from),
                      &size);
  };
  // On a busy machine the two may take more than one try to share memory.
  for (int left = 200, all = 0; left != 0; ++all) {
    ASSERT_EQ(receive(), 4);
    const bool waits = preloaded() && shared_mappings() == before && all < 10'000;
    left -= left > 1 || !waits ? 1 : 0;
    ASSERT_EQ(::write(write_end.get(), left != 0 ? "x" : "e", 1), 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

class DatagramLeaving : public ::testing::TestWithParam<int> {
 protected:
  const int family_ = GetParam();
  const char* const at_ = family_ == AF_INET ? "127.0.0.1" : "::1";
};

TEST_P(DatagramLeaving, APassedSocketHasThem) {
  Unread two(at_, family_);
  two.put();
  const UniqueFd other = passed(two.far.fd.get());
  two.far.fd.reset();
  EXPECT_EQ(all_of(other.get(), two.near.name), "first second ");
}

TEST_P(DatagramLeaving, AChildReadsThemAndTheParentReadsWhatItLeaves) {
  const Unread two(at_, family_);
  two.put();
  EXPECT_EQ(exit_status(in_child([&] { EXPECT_EQ(two.far.receive(), "first"); })), 0);
  EXPECT_EQ(all_of(two.far.fd.get(), two.near.name), "second ");
}

TEST_P(DatagramLeaving, AProgramThatIsExecutedReadsThem) {
  const Unread two(at_, family_);
  two.put();
  const UniqueFd said(::memfd_create("said", MFD_CLOEXEC));
  EXPECT_EQ(exit_status(in_child([&] {
              ::dup2(two.far.fd.get(), STDIN_FILENO);
              ::dup2(said.get(), STDOUT_FILENO);
              ::execlp("dd", "dd", "bs=64", "count=2", "status=none", nullptr);
            })),
            0);
  char text[64] = {};
  EXPECT_EQ(::pread(said.get(), text, sizeof text, 0), 11);
  EXPECT_STREQ(text, "firstsecond");
}

TEST_P(DatagramLeaving, AProgramThatInheritsTheSocketReadsThem) {
  const Unread two(at_, family_);
  ASSERT_EQ(::fcntl(two.far.fd.get(), F_SETFD, 0), 0);
  two.put();
  const std::string input = std::to_string(two.far.fd.get());
  FILE* const program = ::popen(("dd bs=64 count=2 status=none <&" + input).c_str(), "r");
  ASSERT_NE(program, nullptr);
  char text[64] = {};
  EXPECT_NE(std::fgets(text, sizeof text, program), nullptr);
  EXPECT_STREQ(text, "firstsecond");
  EXPECT_EQ(::pclose(program), 0);
}

TEST_P(DatagramLeaving, TheyAreThereWhenTheirSenderIsNot) {
  Socket far(at_, family_);
  sockaddr_storage from{};
  // Where this process last waited for long they come by the kernel.
  for (int tries = 0; tries < 100; ++tries) {
    ASSERT_NO_FATAL_FAILURE(send_and_die(at_, family_, far, from));
    if (!preloaded() || !readable_for_kernel(far.fd.get())) break;
  }
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(far.fd.get())) << "not in memory";
  }
  const UniqueFd other = passed(far.fd.get());
  far.fd.reset();
  EXPECT_EQ(all_of(other.get(), from), "first second ");
}

TEST_P(DatagramLeaving, ShuttingDownIsToldBesideThem) {
  for (const int how : {SHUT_RD, SHUT_RDWR}) {
    const Unread two(at_, family_);
    two.put();
    const Set set(two.far.fd.get(), EPOLLIN | EPOLLRDHUP);
    ASSERT_EQ(::shutdown(two.far.fd.get(), how), 0);
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.set.get(), &event, 1, 20'000), 1);
    EXPECT_EQ(event.events, EPOLLIN | EPOLLRDHUP | (how == SHUT_RDWR ? EPOLLHUP : 0U));
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "first");
  }
}

TEST_P(DatagramLeaving, ReadingNothingTakesNone) {
  const Unread two(at_, family_);
  two.put();
  char text[8];
  iovec none{.iov_base = text, .iov_len = 0};
  EXPECT_EQ(::read(two.far.fd.get(), text, 0), 0);
  EXPECT_EQ(::readv(two.far.fd.get(), &none, 1), 0);
  EXPECT_EQ(::writev(two.near.fd.get(), &none, 1), 0);
  EXPECT_EQ(all_of(two.far.fd.get(), two.near.name), "first second ");
}

TEST_P(DatagramLeaving, ASetInASetTellsOfThem) {
  const Unread two(at_, family_);
  two.put();
  const Set inner(two.far.fd.get(), EPOLLIN);
  const Set outer(inner.set.get(), EPOLLIN);
  EXPECT_EQ(outer.wait(20'000), inner.set.get());
  EXPECT_EQ(inner.wait(), two.far.fd.get());
  EXPECT_EQ(all_of(two.far.fd.get(), two.near.name), "first second ");
  EXPECT_EQ(inner.wait(), -1);
}

INSTANTIATE_TEST_SUITE_P(Of, DatagramLeaving, ::testing::Values(AF_INET, AF_INET6),
                         [](const auto& tested) { return tested.param == AF_INET ? "v4" : "v6"; });

// The memory in which the datagrams lie that nobody has read, as a hostile sender has it.
DatagramMemory memory_of_unread() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (line.find("memfd:farcall-udp") == std::string::npos ||
        std::sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2)
      continue;
    const DatagramMemory memory{.control = reinterpret_cast<DatagramControl*>(from),
                                .bytes = reinterpret_cast<std::byte*>(from) + kDatagramControlBytes,
                                .size = to - from - kDatagramControlBytes};
    const std::uint64_t tail = memory.control->tail & ~DatagramControl::kWatchedBit;
    if (memory.control->head != tail) return memory;
  }
  return {};
}

// A sender that publishes on and on, though it is told to use the kernel.
TEST(DatagramHostility, LeavingIsNotHeldUpByASenderThatDoesNotStop) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  Unread two;
  two.put();
  const DatagramMemory memory = memory_of_unread();
  ASSERT_NE(memory.control, nullptr);
  // Datagrams of no bytes.
  std::memset(memory.bytes, 0, memory.size);
  const std::uint64_t before = memory.control->head;
  std::atomic<bool> over{false};
  std::atomic<bool> begun{false};
  std::thread sender([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!over && std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 1000; ++i) memory.control->tail = memory.control->head + memory.size - 16;
      begun = true;
    }
  });
  while (!begun) std::this_thread::yield();
  const UniqueFd other = passed(two.far.fd.get());
  over = true;
  sender.join();
  // No more than could be there.
  EXPECT_LE(memory.control->head - before, memory.size);
  const Two more;  // asserts that they work, and share memory
}

constexpr int kMany = 17'000;

// So that what the library opens from now on has a higher number than those.
std::vector<UniqueFd> many_files() {
  std::vector<UniqueFd> all;
  do all.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  while (all.back().get() >= 0 && all.back().get() < kMany);
  EXPECT_EQ(all.back().get(), kMany);
  return all;
}

int descriptors_beyond() {
  int count = 0;
  for (int fd = kMany + 1; fd < kMany + 100; ++fd)
    if (kernel(SYS_fcntl, fd, F_GETFD) >= 0) ++count;
  return count;
}

// However high these are.
TEST(DatagramCopies, OfAProcessHaveNoneOfTheLibrarysDescriptors) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kMany + 100) GTEST_SKIP() << "too few descriptors are allowed";
  EXPECT_EQ(exit_status(in_child([&] {
              limit.rlim_cur = limit.rlim_max;
              ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
              const Socket server;
              const Socket client;
              client.connect_to(server);
              const std::vector<UniqueFd> others = many_files();
              for (int i = 0; i < 3; ++i) {
                client.send("ping");
                EXPECT_EQ(server.receive(), "ping");
              }
              EXPECT_EQ(descriptors_beyond(), preloaded() ? 1 : 0) << "nobody can find the server";
              EXPECT_EQ(exit_status(in_child([] { EXPECT_EQ(descriptors_beyond(), 0); })), 0);
            })),
            0);
}

}  // namespace
}  // namespace farcall::preload
