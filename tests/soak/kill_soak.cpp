// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at random instants, counted: kill-soak [KILLS [SEED]]. Clients, servers, or both, of
// doors and of messages, while calls of all sizes run in several sessions. Who survives gets the
// outcome that the contract names within 100 ms of the kill, where the machine is that quick at
// all, and nothing is left behind.
#include <dirent.h>
#include <door.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "farcall/socket.hpp"

namespace {

using namespace farcall;
using Random = std::minstd_rand;

constexpr std::int64_t kSoon = 100'000'000;
constexpr std::size_t kLongest = 200'000;

// What all processes of the soak count, in memory that they share.
struct Tally {
  std::atomic<std::uint64_t> wanted, clients, servers;
  std::atomic<std::uint64_t> wrong, late, left;
  std::atomic<std::int64_t> worst;  // ns until a survivor has learned of it
  std::atomic<std::uint64_t> plain_late;
  std::atomic<std::int64_t> plain_worst;
  [[nodiscard]] std::uint64_t kills() const { return clients + servers; }
};
Tally* tally;

template <class T>
T* shared() {
  return new (Mapping::anonymous_shared(sizeof(T)).release()) T{};
}

void complain(std::atomic<std::uint64_t>& count, const char* what, long number) {
  if (++count <= 20) std::fprintf(stderr, "[%d] %s: %ld\n", ::getpid(), what, number);
}

// Learned at `now` of a kill that one who waits for the process in the kernel knew of at `then`:
// where the machine is late, it is late for all who wait.
void learned(const char* what, std::int64_t then, std::int64_t now) {
  const std::int64_t time = now - then;
  std::int64_t worst = tally->worst;
  while (worst < time && !tally->worst.compare_exchange_weak(worst, time)) {
  }
  if (time > kSoon) complain(tally->late, what, time / 1000);
}

// Kills it, and returns when the kernel told of its death.
std::int64_t kill_and_wait(pid_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd death{.fd = process.get(), .events = POLLIN, .revents = 0};
  ::kill(pid, SIGKILL);
  (void)::poll(&death, 1, 10'000);
  return monotonic_ns();
}

// ---- doors and messages ----

class Service {
 public:
  virtual ~Service() = default;
  // As a server: what clients hold.
  virtual int serve() = 0;
  // As a client: takes over the descriptor.
  virtual int open(int fd) { return fd; }
  virtual void close(int client) = 0;
  // Sends and gets back. Returns an errno value.
  virtual int call(int client, std::string& text) = 0;
  // Whether that is what a client is told whose server has died.
  [[nodiscard]] virtual bool means_death(int error) const = 0;
};

class Doors final : public Service {
 public:
  int serve() override {
    return ::door_create([](void*, char* data, size_t size, door_desc_t*,
                            uint_t) { ::door_return(data, size, nullptr, 0); },
                         nullptr, 0);
  }
  void close(int client) override { ::close(client); }
  int call(int client, std::string& text) override {
    static thread_local std::vector<char> room(kLongest);
    door_arg_t arguments{};
    arguments.data_ptr = text.data();
    arguments.data_size = text.size();
    arguments.rbuf = room.data();
    arguments.rsize = room.size();
    if (::door_call(client, &arguments) != 0) return errno;
    text.assign(arguments.data_ptr, arguments.data_size);
    return 0;
  }
  [[nodiscard]] bool means_death(int error) const override {
    return error == EBADF || error == EINTR;
  }
};

class Messages final : public Service {
 public:
  int serve() override {
    const int channel = farcall_channel_create(0);
    for (int i = 0; i < 2; ++i)
      std::thread([channel] {
        std::vector<char> room(kLongest);
        farcall_info info{};
        for (;;) {
          const std::int64_t id = farcall_receive(channel, room.data(), room.size(), &info);
          if (id > FARCALL_ONE_WAY) farcall_reply(id, 0, room.data(), info.received);
        }
      }).detach();
    return farcall_connection_descriptor(farcall_connect(channel));
  }
  int open(int fd) override { return farcall_adopt(fd); }
  void close(int client) override { farcall_disconnect(client); }
  int call(int client, std::string& text) override {
    std::string reply(text.size(), '\0');
    if (farcall_send(client, text.data(), text.size(), reply.data(), reply.size()) < 0)
      return errno;
    text = std::move(reply);
    return 0;
  }
  [[nodiscard]] bool means_death(int error) const override { return error == ESRCH; }
};

// ---- processes ----

template <class Body>
pid_t child(Body body) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) body();
  ::_exit(0);
}

// Calls until one fails, and returns with what; a reply that is not the request counts as wrong.
int call_until_failure(Service& service, int client, Random& random) {
  for (;;) {
    std::string text(random() % (random() % 16 == 0 ? kLongest : 300),
                     static_cast<char>('a' + random() % 26));
    const std::string sent = text;
    if (const int error = service.call(client, text); error != 0) return error;
    if (text != sent) complain(tally->wrong, "another reply", static_cast<long>(text.size()));
  }
}

std::size_t entries(const char* path) {
  std::size_t count = 0;
  DIR* directory = ::opendir(path);
  while (directory != nullptr && ::readdir(directory) != nullptr) ++count;
  if (directory != nullptr) ::closedir(directory);
  return count;
}

// A server in a process of its own, and what its clients hold.
struct Server {
  pid_t pid = -1;
  UniqueFd line;
  int client = -1;

  Server(Service& service, bool lasting) {
    auto [mine, theirs] = packet_socket_pair();
    pid = child([&, line_there = theirs.get()] {
      send_descriptors(line_there, std::array{service.serve()});
      // Asked for how much it holds, it says so.
      for (char byte = 0; ::read(line_there, &byte, 1) == 1;) {
        const std::array held{entries("/proc/self/fd"), entries("/proc/self/task")};
        (void)!::write(line_there, held.data(), sizeof held);
      }
    });
    theirs.reset();
    line = std::move(mine);
    pollfd there{.fd = line.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&there, 1, 60'000);
    Packet packet = take_packet(line.get());
    if (packet.descriptors.size() == 1) client = service.open(packet.descriptors[0].release());
    if (!lasting) line.reset();
  }
  // Descriptors and threads.
  [[nodiscard]] std::array<std::size_t, 2> held() const {
    std::array<std::size_t, 2> numbers{};
    (void)!::write(line.get(), "?", 1);
    (void)!::read(line.get(), numbers.data(), sizeof numbers);
    return numbers;
  }
};

// One processor's share: a server that lasts, and rounds of those that do not.
class Cell {
 public:
  Cell(Service& service, unsigned seed)
      : service_(service), random_(seed), lasting_(service, true) {
    std::thread([this] { kill_when_told(); }).detach();
    for (int i = 0; i < 50; ++i) round();
    before_ = lasting_.held();
    own_before_ = entries("/proc/self/fd");
  }
  void run() {
    for (unsigned rounds = 1; tally->kills() < tally->wanted; ++rounds) {
      round();
      if (rounds % 200 == 0) expect_nothing_left();
    }
    expect_nothing_left();
    ::kill(lasting_.pid, SIGKILL);
    ::waitpid(lasting_.pid, nullptr, 0);
  }

 private:
  void round() {
    const unsigned kind = static_cast<unsigned>(random_() % 10);
    if (kind < 6)
      clients_die();
    else if (kind < 8)
      server_dies();
    else
      both_die();
  }
  void pause() { ::usleep(static_cast<useconds_t>(random_() % (random_() % 2 == 0 ? 300 : 2000))); }
  void expect_killed(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status)) complain(tally->wrong, "ended before it was killed", status);
  }
  pid_t calling_child(int client) {
    const unsigned seed = static_cast<unsigned>(random_());
    return child([&] {
      Random random(seed);
      ::_exit(call_until_failure(service_, client, random));
    });
  }
  void clients_die() {
    std::array<pid_t, 4> clients{};
    for (pid_t& client : clients) client = calling_child(lasting_.client);
    for (const pid_t client : clients) {
      pause();
      const std::int64_t then = kill_and_wait(client);
      ++tally->clients;
      // The server serves on.
      std::string text = "still there";
      if (const int error = service_.call(lasting_.client, text); error != 0)
        complain(tally->wrong, "the server that lasts fails a call", error);
      learned("us until the server that lasts has answered", then, monotonic_ns());
      expect_killed(client);
    }
  }
  // Has another thread do that meanwhile.
  void kill_later(pid_t pid) {
    pause_ = static_cast<useconds_t>(random_() % 2000);
    victim_ = pid;
    told_.release();
  }
  void kill_when_told() {
    for (;;) {
      told_.acquire();
      ::usleep(pause_);
      known_at_ = kill_and_wait(victim_);
      done_.release();
    }
  }
  void server_dies() {
    const Server server(service_, false);
    kill_later(server.pid);
    const int error = call_until_failure(service_, server.client, random_);
    const std::int64_t now = monotonic_ns();
    done_.acquire();
    ++tally->servers;
    if (!service_.means_death(error)) complain(tally->wrong, "a server's death is errno", error);
    learned("us until a client knew of the server's death", known_at_, now);
    service_.close(server.client);
    expect_killed(server.pid);
  }
  void both_die() {
    const Server server(service_, false);
    const pid_t client = calling_child(server.client);
    const pid_t survivor = calling_child(server.client);
    pause();
    ::kill(client, SIGKILL);
    ++tally->clients;
    kill_later(server.pid);
    const int error = call_until_failure(service_, server.client, random_);
    const std::int64_t now = monotonic_ns();
    done_.acquire();
    ++tally->servers;
    if (!service_.means_death(error)) complain(tally->wrong, "a server's death is errno", error);
    learned("us until a client knew of the server's death", known_at_, now);
    int status = 0;
    ::waitpid(survivor, &status, 0);
    learned("us until another client had ended", known_at_, monotonic_ns());
    if (!WIFEXITED(status) || !service_.means_death(WEXITSTATUS(status)))
      complain(tally->wrong, "another client ends with", status);
    service_.close(server.client);
    ::waitpid(client, &status, 0);
    expect_killed(server.pid);
  }
  void expect_nothing_left() {
    constexpr std::size_t kSome = 12;  // threads and sockets that come and go
    std::array<std::size_t, 2> held{};
    for (int i = 0; i < 2000; ++i) {
      held = lasting_.held();
      if (held[0] <= before_[0] + kSome && held[1] <= before_[1] + kSome) break;
      ::usleep(10'000);
    }
    if (held[0] > before_[0] + kSome)
      complain(tally->left, "descriptors of the server that lasts", static_cast<long>(held[0]));
    if (held[1] > before_[1] + kSome)
      complain(tally->left, "threads of the server that lasts", static_cast<long>(held[1]));
    if (const std::size_t own = entries("/proc/self/fd"); own > own_before_ + kSome)
      complain(tally->left, "descriptors of a client", static_cast<long>(own));
  }

  Service& service_;
  Random random_;
  Server lasting_;
  std::binary_semaphore told_{0};
  std::binary_semaphore done_{0};
  std::atomic<pid_t> victim_{0};
  std::atomic<useconds_t> pause_{0};
  std::atomic<std::int64_t> known_at_{0};
  std::array<std::size_t, 2> before_{};
  std::size_t own_before_ = 0;
};

// Two ends of a plain pair of sockets, one of which answers the other: how late this machine is for
// those who use nothing of farcall's.
class Bystander {
 public:
  Bystander() {
    auto [mine, theirs] = socket_pair();
    child([&, line = theirs.get()] {
      mine.reset();
      for (char byte = 0; ::read(line, &byte, 1) == 1;) (void)!::write(line, &byte, 1);
    });
    std::thread([line = std::move(mine)] {
      for (char byte = 0;; ::usleep(1000)) {
        const std::int64_t then = monotonic_ns();
        if (::write(line.get(), &byte, 1) != 1 || ::read(line.get(), &byte, 1) != 1) return;
        const std::int64_t time = monotonic_ns() - then;
        if (time > kSoon) ++tally->plain_late;
        if (time > tally->plain_worst) tally->plain_worst = time;
      }
    }).detach();
  }
};

void report(const char* when) {
  std::printf(
      "%s: %lu kills (%lu of clients, %lu of servers), %lu wrong, %lu late, %lu left; "
      "the longest took %.1f ms; beside them %lu answers over a plain socket came late, the "
      "longest "
      "took %.1f ms\n",
      when, tally->kills(), tally->clients.load(), tally->servers.load(), tally->wrong.load(),
      tally->late.load(), tally->left.load(), static_cast<double>(tally->worst.load()) / 1e6,
      tally->plain_late.load(), static_cast<double>(tally->plain_worst.load()) / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  tally = shared<Tally>();
  tally->wanted = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1'000'000;
  const unsigned seed = count > 2 ? static_cast<unsigned>(std::atoi(arguments[2])) : 1;
  std::vector<pid_t> cells;
  Doors doors;
  Messages messages;
  for (unsigned i = 0; i < 2; ++i)
    cells.push_back(child([&] {
      Service& service = i % 2 == 0 ? static_cast<Service&>(doors) : messages;
      Cell(service, 2 * seed + i).run();
    }));
  const Bystander bystander;
  while (!cells.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      std::erase(cells, ended);
      if (status != 0) complain(tally->wrong, "a part of the soak ends with", status);
      continue;
    }
    ::usleep(100'000);
    static int rounds = 0;
    if (++rounds % 300 == 0) report("so far");
  }
  report("in all");
  // A processor may be taken away from one of these and not from who answers beside them; who waits
  // for a time to be over instead of for the death does so at many of them.
  constexpr std::uint64_t kFew = 4;
  const bool too_late = tally->late > kFew && tally->plain_late == 0;
  return tally->wrong + tally->left == 0 && !too_late ? 0 : 1;
}
