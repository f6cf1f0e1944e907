// SPDX-License-Identifier: Apache-2.0
//
// Doors for tests: servers in processes of their own, procedures, calls and what comes of them.
#pragma once

#include <door.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/usage.hpp"

namespace farcall::door::test {

using namespace farcall::test;

// Sends one descriptor over a packet socket; receives one, or -1.
inline void hand_over(int socket, int fd) { send_descriptors(socket, std::array{fd}); }
inline int take_over(int socket) {
  pollfd something{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&something, 1, static_cast<int>(2 * kPatience.count())) != 1) return -1;
  Packet packet = take_packet(socket);
  return packet.descriptors.size() == 1 ? packet.descriptors[0].release() : -1;
}

// A server in a process of its own, for as long as this object lives.
class ScopedServer {
 public:
  // `make` creates the door, in the new process. It may go on working: the process lasts.
  template <class Make>
  explicit ScopedServer(Make make) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    process_ = std::make_unique<Child>([&] {
      ::close(ends[0]);
      const int door = make();
      ASSERT_GE(door, 0) << std::strerror(errno);
      hand_over(ends[1], door);
      char byte;
      while (::read(ends[1], &byte, 1) < 0 && errno == EINTR) {
      }
    });
    ::close(ends[1]);
    line_.reset(ends[0]);
    door_.reset(take_over(line_.get()));
    EXPECT_GE(door_.get(), 0) << "the server made no door";
  }

  [[nodiscard]] int door() const { return door_.get(); }
  [[nodiscard]] pid_t pid() const { return process_->pid(); }
  void kill() { process_->kill(); }
  // Lets it return from main, so to say.
  int exit() {
    line_.reset();
    return process_->join();
  }

 private:
  std::unique_ptr<Child> process_;
  UniqueFd line_;
  UniqueFd door_;
};

// ---- procedures ----

inline void echo(void*, char* data, size_t size, door_desc_t*, uint_t) {
  ::door_return(data, size, nullptr, 0);
}
// What a procedure answers with.
struct Answer {
  Answer(std::string text) : data(std::move(text)) {}  // NOLINT: converts
  Answer(const char* text) : data(text) {}             // NOLINT: converts
  explicit Answer(std::vector<door_desc_t> array, std::string text = {})
      : data(std::move(text)), descriptors(std::move(array)) {}
  Answer() = default;

  std::string data;
  std::vector<door_desc_t> descriptors;
};
// door_return() does not come back, and nothing that is on the stack then is ever destroyed.
inline Answer& kept_by_thread(Answer&& answer) {
  static thread_local Answer kept;
  kept = Answer();
  std::swap(kept, answer);
  return kept;
}
// Takes an object with an operator()(data, size, descriptors, count) as its cookie, which returns
// an Answer, or nothing where it calls door_return() itself.
template <class Body>
void procedure_of(void* cookie, char* data, size_t size, door_desc_t* descriptors, uint_t count) {
  Body& body = *static_cast<Body*>(cookie);
  if constexpr (std::is_void_v<decltype(body(data, size, descriptors, count))>) {
    body(data, size, descriptors, count);
  } else {
    Answer& answer = kept_by_thread(body(data, size, descriptors, count));
    ::door_return(answer.data.data(), answer.data.size(), answer.descriptors.data(),
                  static_cast<uint_t>(answer.descriptors.size()));
  }
}
// A door that lives as long as this process and calls `body` for each request.
template <class Body>
int make_door(Body& body, uint_t attributes = 0) {
  return ::door_create(procedure_of<Body>, &body, attributes);
}
// A private door without threads: callers wait.
inline int deserted_door(uint_t attributes = 0) {
  ::door_server_create([](door_info_t*) {});
  const int door = ::door_create(echo, nullptr, DOOR_PRIVATE | attributes);
  EXPECT_GE(door, 0) << std::strerror(errno);
  return door;
}
inline void answer(const char* text) {
  ::door_return(const_cast<char*>(text), std::strlen(text), nullptr, 0);
}
// A number as the reply, and what it was.
template <class Number>
void answer_number(Number number) {
  ::door_return(reinterpret_cast<char*>(&number), sizeof number, nullptr, 0);
}

// Holds calls until it is told to let one go on.
struct Gate {
  Event entered;
  Event open;
  Event left;
  void operator()(char* data, size_t size, door_desc_t*, uint_t) {
    entered.happens();
    open.await();
    left.happens();
    ::door_return(data, size, nullptr, 0);
  }
  // Lets go the one call that is held, before another comes that might slip through instead.
  [[nodiscard]] bool let_go() {
    open.happens();
    return left.wait();
  }
};

// ---- calls ----

struct Reply {
  int error = 0;  // errno of a call that failed
  std::string data;
  std::vector<door_desc_t> descriptors;

  template <class Number>
  [[nodiscard]] Number number() const {
    Number value{};
    EXPECT_EQ(data.size(), sizeof value);
    std::memcpy(&value, data.data(), std::min(sizeof value, data.size()));
    return value;
  }
};

inline Reply call(int door, std::string_view request = {},
                  std::vector<door_desc_t> descriptors = {}) {
  std::vector<char> buffer(request.size() + 1024);
  door_arg_t arguments{};
  arguments.data_ptr = const_cast<char*>(request.data());
  arguments.data_size = request.size();
  arguments.desc_ptr = descriptors.data();
  arguments.desc_num = static_cast<uint_t>(descriptors.size());
  arguments.rbuf = buffer.data();
  arguments.rsize = buffer.size();
  Reply reply;
  if (::door_call(door, &arguments) != 0) {
    reply.error = errno;
    return reply;
  }
  reply.data.assign(arguments.data_size > 0 ? arguments.data_ptr : "", arguments.data_size);
  reply.descriptors.assign(arguments.desc_ptr, arguments.desc_ptr + arguments.desc_num);
  if (arguments.rbuf != buffer.data()) ::munmap(arguments.rbuf, arguments.rsize);
  return reply;
}
// The errno of a call, 0 if it succeeded.
inline int error_of(int door, std::string_view request = {},
                    std::vector<door_desc_t> descriptors = {}) {
  return call(door, request, std::move(descriptors)).error;
}
// The errno of what returned `result`, 0 if that was not -1.
inline int error_of_result(int result) { return result == -1 ? errno : 0; }
#define ERROR_OF(expression) (errno = 0, ::farcall::door::test::error_of_result(expression))

inline door_desc_t pass(int fd, door_attr_t attributes = DOOR_DESCRIPTOR) {
  door_desc_t descriptor{};
  descriptor.d_attributes = attributes;
  descriptor.d_data.d_desc.d_descriptor = fd;
  return descriptor;
}
inline int fd_of(const door_desc_t& descriptor) { return descriptor.d_data.d_desc.d_descriptor; }

// Whether a thread, of any process, sleeps in the library: a futex on which a test sleeps is of its
// process alone.
inline bool sleeps_in_call(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/syscall");
  long number = -1;
  unsigned long address = 0;
  unsigned long operation = 0;
  file >> number >> std::hex >> address >> operation;
  constexpr unsigned long kDoorCall = 98;  // of stplr_doors.h, in the lowest byte of a command
#ifdef SYS_poll
  if (number == SYS_poll) return true;
#endif
  return number == SYS_ppoll || (number == SYS_futex && (operation & FUTEX_PRIVATE_FLAG) == 0) ||
         (number == SYS_ioctl && (operation & 0xFF) == kDoorCall);
}

// A thread that calls, and can be interrupted.
class Caller {
 public:
  explicit Caller(int door, std::string request = {}, std::vector<door_desc_t> descriptors = {})
      : Caller([door, request = std::move(request), descriptors = std::move(descriptors)] {
          return call(door, request, descriptors);
        }) {}
  // Any other call.
  explicit Caller(std::function<Reply()> body) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;  // makes no difference to a call
    ::sigaction(SIGUSR1, &action, nullptr);
    std::promise<Reply> promise;
    reply_ = promise.get_future();
    thread_ = std::thread([this, body = std::move(body), promise = std::move(promise)]() mutable {
      task_ = ::gettid();
      promise.set_value(body());
    });
  }
  ~Caller() {
    if (thread_.joinable()) thread_.join();  // the watchdog looks on
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // It has begun, and goes on waiting.
  [[nodiscard]] bool waits() const {
    return eventually([&] { return replied() || sleeps(); }) && !replied(kGlance);
  }
  Reply reply() { return reply_.get(); }
  // Sends one signal to the call, once it is under way, which goes on.
  void signal() {
    EXPECT_TRUE(eventually([&] { return replied() || sleeps(); }));
    ::pthread_kill(thread_.native_handle(), SIGUSR1);
  }
  // The same; returns what that makes of it.
  Reply interrupt() {
    do {
      signal();
    } while (!kCountsSignals && !replied(5ms));
    return reply_.get();
  }
  // A reply that comes in time, or what a signal makes of the call.
  Reply interrupt_after(std::chrono::milliseconds time) {
    if (replied(time)) return reply_.get();
    return interrupt();
  }

 private:
  [[nodiscard]] bool replied(std::chrono::milliseconds time = 0ms) const {
    return reply_.wait_for(time) == std::future_status::ready;
  }
  [[nodiscard]] bool sleeps() const { return sleeps_in_call(task_); }

  std::atomic<pid_t> task_{0};
  std::future<Reply> reply_;
  std::thread thread_;
};

// ---- what a process holds ----

inline door_info_t info_of(int door) {
  door_info_t info{};
  EXPECT_EQ(::door_info(door, &info), 0) << std::strerror(errno);
  return info;
}
inline door_id_t id_of(int door) { return info_of(door).di_uniquifier; }

// Lets this process have no more descriptors than it has, plus `more`, for as long as this lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more = 0) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // Fills the holes below, so that the limit alone counts.
    rlimit limit = before_;
    int highest = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max(highest, std::stoi(entry.path().filename()));
    for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) {
      if (fd > highest) {
        ::close(fd);
        break;
      }
      fillers_.emplace_back(fd);
    }
    limit.rlim_cur = static_cast<rlim_t>(highest) + 1 + more;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> fillers_;
};

}  // namespace farcall::door::test
