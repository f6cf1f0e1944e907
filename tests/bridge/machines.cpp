// SPDX-License-Identifier: Apache-2.0
#include "bridge/machines.hpp"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <vector>

namespace farcall::test {
namespace {

using Clock = std::chrono::steady_clock;

void must(const std::string& command) {
  if (std::system(command.c_str()) != 0)  // NOLINT(concurrency-mt-unsafe): before there are threads
    throw std::runtime_error("failed: " + command);
}

// A network card of the calling process's namespace, whose frames are read and written here.
int make_card(const std::string& name) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq wanted{};
  std::strncpy(wanted.ifr_name, name.c_str(), IFNAMSIZ - 1);
  wanted.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (fd < 0 || ::ioctl(fd, TUNSETIFF, &wanted) != 0)
    throw std::runtime_error("no network card: /dev/net/tun");
  return fd;
}

int make_card_on(const Machine& machine, const std::string& name) {
  const int home = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  move_to(machine);
  const int fd = make_card(name);
  if (::setns(home, CLONE_NEWNET) != 0) throw std::runtime_error("unshare");
  ::close(home);
  return fd;
}

// Both ends of one line.
struct Ends {
  int machine;
  int plug;
};

// Carries frames until the process is killed.
class Carrier {
 public:
  Carrier(std::vector<Ends> ends, Line* lines) : lines_(lines) {
    for (const Ends& one : ends) {
      polled_.push_back({.fd = one.machine, .events = POLLIN, .revents = 0});
      polled_.push_back({.fd = one.plug, .events = POLLIN, .revents = 0});
    }
  }

  [[noreturn]] void run() {
    for (;;) {
      const auto now = Clock::now();
      while (!late_.empty() && late_.begin()->first <= now) {
        deliver(late_.begin()->second);
        late_.erase(late_.begin());
      }
      timespec left{.tv_sec = 1, .tv_nsec = 0};
      if (!late_.empty()) {
        const auto ns = std::chrono::nanoseconds(late_.begin()->first - now).count();
        left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
      }
      ::ppoll(polled_.data(), polled_.size(), &left, nullptr);
      for (std::size_t i = 0; i < polled_.size(); ++i)
        if ((polled_[i].revents & POLLIN) != 0) take(i);
    }
  }

 private:
  struct Frame {
    int to;
    std::vector<char> bytes;
  };
  static constexpr std::size_t kMostLate = 20'000;  // frames; a line that is full loses more

  static void deliver(const Frame& frame) {
    // A card that is down takes nothing: the plug is pulled.
    static_cast<void>(!::write(frame.to, frame.bytes.data(), frame.bytes.size()));
  }
  bool happens(unsigned of_thousand) { return random_() % 1000 < of_thousand; }

  void take(std::size_t from) {
    Line& line = lines_[from / 2];
    char buffer[2048];
    for (int i = 0; i < 64; ++i) {
      const ssize_t size = ::read(polled_[from].fd, buffer, sizeof buffer);
      if (size <= 0) return;
      ++line.frames;
      if (happens(line.lost) || late_.size() >= kMostLate) {
        ++line.missed;
        continue;
      }
      const bool twice = happens(line.doubled);
      line.repeated += twice ? 1 : 0;
      for (int copies = twice ? 2 : 1; copies > 0; --copies)
        send(line, {.to = polled_[from ^ 1].fd, .bytes = {buffer, buffer + size}});
    }
  }
  void send(const Line& line, Frame frame) {
    const unsigned jitter = line.jitter_us;
    const unsigned delay =
        line.delay_us + (jitter == 0 ? 0 : static_cast<unsigned>(random_() % jitter));
    if (delay == 0)
      deliver(frame);
    else
      late_.emplace(Clock::now() + std::chrono::microseconds(delay), std::move(frame));
  }

  Line* const lines_;
  std::vector<pollfd> polled_;  // a line's two ends beside each other
  std::multimap<Clock::time_point, Frame> late_;
  std::minstd_rand random_{7};
};

}  // namespace

Machines::Machines(unsigned count)
    : lines_(static_cast<Line*>(::mmap(nullptr, kMost * sizeof(Line), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (count > kMost) throw std::invalid_argument("too many machines");
  if (lines_ == MAP_FAILED) throw std::bad_alloc();
  for (unsigned i = 0; i < count; ++i) new (lines_ + i) Line;
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    throw std::runtime_error("unshare");
  must(
      "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link add switch type bridge && "
      "ip link set switch up");
  std::vector<Ends> ends;
  for (unsigned i = 1; i <= count; ++i) {
    must("ip netns add " + name(i));
    const std::string plug = "port" + std::to_string(i);
    ends.push_back({.machine = make_card_on(name(i), "eth0"), .plug = make_card(plug)});
    must("ip link set " + plug + " master switch up && ip -n " + name(i) +
         " link set lo up && ip -n " + name(i) + " link set eth0 up && ip -n " + name(i) +
         " addr add " + address(i) + "/24 dev eth0");
  }
  const pid_t parent = ::getpid();
  carrier_ = ::fork();
  if (carrier_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(125);
    Carrier(std::move(ends), lines_).run();
  }
  // The cards are the carrier's now, and go with it.
  for (const Ends& one : ends) {
    ::close(one.machine);
    ::close(one.plug);
  }
}

Machines::~Machines() {
  ::kill(carrier_, SIGKILL);
  ::waitpid(carrier_, nullptr, 0);
  ::munmap(lines_, kMost * sizeof(Line));
}

void Machines::connect(unsigned number, bool on) const {
  must("ip link set port" + std::to_string(number) + (on ? " up" : " down"));
}

}  // namespace farcall::test
