// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled in calls on sockets: pthreads(7) lists which are such points. These
// tests run twice, as they are and with the library preloaded; the C library's answer is the right
// one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

constexpr timespec kLong{.tv_sec = 60, .tv_nsec = 0};

struct Sockets {
  int fd;
  int set;  // of epoll, with that socket
};

struct Point {
  const char* name;
  void (*call)(const Sockets&);
};

fd_set only(int fd) {
  fd_set fds;
  FD_ZERO(&fds);
  FD_SET(fd, &fds);
  return fds;
}

// A thread that makes one call. Where that comes back, it ends as usual.
class Thread {
 public:
  Thread(const Point& point, const Sockets& sockets, bool at_once) {
    given_ = {.point = point, .sockets = sockets};
    given_.told = at_once;
    EXPECT_EQ(::pthread_create(&thread_, nullptr, &Thread::run, &given_), 0);
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  void cancel() {
    EXPECT_EQ(::pthread_cancel(thread_), 0);
    given_.told = true;
  }
  bool ends_cancelled() {
    void* result = nullptr;
    EXPECT_EQ(::pthread_join(thread_, &result), 0);
    return result == PTHREAD_CANCELED;
  }

 private:
  struct Given {
    Given& operator=(const Given& other) {
      point = other.point;
      sockets = other.sockets;
      return *this;
    }
    Point point;
    Sockets sockets;
    std::atomic<bool> told{false};
  };
  static void* run(void* pointer) {
    auto* const given = static_cast<Given*>(pointer);
    while (!given->told) {
    }
    given->point.call(given->sockets);
    return nullptr;
  }

  Given given_{};
  pthread_t thread_{};
};

char bytes[5];

constexpr Point kReceiving[] = {
    {"recv", [](const Sockets& on) { (void)!::recv(on.fd, bytes, sizeof bytes, 0); }},
    {"read", [](const Sockets& on) { (void)!::read(on.fd, bytes, sizeof bytes); }},
    {"readv",
     [](const Sockets& on) {
       const iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
       (void)!::readv(on.fd, &part, 1);
     }},
    {"recvmsg",
     [](const Sockets& on) {
       iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
       msghdr message{};
       message.msg_iov = &part;
       message.msg_iovlen = 1;
       (void)!::recvmsg(on.fd, &message, 0);
     }},
    {"poll",
     [](const Sockets& on) {
       pollfd one{.fd = on.fd, .events = POLLIN, .revents = 0};
       (void)::poll(&one, 1, 60'000);
     }},
    {"ppoll",
     [](const Sockets& on) {
       pollfd one{.fd = on.fd, .events = POLLIN, .revents = 0};
       (void)::ppoll(&one, 1, &kLong, nullptr);
     }},
    {"select",
     [](const Sockets& on) {
       fd_set fds = only(on.fd);
       timeval time{.tv_sec = kLong.tv_sec, .tv_usec = 0};
       (void)::select(on.fd + 1, &fds, nullptr, nullptr, &time);
     }},
    {"pselect",
     [](const Sockets& on) {
       fd_set fds = only(on.fd);
       (void)::pselect(on.fd + 1, &fds, nullptr, nullptr, &kLong, nullptr);
     }},
    {"epoll_wait",
     [](const Sockets& on) {
       epoll_event event{};
       (void)::epoll_wait(on.set, &event, 1, 60'000);
     }},
    {"epoll_pwait",
     [](const Sockets& on) {
       epoll_event event{};
       (void)::epoll_pwait(on.set, &event, 1, 60'000, nullptr);
     }},
};

constexpr Point kOther[] = {
    {"send", [](const Sockets& on) { (void)!::send(on.fd, bytes, sizeof bytes, 0); }},
    {"write", [](const Sockets& on) { (void)!::write(on.fd, bytes, sizeof bytes); }},
    {"close", [](const Sockets& on) { ::close(on.fd); }},
};

class Cancel : public testing::Test {
 protected:
  Cancel() : set_(::epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = pair_.server.get()}};
    EXPECT_EQ(::epoll_ctl(set_.get(), EPOLL_CTL_ADD, pair_.server.get(), &event), 0);
  }
  [[nodiscard]] Sockets sockets() const { return {.fd = pair_.server.get(), .set = set_.get()}; }
  // That nothing has been taken or sent, and the connection is what it was.
  void expect_untouched() const {
    EXPECT_EQ(receive(pair_.server.get()), "there");
    EXPECT_EQ(receive(pair_.client.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
    EXPECT_EQ(send(pair_.server.get(), "back"), "4");
    EXPECT_EQ(receive(pair_.client.get()), "back");
  }

  const Pair pair_;
  const UniqueFd set_;
};

// Also where there is nothing to wait for, in memory or elsewhere.
TEST_F(Cancel, IsActedOnWhereTheCallWouldReturnAtOnce) {
  const auto expect_cancelled = [this](const Point& point) {
    SCOPED_TRACE(point.name);
    EXPECT_EQ(send(pair_.client.get(), "there"), "5");
    Thread thread(point, sockets(), false);
    thread.cancel();
    EXPECT_TRUE(thread.ends_cancelled());
    expect_untouched();
  };
  for (const Point& point : kReceiving) expect_cancelled(point);
  for (const Point& point : kOther) expect_cancelled(point);
}

TEST_F(Cancel, EndsAThreadThatWaits) {
  for (const Point& point : kReceiving) {
    SCOPED_TRACE(point.name);
    Thread thread(point, sockets(), true);
    std::this_thread::sleep_for(10ms);
    thread.cancel();
    EXPECT_TRUE(thread.ends_cancelled());
    EXPECT_EQ(send(pair_.client.get(), "there"), "5");
    expect_untouched();
  }
}

// Wherever in the call that finds it.
TEST_F(Cancel, MayComeAtAnyTime) {
  for (int round = 0; round < 300; ++round) {
    const Point& point = kReceiving[static_cast<std::size_t>(round) % std::size(kReceiving)];
    SCOPED_TRACE(point.name);
    EXPECT_EQ(send(pair_.client.get(), "there"), "5");
    Thread thread(point, sockets(), true);
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(round * 300);
    while (std::chrono::steady_clock::now() < until) continue;
    thread.cancel();
    thread.ends_cancelled();
    const std::string rest = receive(pair_.server.get(), 5, MSG_DONTWAIT);
    EXPECT_TRUE(rest == "there" || rest == "(EAGAIN)") << rest;
  }
  pair_.talk(3);
}

// Datagrams from memory are received and sent without a call of the C library.
TEST(CancelDatagrams, IsActedOnWhereTheCallWouldReturnAtOnce) {
  constexpr std::size_t kReceiveDatagrams = 4;  // of kReceiving
  const Awake pair;
  const auto cancelled = [&](const Point& point) {
    SCOPED_TRACE(point.name);
    Thread thread(point, {.fd = pair.far.fd.get(), .set = -1}, false);
    thread.cancel();
    EXPECT_TRUE(thread.ends_cancelled());
  };
  for (std::size_t i = 0; i < kReceiveDatagrams; ++i) {
    pair.near.send("there");
    cancelled(kReceiving[i]);
    EXPECT_EQ(pair.far.receive(MSG_DONTWAIT), "there");
  }
}

}  // namespace
}  // namespace farcall::preload
