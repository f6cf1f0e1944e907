// SPDX-License-Identifier: Apache-2.0
//
// The other side of the tests of the Rust crates, in C++:
//
//   peer serve|open NAME     an end of a pipe that sends back what comes, until nothing follows
//   peer serve-bytes|open-bytes NAME   the same of bytes
//   peer publish NAME        numbers 0 to 999 to the first reader, each in text
//   peer subscribe NAME      prints how many messages came, and the sum of their numbers
//   peer wait NAME           serves a pipe, says "ready", and uses it no more
//   peer mute NAME           publishes, says "ready" when there is a reader, and does no more
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "farcall/broadcast.hpp"
#include "farcall/farcall.h"

namespace {

using farcall::Deadline;
using farcall::Outcome;
using farcall::Publisher;
using farcall::Subscriber;

constexpr std::int64_t kLong = 60'000'000'000;

struct Close {
  void operator()(farcall_pipe* end) const { farcall_pipe_close(end); }
};
using Pipe = std::unique_ptr<farcall_pipe, Close>;

template <class Number>
Number check(Number result) {
  if (result < 0) throw std::system_error(static_cast<int>(-result), std::generic_category());
  return result;
}

farcall_pipe_options options_of(int kind) {
  return {.size = sizeof(farcall_pipe_options), .capacity = 0, .wait = 0, .kind = kind};
}

Pipe serve(const char* name, int kind = FARCALL_PIPE_MESSAGES) {
  const farcall_pipe_options options = options_of(kind);
  farcall_pipe* end = nullptr;
  check(farcall_pipe_serve(name, &options, kLong, &end));
  return Pipe(end);
}

Pipe open(const char* name, int kind = FARCALL_PIPE_MESSAGES) {
  const farcall_pipe_options options = options_of(kind);
  farcall_pipe* end = nullptr;
  check(farcall_pipe_open(name, &options, kLong, &end));
  return Pipe(end);
}

void echo(const Pipe& end) {
  std::vector<std::byte> message(1 << 20);
  for (;;) {
    const std::int64_t size =
        farcall_pipe_receive(end.get(), message.data(), message.size(), nullptr, kLong);
    if (size == -EPIPE) return;
    check(
        farcall_pipe_send(end.get(), message.data(), static_cast<std::size_t>(check(size)), kLong));
  }
}

void echo_bytes(const Pipe& end) {
  std::vector<std::byte> some(10'000);
  for (;;) {
    const auto size = static_cast<std::size_t>(
        check(farcall_pipe_read(end.get(), some.data(), some.size(), kLong)));
    if (size == 0) return;
    for (std::size_t written = 0; written < size;)
      written += static_cast<std::size_t>(
          check(farcall_pipe_write(end.get(), some.data() + written, size - written, kLong)));
  }
}

void wait_for_reader(const Publisher& publisher) {
  while (publisher.readers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void publish(const char* name) {
  Publisher publisher(name, {});
  wait_for_reader(publisher);
  for (int i = 0; i < 1000; ++i) {
    const std::string text = std::to_string(i);
    if (publisher.write(std::as_bytes(std::span(text)), Deadline::never()) != Outcome::ok)
      throw std::runtime_error("it is not written");
  }
}

void subscribe(const char* name) {
  const Deadline soon = Deadline::after(std::chrono::nanoseconds(kLong));
  Subscriber subscriber = Subscriber::open(name, {}, soon);
  std::array<char, 100> text{};
  std::size_t size = 0;
  std::uint64_t missed = 0;
  int messages = 0;
  int sum = 0;
  Outcome outcome = Outcome::ok;
  while ((outcome = subscriber.read(std::as_writable_bytes(std::span(text)), size, missed, soon)) ==
         Outcome::ok) {
    int number = 0;
    std::from_chars(text.data(), text.data() + size, number);
    sum += number;
    ++messages;
  }
  std::cout << messages << ' ' << sum << ' ' << to_string(outcome) << std::endl;
}

void stay() {
  std::cout << "ready" << std::endl;
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void mute(const char* name) {
  const Publisher publisher(name, {});
  wait_for_reader(publisher);
  stay();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view role = argc == 3 ? argv[1] : "";
  if (role == "serve") {
    echo(serve(argv[2]));
  } else if (role == "open") {
    echo(open(argv[2]));
  } else if (role == "serve-bytes") {
    echo_bytes(serve(argv[2], FARCALL_PIPE_BYTES));
  } else if (role == "open-bytes") {
    echo_bytes(open(argv[2], FARCALL_PIPE_BYTES));
  } else if (role == "publish") {
    publish(argv[2]);
  } else if (role == "subscribe") {
    subscribe(argv[2]);
  } else if (role == "wait") {
    const Pipe end = serve(argv[2]);
    stay();
  } else if (role == "mute") {
    mute(argv[2]);
  } else {
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
