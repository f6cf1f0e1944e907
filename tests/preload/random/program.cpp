// SPDX-License-Identifier: Apache-2.0
//
// A program that knows nothing of farcall and does at random what programs do with a stream:
// transfers and waits of every kind, forks, executes itself and others, passes the descriptor on,
// stops, is interrupted. Both ends check every byte that comes.
//
// random-program KIND SEED: KIND is tcp, path or pair, or packets or packet-pair. The status is 0
// if all bytes came, once and in order, and then the end of the stream; 3: so it was, but an end
// was told of once while packets were left, as the kernel may. What each end does comes from the
// seed; what happens between them from time. FARCALL_TEST_TRACE=1 shows what is done;
// FARCALL_TEST_PLAIN=c or s leaves that end without what is preloaded.
#include "program.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "harness/ancillary_message.hpp"
#include "harness/thread_state.hpp"

namespace farcall::preload::test {

End* mine;
End* other;

void trace(const char* format, ...) {
  static const bool wanted = std::getenv("FARCALL_TEST_TRACE") != nullptr;
  if (!wanted) return;
  char line[200];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  std::fprintf(stderr, "%c[%d] %s\n", mine->name, ::getpid(), line);
}

void fail(const char* what) {
  std::fprintf(stderr, "%c[%d]: %s (%s); fd %d, sent %llu of %llu, received %llu of %llu\n",
               mine->name, ::getpid(), what, std::strerror(errno), mine->fd,
               static_cast<unsigned long long>(mine->sent.load()),
               static_cast<unsigned long long>(mine->total),
               static_cast<unsigned long long>(mine->received.load()),
               static_cast<unsigned long long>(other->total));
  ::_exit(1);
}

void wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail("waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFSIGNALED(status)) std::fprintf(stderr, "a child died of signal %d\n", WTERMSIG(status));
  fail("a child was not well");
}

namespace {

constexpr int kMemory = 900;  // the descriptor of the memory of both ends
const char* program;

void interrupt(int) {}

pid_t fork_or_fail() {
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  return child;
}

void run(bool begun);

// --- What an end does to itself ------------------------------------------------------------------

void go_on_in_a_child() {
  const bool keeps = one_in(2);
  trace("go on in a child");
  ++mine->depth;
  const pid_t child = fork_or_fail();
  if (child == 0) return;
  if (!keeps) ::close(mine->fd);
  wait_for(child);
  ::_exit(0);
}

void let_a_child_transfer() {
  const pid_t child = fork_or_fail();
  if (child == 0) {
    for (std::uint64_t i = 1 + pick(5); i > 0; --i) transfer();
    if (one_in(2)) ::close(mine->fd);
    ::_exit(0);
  }
  wait_for(child);
}

void let_a_child_do_nothing() {
  const pid_t child = fork_or_fail();
  if (child == 0) {
    if (one_in(2)) ::close(mine->fd);
    ::_exit(0);
  }
  if (one_in(2)) transfer();
  wait_for(child);
}

void let_a_thread_transfer() {
  std::thread([] {
    for (std::uint64_t i = 1 + pick(5); i > 0; --i) transfer();
  }).join();
}

void execute_itself() {
  const bool without = one_in(3);
  trace("execute itself%s", without ? ", without what is preloaded" : "");
  if (without) ::unsetenv("LD_PRELOAD");
  ::fcntl(mine->fd, F_SETFD, 0);
  const char name[] = {mine->name, '\0'};
  ::execl(program, program, "--end", name, nullptr);
  fail("execl");
}

void execute_something() {
  trace("execute something");
  switch (pick(3)) {
    case 0:
      if (::system("true") != 0) fail("system");
      return;
    case 1: {
      FILE* lines = ::popen("echo x", "r");
      if (lines == nullptr || std::fgetc(lines) != 'x' || ::pclose(lines) != 0) fail("popen");
      return;
    }
    default: {
      const char* const words[] = {"true", nullptr};
      pid_t child = 0;
      if (::posix_spawnp(&child, "true", nullptr, nullptr, const_cast<char**>(words), environ) != 0)
        fail("posix_spawnp");
      wait_for(child);
    }
  }
}

void send_descriptor(int socket, int fd) {
  while (!farcall::test::send_descriptor(socket, fd, 0))
    if (errno != EINTR) fail("pass a descriptor");
}

int receive_descriptor(int socket) {
  farcall::test::AncillaryMessage message(farcall::test::kRoomForOneDescriptor);
  while (message.receive(socket, MSG_CMSG_CLOEXEC) != 1)
    if (errno != EINTR) fail("take a descriptor");
  return message.descriptors().at(0);
}

// The end goes on in a process that has its descriptor by a message only.
void pass_on() {
  trace("pass the descriptor on");
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair");
  ++mine->depth;
  const pid_t child = fork_or_fail();
  if (child == 0) {
    ::close(mine->fd);
    mine->fd = receive_descriptor(pair[1]);
    ::close(pair[0]);
    ::close(pair[1]);
    return;
  }
  send_descriptor(pair[0], mine->fd);
  ::close(pair[0]);
  ::close(pair[1]);
  wait_for(child);
  ::_exit(0);
}

void take_another_number() {
  const int old = mine->fd;
  switch (pick(4)) {
    case 0: mine->fd = ::dup(old); break;
    case 1: mine->fd = ::fcntl(old, F_DUPFD_CLOEXEC, static_cast<int>(100 + pick(500))); break;
    case 2: {
      const int number = static_cast<int>(620 + pick(100));
      mine->fd = number == old ? old : ::dup2(old, number);
      break;
    }
    default: {
      const int number = static_cast<int>(720 + pick(100));
      mine->fd = number == old ? old : ::dup3(old, number, O_CLOEXEC);
    }
  }
  trace("take number %d", mine->fd);
  if (mine->fd < 0) fail("dup");
  if (mine->fd != old) ::close(old);
}

void copy_and_close() {
  const int copy = ::dup(mine->fd);
  if (copy < 0 || ::close(copy) != 0) fail("dup and close");
}

void change_flags() {
  int on = static_cast<int>(pick(2));
  if (one_in(2)) {
    ::ioctl(mine->fd, FIONBIO, &on);
  } else {
    const int flags = ::fcntl(mine->fd, F_GETFL);
    ::fcntl(mine->fd, F_SETFL, on != 0 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
  }
}

void set_option() {
  const int on = static_cast<int>(pick(2));
  // A message needs room for all of it.
  const int least = mine->is_packets ? 60'000 : 4096;
  const int room = least + static_cast<int>(pick(200'000));
  const timeval limit{.tv_sec = 100, .tv_usec = 0};
  switch (pick(8)) {
    case 0: ::setsockopt(mine->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); break;
    case 1: ::setsockopt(mine->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on); break;
    case 2: ::setsockopt(mine->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); break;
    case 3: ::setsockopt(mine->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room); break;
    case 4: ::setsockopt(mine->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room); break;
    case 5: ::setsockopt(mine->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit); break;
    case 6: ::setsockopt(mine->fd, SOL_SOCKET, SO_PRIORITY, &on, sizeof on); break;
    default: {
      int error = -1;
      socklen_t size = sizeof error;
      if (::getsockopt(mine->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
        fail("SO_ERROR");
    }
  }
}

void be_interrupted() {
  mine->interrupted = true;
  struct sigaction action {};
  action.sa_handler = interrupt;
  action.sa_flags = one_in(2) ? SA_RESTART : 0;
  ::sigaction(SIGALRM, &action, nullptr);
  const auto micros = static_cast<suseconds_t>(200 + pick(3000));
  const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = micros},
                        .it_value = {.tv_sec = 0, .tv_usec = micros}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  for (std::uint64_t i = 1 + pick(30); i > 0; --i) transfer();
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  mine->interrupted = false;
}

bool is_stopped(pid_t process) {
  const char state = farcall::test::state_of(process);
  if (state == '?') ::_exit(3);
  return state == 'T';
}

void stop_for_a_while() {
  trace("stop");
  const pid_t stopped = ::getpid();
  const auto micros = static_cast<useconds_t>(500 + pick(10'000));
  const pid_t child = fork_or_fail();
  if (child == 0) {
    while (!is_stopped(stopped)) ::usleep(100);
    ::usleep(micros);
    ::kill(stopped, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
  wait_for(child);
}

void rest() { ::usleep(static_cast<useconds_t>(pick(6000))); }

constexpr void (*kChanges[])() = {
    go_on_in_a_child,
    let_a_child_transfer,
    let_a_child_do_nothing,
    let_a_thread_transfer,
    execute_itself,
    execute_something,
    pass_on,
    take_another_number,
    copy_and_close,
    change_flags,
    set_option,
    be_interrupted,
    stop_for_a_while,
    rest,
};

// --- An end's life -------------------------------------------------------------------------------

void run(bool begun) {
  const std::uint64_t pace = 4 + pick(60);
  // Short connections are not worth it, so they would tell of nothing.
  for (int i = 0; i < 40 && !begun && (!mine->shut || !mine->ended); ++i) transfer();
  while (!mine->shut || !mine->ended) {
    transfer();
    if (!one_in(pace)) continue;
    const std::uint64_t change = pick(std::size(kChanges));
    if ((mine->habits >> (46 + change) & 1) == 0 || mine->depth > 6) continue;
    kChanges[change]();
  }
  trace("done");
  if (one_in(3)) ::close(mine->fd);
  if (one_in(2)) ::_exit(0);
  std::exit(0);
}

Both* map_both() {
  void* memory = ::mmap(nullptr, sizeof(Both), PROT_READ | PROT_WRITE, MAP_SHARED, kMemory, 0);
  if (memory == MAP_FAILED) ::_exit(2);
  return static_cast<Both*>(memory);
}

void be(char name, Both* both) {
  mine = name == 'c' ? &both->client : &both->server;
  other = name == 'c' ? &both->server : &both->client;
}

void prepare(End& end, char name, std::string_view kind, std::uint64_t seed) {
  end.name = name;
  end.is_tcp = kind == "tcp";
  end.is_packets = kind.substr(0, 6) == "packet";
  end.seed = seed;
  end.random.seed(seed);
  const std::uint64_t totals[] = {30'000, 100'000, 300'000, 1'000'000, 3'000'000};
  end.total = 1 + end.random.below(totals[end.random.below(5)]);
  end.waits_raw = end.random.below(4) == 0;
  end.habits = end.random.below(UINT64_MAX);
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof bytes;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

int socket_type() { return (mine->is_packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC; }

int listen_somewhere(bool is_tcp, Address& address) {
  const int listener = ::socket(is_tcp ? AF_INET : AF_UNIX, socket_type(), 0);
  address.bytes.ss_family = is_tcp ? AF_INET : AF_UNIX;
  if (is_tcp)
    reinterpret_cast<sockaddr_in&>(address.bytes).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const socklen_t size = is_tcp ? sizeof(sockaddr_in) : sizeof(sa_family_t);
  if (::bind(listener, address.get(), size) != 0 || ::listen(listener, 4) != 0 ||
      ::getsockname(listener, address.get(), &address.size) != 0)
    fail("listen");
  return listener;
}

// Becomes one end, maybe without what is preloaded; the other is what it has been forked from.
void begin(char name, int fd) {
  mine->fd = fd;
  const char* plain = std::getenv("FARCALL_TEST_PLAIN");
  if (plain == nullptr || *plain != name) return;
  ::unsetenv("LD_PRELOAD");
  ::fcntl(fd, F_SETFD, 0);
  const char words[] = {name, '\0'};
  ::execl(program, program, "--end", words, nullptr);
  fail("execl");
}

bool run_both(std::string_view kind, std::uint64_t seed) {
  const int memory = ::memfd_create("both", 0);
  if (::ftruncate(memory, sizeof(Both)) != 0 || ::dup2(memory, kMemory) < 0) ::_exit(2);
  ::close(memory);
  Both* both = map_both();
  const bool is_tcp = kind == "tcp";
  prepare(both->client, 'c', kind, seed * 2);
  prepare(both->server, 's', kind, seed * 2 + 1);
  be('c', both);
  int pair[2] = {-1, -1};
  int listener = -1;
  Address address;
  if (kind == "pair" || kind == "packet-pair") {
    if (::socketpair(AF_UNIX, socket_type(), 0, pair) != 0) fail("socketpair");
  } else {
    listener = listen_somewhere(is_tcp, address);
  }
  const pid_t child = fork_or_fail();
  if (child == 0) {
    be('s', both);
    ::close(pair[0]);
    const int fd = listener >= 0 ? ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : pair[1];
    if (fd < 0) fail("accept4");
    ::close(listener);
    begin('s', fd);
    run(false);
  }
  ::close(pair[1]);
  int fd = pair[0];
  if (listener >= 0) {
    fd = ::socket(is_tcp ? AF_INET : AF_UNIX, socket_type(), 0);
    if (::connect(fd, address.get(), address.size) != 0) fail("connect");
    ::close(listener);
  }
  const pid_t first = fork_or_fail();
  if (first == 0) {
    begin('c', fd);
    run(false);
  }
  ::close(fd);
  wait_for(first);
  wait_for(child);
  return !both->client.told_early && !both->server.told_early;
}

}  // namespace
}  // namespace farcall::preload::test

int main(int count, char** arguments) {
  using namespace farcall::preload::test;
  if (count != 3) {
    std::fputs("usage: random-program tcp|path|pair|packets|packet-pair SEED\n", stderr);
    return 2;
  }
  program = "/proc/self/exe";
  ::signal(SIGPIPE, SIG_IGN);
  if (std::string_view(arguments[1]) == "--end") {
    be(*arguments[2], map_both());
    trace("goes on");
    run(true);
  }
  return run_both(arguments[1], std::strtoull(arguments[2], nullptr, 10)) ? 0 : 3;
}
