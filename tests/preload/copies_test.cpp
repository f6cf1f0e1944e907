// SPDX-License-Identifier: Apache-2.0
//
// Several numbers, or several processes, for one end of a stream: who closes its copy takes nothing
// away from the others. The tests run as they are and with the library preloaded.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "children.hpp"
#include "harness/ancillary_message.hpp"
#include "preload/real.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// What a program does that has nothing to do.
void wait_for_a_moment() {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  pollfd wait{.fd = pipe[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 5), 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

template <class Work>
void in_forked_child(Work work) {
  EXPECT_EQ(exit_status(in_child(work)), 0);
}

TEST(Copies, AChildSendsAndClosesAndTheParentGoesOn) {
  UsedPair pair;
  for (int i = 0; i < 3; ++i) {
    in_forked_child([&] {
      EXPECT_EQ(send(pair.client.get(), "of the child, "), "14");
      pair.client.reset();
      wait_for_a_moment();
    });
    EXPECT_EQ(send(pair.client.get(), "of the parent"), "13");
    std::string all;
    while (all.size() < 27) all += receive(pair.server.get());
    EXPECT_EQ(all, "of the child, of the parent");
  }
  pair.talk(10);
}

TEST(Copies, AChildReadsAndClosesAndTheParentGoesOn) {
  UsedPair pair;
  for (int i = 0; i < 3; ++i) {
    pair.put("for the child, for the parent");
    in_forked_child([&] {
      EXPECT_EQ(receive(pair.server.get(), 15), "for the child, ");
      pair.server.reset();
    });
    EXPECT_EQ(receive(pair.server.get()), "for the parent");
  }
  pair.talk(10);
}

TEST(Copies, TheParentSendsAndClosesAndTheChildGoesOn) {
  UsedPair pair;
  int go[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    pair.server.reset();
    char byte;
    if (::read(go[0], &byte, 1) != 1 || send(pair.client.get(), "of the child") != "12") ::_exit(1);
    ::_exit(0);
  }
  EXPECT_EQ(send(pair.client.get(), "of the parent, "), "15");
  pair.client.reset();
  wait_for_a_moment();
  EXPECT_EQ(::write(go[1], "x", 1), 1);
  std::string all;
  for (std::string part; (part = receive(pair.server.get())) != "(end)" && part[0] != '(';)
    all += part;
  EXPECT_EQ(all, "of the parent, of the child");
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(go[0]);
  ::close(go[1]);
}

TEST(Copies, AnotherSocketUnderTheNumberOfAClosedCopyGetsNothing) {
  UsedPair pair;
  wait_for_a_moment();  // nothing is left of what was sent by way of the other number
  const int copy = ::fcntl(pair.client.get(), F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(copy, 0);
  EXPECT_EQ(send(copy, "for the server"), "14");
  ASSERT_EQ(::close(copy), 0);
  int other[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other), 0);
  EXPECT_TRUE(other[0] == copy || other[1] == copy);
  wait_for_a_moment();
  for (const int end : other) EXPECT_EQ(receive(end, 100, MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(receive(pair.server.get()), "for the server");
  ::close(other[0]);
  ::close(other[1]);
}

// --- descriptors that a connection costs until both ends have met

// A connection whose client looks for its peer, which does not answer.
struct LookingPair : Pair {
  LookingPair() : Pair(false) {
    for (int i = 0; i < 8; ++i) put("?");
  }
};

// As many as this process may still have.
std::vector<UniqueFd> all_descriptors() {
  std::vector<UniqueFd> all;
  for (int fd = 0; (fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0;)
    all.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  return all;
}

std::vector<UniqueFd> all_files() {
  std::vector<UniqueFd> all;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  return all;
}

constexpr rlim_t kDescriptors = 256;
void limit_descriptors() {
  const rlimit limit{.rlim_cur = kDescriptors, .rlim_max = kDescriptors};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Copies, ConnectionsThatLookForTheirPeersLeaveTheProgramItsDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_descriptors().size();
    const std::vector<LookingPair> pairs(60);
    EXPECT_EQ(all_descriptors().size(), there_are - 120);
  });
}

TEST(Copies, ConnectionsThatLookForTheirPeersLeaveAlmostAllFiles) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_files().size();
    const std::vector<LookingPair> pairs(60);
    EXPECT_GE(all_files().size(), there_are - 120 - kDescriptors / 16);
  });
}

TEST(Copies, AConnectionThatCannotLookNowIsAcceleratedLater) {
  in_forked_child([] {
    limit_descriptors();
    std::vector<LookingPair> pairs(60);
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), 0);
    }
    pairs.erase(pairs.begin(), pairs.begin() + 40);
    const Pair pair;
  });
}

TEST(Copies, AChildThatClosesOneLeavesNoDescriptorBehind) {
  in_forked_child([] {
    limit_descriptors();
    const std::size_t there_are = all_files().size();
    {
      const LookingPair pair;
      in_forked_child([&] { ::close(pair.client.get()); });
    }
    EXPECT_EQ(all_files().size(), there_are);
  });
}

// Those of the library are given up before the program has to go without one.
TEST(Copies, AConnectionIsAcceptedWhereTheLibraryHasTheLastDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const UniqueFd client = connect_to(address);
    const std::vector<LookingPair> pairs(20);
    std::vector<UniqueFd> files = all_files();
    if (!preloaded()) files.pop_back();
    const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
    EXPECT_GE(server.get(), 0) << errno_name();
  });
}

TEST(Copies, APairIsMadeWhereTheLibraryHasTheLastDescriptors) {
  in_forked_child([] {
    limit_descriptors();
    const std::vector<LookingPair> pairs(20);
    std::vector<UniqueFd> files = all_files();
    if (!preloaded()) files.resize(files.size() - 2);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0) << errno_name();
    const UniqueFd one(ends[0]);
    const UniqueFd other(ends[1]);
  });
}

// From here on the kernel stops this thread in each fcntl() with that command, until whoever reads
// what is returned lets it go on. The library does not see who asked for it.
int stop_in_fcntl(unsigned command) {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, command, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  kernel(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return static_cast<int>(
      kernel(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

// Another thread of a process, which forks in the middle of what the first one does.
class ForkingThread {
 public:
  template <class Work>
  explicit ForkingThread(Work in_child)
      : thread_([this, in_child] {
          stopped_.wait(kNobody);
          seccomp_notif there{};
          kernel(SYS_ioctl, stopped_.load(), SECCOMP_IOCTL_NOTIF_RECV, &there);
          if (::fork() == 0) in_child();
          forked_ = true;
          do {
            seccomp_notif_resp goes_on{
                .id = there.id, .val = 0, .error = 0, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
            kernel(SYS_ioctl, stopped_.load(), SECCOMP_IOCTL_NOTIF_SEND, &goes_on);
            there = {};
          } while (kernel(SYS_ioctl, stopped_.load(), SECCOMP_IOCTL_NOTIF_RECV, &there) == 0);
        }) {}
  // When the calling thread, which nobody stops in anything else, comes to that.
  void fork_in_fcntl(unsigned command) {
    stopped_ = stop_in_fcntl(command);
    stopped_.notify_one();
  }
  [[nodiscard]] bool has_forked() const { return forked_; }

 private:
  static constexpr int kNobody = -2;
  std::atomic<int> stopped_{kNobody};
  std::atomic<bool> forked_{false};
  std::thread thread_;
};

// Sends an 'f' for each 'x' once it has forked, then what the parent of a child sends, and ends.
void serve_and_fork(int fd, unsigned command, const Steps& steps, int told) {
  const auto in_child = [&] {
    ::alarm(30);
    steps.await();
    if (send(fd, "b") != "1") ::_exit(1);
    steps.done();
    steps.await();
    const std::string got = receive(fd);
    kernel(SYS_write, told, got.data(), got.size());
    ::_exit(0);
  };
  static ForkingThread* other = nullptr;
  if (preloaded()) (other = new ForkingThread(in_child))->fork_in_fcntl(command);
  bool forked = false;
  for (int i = 0; receive(fd) == "x"; ++i) {
    if (!preloaded() && i == 20 && ::fork() == 0) in_child();
    forked = other != nullptr ? other->has_forked() : i >= 20;
    if (send(fd, forked ? "f" : "x") != "1") ::_exit(1);
  }
  if (send(fd, "ccc") != "3") ::_exit(1);
  ::pause();
}

// `accepts`: it is the accepting end that is forked while it makes the memory.
void fork_while_memory_is_made(bool accepts) {
  Address address;
  UniqueFd listener = listen_on_loopback(address);
  const Steps steps;
  int told[2];
  ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
  const pid_t child = in_child([&] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const UniqueFd fd = accepts ? accept_from(listener) : connect_to(address);
    serve_and_fork(fd.get(), accepts ? F_ADD_SEALS : F_GET_SEALS, steps, told[1]);
  });
  ::close(told[1]);
  const UniqueFd fd = accepts ? connect_to(address) : accept_from(listener);
  std::string answer;
  const auto ask = [&] {
    EXPECT_EQ(send(fd.get(), "x"), "1");
    answer = receive(fd.get());
  };
  for (int i = 0; i < 400 && answer != "f"; ++i) ask();
  EXPECT_EQ(answer, "f") << "nothing was made";
  for (int i = 0; i < 60 && answer == "f"; ++i) ask();
  steps.step();
  EXPECT_EQ(send(fd.get(), "c"), "1");
  std::string all;
  while (all.size() < 4) all += receive(fd.get());
  EXPECT_EQ(all, "bccc");
  EXPECT_EQ(send(fd.get(), "hello"), "5");
  steps.tell();
  pollfd wait{.fd = told[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 20'000), 1) << "the forked child sleeps beside what was sent";
  char got[8] = {};
  if (wait.revents != 0) kernel(SYS_read, told[0], &got, sizeof got - 1);
  EXPECT_STREQ(got, "hello");
  ::kill(child, SIGKILL);
  EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  ::close(told[0]);
}

TEST(Copies, AForkWhileTheAcceptingEndMakesMemoryKeepsTheOrder) { fork_while_memory_is_made(true); }

TEST(Copies, AForkWhileTheConnectingEndTakesMemoryKeepsTheOrder) {
  fork_while_memory_is_made(false);
}

// --- Copies that were made before the socket was connected.

int pass_on(int fd) {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd ends[] = {UniqueFd(fds[0]), UniqueFd(fds[1])};
  EXPECT_TRUE(test::send_descriptor(fds[0], fd));
  return test::receive_descriptor(fds[1]);
}

void limit_waits(int fd) {
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

TEST(Copies, OfWhatIsConnectedLaterAreTheSameSocket) {
  using Copy = int (*)(int);
  constexpr Copy kCopies[] = {
      [](int fd) { return ::dup(fd); },
      [](int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 100); },
      [](int fd) { return ::dup2(fd, ::open("/dev/null", O_RDONLY | O_CLOEXEC)); },
      pass_on,
  };
  for (const Copy& copy : kCopies) {
    SCOPED_TRACE(&copy - kCopies);
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    Pair pair{Pair::Unmade{}};
    pair.client = stream_socket();
    const UniqueFd other(copy(pair.client.get()));
    ASSERT_EQ(::connect(pair.client.get(), address.get(), address.size), 0);
    pair.server = accept_from(listener);
    limit_waits(other.get());
    limit_waits(pair.server.get());
    pair.talk(60);
    EXPECT_EQ(stream_mappings(), 0);
    for (int i = 0; i < 20; ++i) {
      pair.talk(1);
      ASSERT_EQ(send(other.get(), "of the copy"), "11");
      ASSERT_EQ(receive(pair.server.get()), "of the copy");
      ASSERT_EQ(send(pair.server.get(), "for the copy"), "12");
      ASSERT_EQ(receive(other.get()), "for the copy");
    }
  }
}

TEST(Copies, OfAChildThatWasThereBeforeTheConnectionAreTheSameSocket) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  Pair pair{Pair::Unmade{}};
  pair.client = stream_socket();
  limit_waits(pair.client.get());
  int go[2];
  int done[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(done, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::close(go[1]);
    for (char byte; ::read(go[0], &byte, 1) == 1;)
      if (send(pair.client.get(), "of the child") != "12" ||
          receive(pair.client.get()) != "for the child" || ::write(done[1], "x", 1) != 1)
        ::_exit(1);
    ::_exit(0);
  }
  ASSERT_EQ(::connect(pair.client.get(), address.get(), address.size), 0);
  pair.server = accept_from(listener);
  limit_waits(pair.server.get());
  ::close(done[1]);
  pair.talk(60);
  EXPECT_EQ(stream_mappings(), 0);
  char byte;
  for (int i = 0; i < 20; ++i) {
    pair.talk(1);
    ASSERT_EQ(::write(go[1], "x", 1), 1);
    ASSERT_EQ(receive(pair.server.get()), "of the child");
    ASSERT_EQ(send(pair.server.get(), "for the child"), "13");
    ASSERT_EQ(::read(done[0], &byte, 1), 1);
  }
  ::close(go[1]);
  EXPECT_EQ(exit_status(child), 0);
  ::close(go[0]);
  ::close(done[0]);
}

}  // namespace
}  // namespace farcall::preload
