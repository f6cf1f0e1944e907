// SPDX-License-Identifier: Apache-2.0
//
// Channels and servers for tests, which must hold over shared memory and over the module alike.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/message.h"
#include "harness/child.hpp"
#include "harness/thread_state.hpp"

namespace farcall::message::test {

using namespace std::chrono_literals;
using namespace farcall::test;

// A channel, and a connection to it, which children inherit.
class Channel {
 public:
  explicit Channel(unsigned flags = 0) : id(farcall_channel_create(flags)) {
    if (id < 0) ADD_FAILURE() << std::strerror(errno);
    connection = farcall_connect(id);
    if (connection < 0) ADD_FAILURE() << std::strerror(errno);
  }
  ~Channel() {
    farcall_disconnect(connection);
    farcall_channel_destroy(id);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int id;
  int connection;
};

struct Message {
  std::int64_t id = -1;
  int error = 0;
  std::string text;
  farcall_info info{};
};

// Waits at most as long as something takes that must happen.
inline Message receive(int channel, std::size_t room = 4096,
                       std::chrono::nanoseconds time = kPatience) {
  Message message;
  message.text.resize(room);
  farcall_timeout(time.count());
  message.id = farcall_receive(channel, message.text.data(), room, &message.info);
  if (message.id < 0) message.error = errno;
  message.text.resize(message.id > 0 ? message.info.received : 0);
  return message;
}

struct Reply {
  int status = -1;
  int error = 0;
  std::string text;
  bool operator==(const Reply&) const = default;
};

inline Reply send(int connection, std::string_view text, std::size_t room = 4096) {
  Reply reply;
  reply.text.resize(room);
  const iovec out{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  const iovec in{.iov_base = reply.text.data(), .iov_len = room};
  farcall_message message{};
  message.send = &out;
  message.send_count = 1;
  message.reply = &in;
  message.reply_count = 1;
  reply.status = farcall_send_message(connection, &message);
  if (reply.status < 0) reply.error = errno;
  reply.text.resize(reply.status < 0 ? 0 : message.replied);
  return reply;
}

inline int answer(std::int64_t id, int status, std::string_view text = {}) {
  return farcall_reply(id, status, text.data(), text.size());
}

// Threads that send back what they get, until the channel goes.
class Echo {
 public:
  explicit Echo(int channel, int threads = 1) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([channel] {
        std::vector<char> buffer(1 << 20);
        farcall_info info{};
        std::int64_t id = 0;
        while ((id = farcall_receive(channel, buffer.data(), buffer.size(), &info)) >= 0 ||
               errno == EINTR) {
          for (unsigned j = 0; id > 0 && j < info.descriptor_count; ++j)
            ::close(info.descriptors[j]);
          if (id > FARCALL_ONE_WAY) farcall_reply(id, 0, buffer.data(), info.received);
        }
      });
  }
  // After the channel is gone.
  ~Echo() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

// Destroys the channel before the threads that receive from it are waited for.
struct EchoServer : Channel {
  explicit EchoServer(unsigned flags = 0, int threads = 1)
      : Channel(flags), echo(std::make_unique<Echo>(id, threads)) {}
  ~EchoServer() {
    farcall_channel_destroy(id);
    echo.reset();
  }
  std::unique_ptr<Echo> echo;
};

// A process that has its own channel, attached to a name.
class NamedServer {
 public:
  template <class Body>
  NamedServer(const std::string& name, Body body)
      : child_([this, name, body] {
          const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
          if (channel < 0) {
            ADD_FAILURE() << std::strerror(errno);
            return;
          }
          ready_->happens();
          body(channel);
        }) {
    EXPECT_TRUE(ready_->wait());
  }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  void kill() { child_.kill(); }

 private:
  Shared<Event> ready_;
  Child child_;
};

// Waits until a thread of this process sleeps in the kernel; 0 is one that has not begun yet. For
// some time, as it may have to wait for a lock on the way.
inline bool sleeps(const std::atomic<pid_t>& thread) {
  int asleep = 0;
  return eventually([&] {
    const bool now = thread != 0 && is_asleep(thread);
    asleep = now ? asleep + 1 : 0;
    return asleep >= 4;
  });
}

inline pid_t own_id() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

inline std::string unique_name(const char* what) {
  static int count = 0;
  return std::string(what) + "-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

inline void echo_for_ever(int channel) {
  std::vector<char> buffer(1 << 20);
  farcall_info info{};
  for (;;) {
    const std::int64_t id = farcall_receive(channel, buffer.data(), buffer.size(), &info);
    if (id > FARCALL_ONE_WAY) farcall_reply(id, 0, buffer.data(), info.received);
    if (id < 0 && errno != EINTR) return;
  }
}

}  // namespace farcall::message::test
