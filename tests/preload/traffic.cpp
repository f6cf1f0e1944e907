// SPDX-License-Identifier: Apache-2.0
//
// A program that knows nothing of farcall: two processes exchange bytes over one TCP connection, in
// both directions at once, in pieces of random sizes, with pauses, and check every byte.
//
// traffic ENGINE ENGINE SEED BYTES [stopped]: with the last, both are stopped and continued at
// random moments. ENGINE is how the client and how the server do it, one of
//   blocking (two threads), poll, select, level, edge (epoll), spin (non-blocking, without
//   waiting), counting (epoll's edges, but reads no further than FIONREAD has said, or to a short
//   read: the next edge must tell of the rest)
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kMost = 1 << 20;
bool are_stopped = false;

[[noreturn]] void fail(const char* what, std::uint64_t at) {
  std::fprintf(stderr, "traffic[%d]: %s at %llu: %s\n", ::getpid(), what,
               static_cast<unsigned long long>(at), std::strerror(errno));
  std::_Exit(1);
}

std::uint8_t byte_at(std::uint64_t offset, std::uint64_t key) {
  return static_cast<std::uint8_t>((offset + key) * 0x9E3779B97F4A7C15 >> 56);
}

std::size_t random_size(std::mt19937& random) {
  switch (random() % 8) {
    case 0: return 1 + random() % kMost;
    case 1: return 1 + random() % 60'000;
    case 2: return 1;
    default: return 1 + random() % 2000;
  }
}

void random_pause(std::mt19937& random) {
  const auto dice = random() % 400;
  if (dice == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
  if (dice == 1) std::this_thread::yield();
}

// One end's writing: true once all has been sent and said.
class Writer {
 public:
  Writer(int fd, unsigned seed, std::uint64_t total, std::uint64_t key)
      : fd_(fd), random_(seed), total_(total), key_(key) {}
  // One call. False: would block.
  bool step() {
    if (done_) return true;
    if (sent_ == total_) {
      if (::shutdown(fd_, SHUT_WR) != 0) fail("shutdown", sent_);
      return done_ = true;
    }
    random_pause(random_);
    const std::size_t size = std::min<std::uint64_t>(total_ - sent_, random_size(random_));
    buffer_.resize(size);
    for (std::size_t i = 0; i < size; ++i) buffer_[i] = byte_at(sent_ + i, key_);
    const std::size_t cut = random_() % (size + 1);
    iovec parts[3] = {{buffer_.data(), cut}, {nullptr, 0}, {buffer_.data() + cut, size - cut}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    ssize_t now = 0;
    switch (random_() % 4) {
      case 0: now = ::send(fd_, buffer_.data(), size, MSG_NOSIGNAL); break;
      case 1: now = ::write(fd_, buffer_.data(), size); break;
      case 2: now = ::writev(fd_, parts, 3); break;
      default: now = ::sendmsg(fd_, &message, 0); break;
    }
    if (now < 0 && errno == EAGAIN) return false;
    if (now <= 0) fail("send", sent_);
    sent_ += static_cast<std::uint64_t>(now);
    return true;
  }
  [[nodiscard]] bool done() const { return done_; }

 private:
  int fd_;
  std::mt19937 random_;
  std::uint64_t total_, key_, sent_ = 0;
  bool done_ = false;
  std::vector<std::uint8_t> buffer_;
};

class Reader {
 public:
  Reader(int fd, unsigned seed, std::uint64_t total, std::uint64_t key, const std::string& engine)
      : fd_(fd),
        random_(seed),
        total_(total),
        key_(key),
        blocking_(engine == "blocking"),
        counting_(engine == "counting"),
        buffer_(kMost) {}
  // epoll has told of it.
  void told(std::uint32_t events) {
    if ((events & EPOLLIN) != 0) left_ = kUnknown;
    if ((events & EPOLLRDHUP) != 0) counting_ = false;
  }
  // One call. False: would block, or has read what was counted.
  bool step() {
    if (done_) return true;
    if (counting_ && left_ == 0) return false;
    random_pause(random_);
    std::size_t size = random_size(random_);
    int flags = 0;
    const auto dice = random_() % 16;
    if (dice == 0) {
      // What is shown must be what comes.
      const ssize_t shown = ::recv(fd_, buffer_.data(), size, MSG_PEEK | MSG_DONTWAIT);
      for (ssize_t i = 0; i < shown; ++i) check(i);
    } else if (dice == 1 && blocking_) {
      size = std::min<std::uint64_t>(size, total_ - received_);
      if (size == 0) size = 1;
      flags = MSG_WAITALL;
    } else if (dice == 2) {
      int waiting = 0;
      if (::ioctl(fd_, FIONREAD, &waiting) != 0 || waiting < 0) fail("FIONREAD", received_);
      if (static_cast<std::uint64_t>(waiting) > total_ - received_)
        fail("FIONREAD says too much", received_);
    }
    const ssize_t now = dice % 2 == 0 && flags == 0 ? ::read(fd_, buffer_.data(), size)
                                                    : ::recv(fd_, buffer_.data(), size, flags);
    if (now < 0 && errno == EAGAIN) return false;
    if (now < 0) fail("recv", received_);
    if (now == 0) {
      if (received_ != total_) fail("end too early", received_);
      return done_ = true;
    }
    // Who is stopped and continued gets less, as from the kernel.
    if (flags == MSG_WAITALL && static_cast<std::size_t>(now) != size && !are_stopped)
      fail("MSG_WAITALL", received_);
    for (ssize_t i = 0; i < now; ++i) check(i);
    received_ += static_cast<std::uint64_t>(now);
    if (counting_) count_down(static_cast<std::size_t>(now), size);
    return true;
  }
  [[nodiscard]] bool done() const { return done_; }

 private:
  static constexpr std::size_t kUnknown = SIZE_MAX;
  void count_down(std::size_t now, std::size_t wanted) {
    if (now < wanted) {
      left_ = 0;
    } else if (left_ != kUnknown) {
      left_ -= std::min(left_, now);
    } else {
      int waiting = 0;
      if (::ioctl(fd_, FIONREAD, &waiting) != 0 || waiting < 0) fail("FIONREAD", received_);
      left_ = static_cast<std::size_t>(waiting);
    }
  }
  void check(ssize_t i) {
    const auto index = static_cast<std::size_t>(i);
    if (buffer_[index] != byte_at(received_ + index, key_)) fail("wrong byte", received_ + index);
  }
  int fd_;
  std::mt19937 random_;
  std::uint64_t total_, key_, received_ = 0;
  bool blocking_, done_ = false;
  std::size_t left_ = 0;  // that may be read before epoll tells again
  bool counting_;
  std::vector<std::uint8_t> buffer_;
};

bool done(const Writer& writer, const Reader& reader) { return writer.done() && reader.done(); }

template <class Work>
void run_by_poll(int fd, const Writer& writer, const Reader& reader, std::mt19937& random,
                 Work work) {
  while (!done(writer, reader)) {
    pollfd wait{.fd = fd, .events = 0, .revents = 0};
    if (!reader.done()) wait.events |= POLLIN;
    if (!writer.done()) wait.events |= POLLOUT;
    // Now and then a reader alone, that really waits.
    if (!reader.done() && random() % 4 == 0) wait.events = POLLIN;
    if (::poll(&wait, 1, wait.events == POLLIN ? 2 : 20'000) < 0) fail("poll", 0);
    work();
  }
}

template <class Work>
void run_by_select(int fd, const Writer& writer, const Reader& reader, Work work) {
  while (!done(writer, reader)) {
    fd_set read, write;
    FD_ZERO(&read);
    FD_ZERO(&write);
    if (!reader.done()) FD_SET(fd, &read);
    if (!writer.done()) FD_SET(fd, &write);
    timeval limit{.tv_sec = 20, .tv_usec = 0};
    const int ready = ::select(fd + 1, &read, &write, nullptr, &limit);
    if (ready <= 0) fail("select", 0);
    work();
  }
}

template <class Work>
void run_by_epoll(int fd, const Writer& writer, Reader& reader, bool edge, std::uint32_t end,
                  Work work) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{.events = EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0U) | end,
                     .data = {.fd = fd}};
  ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted);
  while (!done(writer, reader)) {
    if (!edge) {
      wanted.events = (reader.done() ? 0U : EPOLLIN) | (writer.done() ? 0U : EPOLLOUT);
      ::epoll_ctl(set, EPOLL_CTL_MOD, fd, &wanted);
    }
    epoll_event event;
    const int ready = ::epoll_wait(set, &event, 1, 20'000);
    if (ready < 0 && errno == EINTR && are_stopped) continue;
    if (ready <= 0) fail("epoll_wait", 0);
    if (event.data.fd != fd) fail("epoll data", 0);
    reader.told(event.events);
    work();
  }
  ::close(set);
}

void run(const std::string& engine, int fd, unsigned seed, std::uint64_t total, std::uint64_t out,
         std::uint64_t in) {
  Writer writer(fd, seed, total, out);
  Reader reader(fd, seed + 1, total, in, engine);
  if (engine == "blocking") {
    std::thread writing([&] {
      while (!writer.done()) writer.step();
    });
    while (!reader.done()) reader.step();
    writing.join();
    return;
  }
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  std::mt19937 random(seed + 2);
  const bool edge = engine == "edge" || engine == "counting";
  const auto work = [&] {
    // Until both would block, or for a while.
    bool reads = true;
    bool writes = true;
    for (unsigned i = 0; (edge || i < 1 + random() % 4) && (reads || writes); ++i) {
      if (reads) reads = !reader.done() && reader.step();
      if (writes) writes = !writer.done() && writer.step();
    }
  };
  if (engine == "spin") {
    while (!done(writer, reader)) work();
  } else if (engine == "poll") {
    run_by_poll(fd, writer, reader, random, work);
  } else if (engine == "select") {
    run_by_select(fd, writer, reader, work);
  } else {
    run_by_epoll(fd, writer, reader, edge, engine == "counting" ? EPOLLRDHUP : 0U, work);
  }
}

// Stops and continues two processes until nobody has the other end of the pipe any more. Whoever is
// stopped is continued before that.
void stop_again_and_again(pid_t one, pid_t other, unsigned seed, int pipe) {
  std::mt19937 random(seed + 3);
  const auto pause = [&](unsigned most_us) {
    if (const auto us = random() % most_us; us > most_us / 2)
      std::this_thread::sleep_for(std::chrono::microseconds(us));
  };
  pollfd end{.fd = pipe, .events = 0, .revents = 0};
  while (::poll(&end, 1, 0) == 0) {
    const pid_t whom = random() % 2 == 0 ? one : other;
    ::kill(whom, SIGSTOP);
    pause(random() % 8 == 0 ? 40'000 : 3000);
    ::kill(whom, SIGCONT);
    pause(10'000);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5 && !(count == 6 && std::string(arguments[5]) == "stopped")) return 2;
  are_stopped = count == 6;
  const auto seed = static_cast<unsigned>(std::atoi(arguments[3]));
  const auto bytes = static_cast<std::uint64_t>(std::atoll(arguments[4]));
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 8) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail("listen", 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (are_stopped) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) fail("accept", 0);
    run(arguments[2], fd, seed * 10 + 5, bytes, 2, 1);
    ::close(fd);
    std::_Exit(0);
  }
  const pid_t client = ::getpid();
  int until[2] = {-1, -1};
  if (are_stopped && ::pipe2(until, O_CLOEXEC) != 0) fail("pipe", 0);
  const pid_t stopper = are_stopped ? ::fork() : -1;
  if (stopper == 0) {
    ::close(listener);
    ::close(until[1]);
    stop_again_and_again(client, child, seed, until[0]);
    std::_Exit(0);
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) fail("connect", 0);
  run(arguments[1], fd, seed * 10, bytes, 1, 2);
  ::close(fd);
  int status = 0;
  if (stopper > 0) {
    ::close(until[1]);
    ::waitpid(stopper, &status, 0);
  }
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
