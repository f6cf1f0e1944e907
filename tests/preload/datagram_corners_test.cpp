// SPDX-License-Identifier: Apache-2.0
//
// What UDP sockets over loopback do where programs are unusual: signal handlers that send or jump,
// waits that the library does not see, senders of different kinds at one receiver.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "datagrams.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// Whoever polls has them come by memory.
struct Awake {
  Awake() {
    near.connect_to(far);
    for (int i = 0; i < 40; ++i) {
      near.send("x");
      EXPECT_EQ(poll_once(far.fd.get(), 1000), POLLIN);
      EXPECT_EQ(far.receive(), "x");
    }
    if (preloaded()) {
      near.send("x");
      EXPECT_FALSE(readable_for_kernel(far.fd.get())) << "not accelerated";
      EXPECT_EQ(far.receive(), "x");
    }
  }
  void send_by_kernel(const std::string& text) const {
    iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = IPPROTO_IP;
    head->cmsg_type = IP_TTL;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    const int hops = 9;
    std::memcpy(CMSG_DATA(head), &hops, sizeof hops);
    ASSERT_EQ(::sendmsg(near.fd.get(), &message, 0), static_cast<ssize_t>(text.size()));
  }
  Socket near, far;
};

// A socket of which the library knows nothing.
struct Stranger {
  Stranger() : fd(static_cast<int>(kernel(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {}
  void send_to(const Socket& to, const std::string& text) const {
    ASSERT_EQ(kernel(SYS_sendto, fd.get(), text.data(), text.size(), 0, &to.name, to.size),
              text.size());
  }
  UniqueFd fd;
};

// What a child says by exiting.
int in_child(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

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
  explicit Alarm(void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 300},
                          .it_value = {.tv_sec = 0, .tv_usec = 300}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  static void stop() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
  }
};

sigjmp_buf jump_to;
volatile sig_atomic_t may_jump = 0;
void jump(int) {
  if (may_jump == 0) return;
  may_jump = 0;
  ::siglongjmp(jump_to, 1);
}

TEST(DatagramCorners, AReceiveCallCanBeLeftByAJump) {
  const int status = in_child([] {
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

TEST(DatagramCorners, OtherThreadsGoOnAfterAJumpOutOfAReceiveCall) {
  const int status = in_child([] {
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

TEST(DatagramCorners, ThatAreSentInPartsComeAsOne) {
  const Awake two;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(::send(two.near.fd.get(), "abc", 3, MSG_MORE), 3);
    two.near.send("defgh");
    EXPECT_EQ(two.far.receive(), "abcdefgh");
    two.near.send("whole");
    EXPECT_EQ(two.far.receive(), "whole");
  }
}

TEST(DatagramCorners, HaveTheTimeAtWhichTheyCame) {
  const Awake two;
  const int fd = two.far.fd.get();
  timeval came{};
  (void)::ioctl(fd, SIOCGSTAMP, &came);
  for (int i = 0; i < 10; ++i) {
    timeval before{};
    ::gettimeofday(&before, nullptr);
    two.near.send("x");
    EXPECT_EQ(poll_once(fd, 1000), POLLIN);
    EXPECT_EQ(two.far.receive(), "x");
    ASSERT_EQ(::ioctl(fd, SIOCGSTAMP, &came), 0);
    EXPECT_FALSE(timercmp(&came, &before, <));
  }
}

TEST(DatagramCorners, OfASocketThatIsClosedAsAStreamAreForgotten) {
  FILE* const stream = ::fdopen(::socket(AF_INET, SOCK_DGRAM, 0), "w");
  ASSERT_NE(stream, nullptr);
  const int number = ::fileno(stream);
  ::fclose(stream);
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number);
  char byte = 0;
  EXPECT_EQ(::read(file.get(), &byte, 1), 1);
}

TEST(DatagramCorners, AreNotReceivedWithATimeoutThatCannotBe) {
  const Awake two;
  two.near.send("x");
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  mmsghdr message{};
  message.msg_hdr.msg_iov = &part;
  message.msg_hdr.msg_iovlen = 1;
  for (timespec bad : {timespec{.tv_sec = -1, .tv_nsec = 0}, timespec{.tv_sec = 0, .tv_nsec = -1},
                       timespec{.tv_sec = 0, .tv_nsec = 1'000'000'000}}) {
    EXPECT_EQ(::recvmmsg(two.far.fd.get(), &message, 1, 0, &bad), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  timespec good{.tv_sec = 5, .tv_nsec = 0};
  EXPECT_EQ(::recvmmsg(two.far.fd.get(), &message, 1, 0, &good), 1);
  EXPECT_LE(good.tv_sec, 5);
}

TEST(DatagramCorners, OfASenderWithoutMemoryComeBesideABusyOne) {
  const Awake two;
  const Stranger stranger;
  for (int i = 0; i < 10; ++i) two.near.send("a");
  stranger.send_to(two.far, "P");
  bool came = false;
  for (int i = 0; i < 2000 && !came; ++i) {
    two.near.send("a");
    came = two.far.receive() == "P";
    // It goes on by memory as soon as the other has had its turn.
    (void)poll_once(two.far.fd.get(), 1000);
  }
  EXPECT_TRUE(came);
}

// One of them is lost in the kernel, whose queue is never empty; the next one is in memory, and is
// not kept back for ever. Without memory it is lost, too.
TEST(DatagramCorners, ComeBesideBusySendersWithoutMemory) {
  const Awake two;
  const Stranger stranger;
  const int least = 1;
  ASSERT_EQ(::setsockopt(two.far.fd.get(), SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
  for (int i = 0; i < 100; ++i) stranger.send_to(two.far, "P");
  two.send_by_kernel("lost");
  two.near.send("first");
  bool came = false;
  for (int i = 0; i < 2000 && !came; ++i) {
    came = two.far.receive() == "first";
    for (int k = 0; k < 2; ++k) stranger.send_to(two.far, "P");
  }
  EXPECT_EQ(came, preloaded());
}

TEST(DatagramCorners, AreInMemoryForASocketThatJavaMade) {
  const Socket one;
  const Socket other;
  for (const Socket* socket : {&one, &other}) {
    const int off = 0;
    ASSERT_EQ(::setsockopt(socket->fd.get(), IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off), 0);
  }
  one.connect_to(other);
  other.connect_to(one);
  const int before = shared_mappings();
  for (int i = 0; i < 40; ++i) {
    one.send("ping");
    EXPECT_EQ(other.receive(), "ping");
    other.send("pong");
    EXPECT_EQ(one.receive(), "pong");
  }
  if (preloaded()) {
    EXPECT_EQ(shared_mappings(), before + 4);
  }
}

TEST(DatagramCorners, ThatCameBeforeAConnectAreReadAfterIt) {
  const Awake two;
  two.near.send("x");
  two.near.send("y");
  two.far.connect_to(two.near);
  two.near.send("z");
  EXPECT_EQ(two.far.receive(), "x");
  EXPECT_EQ(two.far.receive(), "y");
  EXPECT_EQ(two.far.receive(), "z");
}

TEST(DatagramCorners, AreToldByTheKernelToWhoFoundNone) {
  const Two two;
  const int fd = two.far.fd.get();
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 8; ++k) ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
    two.near.send("x");
    ASSERT_TRUE(readable_for_kernel(fd)) << i;
    ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "x");
  }
}

TEST(DatagramCorners, AreToldByTheKernelToWhoNeverWaitedHere) {
  const Two two;
  pollfd wait{.fd = two.far.fd.get(), .events = POLLIN, .revents = 0};
  for (int i = 0; i < 100; ++i) {
    std::thread sending([&] { two.near.send("x"); });
    timespec limit{.tv_sec = 20, .tv_nsec = 0};
    EXPECT_EQ(kernel(SYS_ppoll, &wait, 1, &limit, nullptr, 8), 1) << i;
    EXPECT_EQ(two.far.receive(), "x");
    sending.join();
  }
}

TEST(DatagramCorners, OfManyWhoCameAndWentLeaveNothing) {
  const Socket server;
  const auto count_fds = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  std::ptrdiff_t fds = 0;
  int most = 0;
  for (int i = 0; i < 50; ++i) {
    const Socket client;
    sockaddr_storage name = client.name;
    client.connect_to(server);
    for (int k = 0; k < 30; ++k) {
      client.send("ping");
      ASSERT_EQ(server.receive(), "ping");
      ASSERT_EQ(
          ::sendto(server.fd.get(), "pong", 4, 0, reinterpret_cast<sockaddr*>(&name), client.size),
          4);
      ASSERT_EQ(client.receive(), "pong");
    }
    if (preloaded()) {
      EXPECT_GE(shared_mappings(), 4) << "not accelerated";
    }
    most = std::max(most, shared_mappings());
    if (i == 5) fds = count_fds();
  }
  EXPECT_LE(most, 8);
  EXPECT_LE(count_fds(), fds);
}

TEST(DatagramCorners, ToManyRemoteAddressesCostNoQuestions) {
  const int status = in_child([] {
    const Socket server("0.0.0.0");
    const auto send_all = [&] {
      for (int i = 0; i < 100; ++i) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(9);
        to.sin_addr.s_addr = htonl(0x0a090800 + static_cast<std::uint32_t>(i) + 1);
        (void)::sendto(server.fd.get(), "x", 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to),
                       sizeof to);
      }
    };
    for (int i = 0; i < 3; ++i) send_all();
    // From now on whoever makes a socket dies.
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = std::size(steps), .filter = steps};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      return false;
    for (int i = 0; i < 3; ++i) send_all();
    return true;
  });
  EXPECT_EQ(status, 0);
}

TEST(DatagramCorners, OfUsersWithoutANameAreNotShared) {
  const int status = in_child([] {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(77);
    if (::geteuid() != 65534) ::_exit(77);
    const Socket one;
    const Socket other;
    one.connect_to(other);
    other.connect_to(one);
    for (int i = 0; i < 40; ++i) {
      one.send("ping");
      if (other.receive() != "ping") return false;
    }
    return shared_mappings() == 0;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "user namespaces cannot be made here";
  EXPECT_EQ(status, 0);
}

TEST(DatagramCorners, AreNotSentToAddressesOfTheOtherVersion) {
  const Awake two;
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = reinterpret_cast<const sockaddr_in*>(&two.far.name)->sin_port;
  ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
  EXPECT_EQ(
      ::sendto(two.near.fd.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&mapped), sizeof mapped),
      -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
}

// Bound to all addresses, and sent to one that is not the first of this machine.
TEST(DatagramCorners, KeepTheirAddressesWhereSocketsAreBoundToAll) {
  const Socket server("0.0.0.0");
  const Socket client("0.0.0.0");
  sockaddr_in to = *reinterpret_cast<const sockaddr_in*>(&server.name);
  ::inet_pton(AF_INET, "127.0.0.5", &to.sin_addr);
  const auto exchange = [](const Socket& from, const sockaddr_in& where, const Socket& at) {
    EXPECT_EQ(
        ::sendto(from.fd.get(), "x", 1, 0, reinterpret_cast<const sockaddr*>(&where), sizeof where),
        1);
    sockaddr_in told{};
    socklen_t size = sizeof told;
    char byte = 0;
    EXPECT_EQ(::recvfrom(at.fd.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&told), &size), 1);
    return told;
  };
  const sockaddr_in first = exchange(client, to, server);
  const sockaddr_in first_back = exchange(server, first, client);
  const int before = shared_mappings();
  for (int i = 0; i < 60; ++i) {
    const sockaddr_in from = exchange(client, to, server);
    EXPECT_EQ(std::memcmp(&from, &first, sizeof from), 0) << i;
    const sockaddr_in back = exchange(server, from, client);
    EXPECT_EQ(std::memcmp(&back, &first_back, sizeof back), 0) << i;
  }
  if (preloaded()) {
    EXPECT_GT(shared_mappings(), before) << "not accelerated";
  }
}

TEST(DatagramCorners, HaveTheirSizes) {
  const Awake two;
  two.near.send("");
  two.near.send("0123456789");
  two.near.send("last");
  EXPECT_EQ(two.far.receive(), "");
  char bytes[4];
  EXPECT_EQ(::recv(two.far.fd.get(), bytes, sizeof bytes, MSG_PEEK | MSG_TRUNC), 10);
  EXPECT_EQ(::recv(two.far.fd.get(), bytes, sizeof bytes, MSG_PEEK), 4);
  iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(two.far.fd.get(), &message, 0), 4);
  EXPECT_EQ(message.msg_flags, MSG_TRUNC);
  // Nothing is out of band with datagrams.
  EXPECT_EQ(two.far.receive(MSG_OOB | MSG_DONTWAIT), "last");
}

// Somebody who speaks for a socket, as a sender does that wants to share memory with `server`.
class Claimant {
 public:
  explicit Claimant(const Socket& server) : server_(server) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const auto* to = reinterpret_cast<const sockaddr_in*>(&server.name);
    char text[64];
    std::snprintf(text, sizeof text, "farcall/udp/00000000000000000000ffff%08x%04x",
                  ntohl(to->sin_addr.s_addr), ntohs(to->sin_port));
    std::memcpy(name.sun_path + 1, text, std::strlen(text));
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(text));
    EXPECT_EQ(::connect(connection_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    look();
    EXPECT_EQ(::recv(connection_.get(), &answer_, sizeof answer_, MSG_DONTWAIT), 16);
  }
  // Whether it is believed that `shown` is the socket at the address of `claimed`.
  bool is_believed(const Socket& claimed, int shown) {
    constexpr std::uint64_t kRing = 65536;
    const UniqueFd memory(
        static_cast<int>(::syscall(SYS_memfd_create, "farcall-udp", MFD_ALLOW_SEALING)));
    EXPECT_EQ(::ftruncate(memory.get(), 4096 + kRing), 0);
    EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    struct Address {
      std::uint8_t bytes[16];
      std::uint16_t port;
    };
    const auto address_of = [](const Socket& socket) {
      const auto* name = reinterpret_cast<const sockaddr_in*>(&socket.name);
      Address address{};
      address.bytes[10] = address.bytes[11] = 0xff;
      std::memcpy(address.bytes + 12, &name->sin_addr, 4);
      address.port = ntohs(name->sin_port);
      return address;
    };
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    EXPECT_EQ(::getsockopt(claimed.fd.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
    struct {
      std::uint64_t magic, sender_cookie, receiver_cookie, ring_bytes;
      Address from, to;
    } hello{answer_.magic,      cookie, answer_.receiver_cookie, kRing, address_of(claimed),
            address_of(server_)};
    iovec part{.iov_base = &hello, .iov_len = sizeof hello};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int fds[] = {memory.get(), shown};
    std::memcpy(CMSG_DATA(head), fds, sizeof fds);
    EXPECT_EQ(::sendmsg(connection_.get(), &message, 0), static_cast<ssize_t>(sizeof hello));
    const int before = shared_mappings();
    look();
    return shared_mappings() == before + 1;
  }

 private:
  // Has the server look who is there.
  void look() const {
    const Stranger stranger;
    for (int i = 0; i < 20; ++i) {
      stranger.send_to(server_, "x");
      EXPECT_EQ(server_.receive(), "x");
    }
  }
  const Socket& server_;
  UniqueFd connection_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  struct {
    std::uint64_t magic, receiver_cookie;
  } answer_{};
};

TEST(DatagramCorners, OfWhoDoesNotHoldTheSocketAreNotShared) {
  if (!preloaded()) GTEST_SKIP() << "without the library there is nobody to lie to";
  const Socket server;
  const Socket victim;
  const Socket own;
  const Stranger stranger;
  for (int i = 0; i < 8; ++i) {
    stranger.send_to(server, "x");
    EXPECT_EQ(server.receive(), "x");
  }
  EXPECT_FALSE(Claimant(server).is_believed(victim, own.fd.get()));
  EXPECT_FALSE(Claimant(server).is_believed(victim, 0));
  EXPECT_TRUE(Claimant(server).is_believed(victim, victim.fd.get()));
}

}  // namespace
}  // namespace farcall::preload
