// SPDX-License-Identifier: Apache-2.0
//
// One scheduler tells two workers of each of its steps:
//
//   broadcast-steps publish NAME &
//   broadcast-steps read NAME &
//   broadcast-steps read NAME
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string_view>
#include <thread>

#include "farcall/broadcast.hpp"

using farcall::Deadline;
using farcall::Outcome;
using farcall::Publisher;
using farcall::Subscriber;

constexpr std::uint64_t kSteps = 1000;

int publish(std::string_view name) {
  Publisher steps(name, {});
  while (steps.readers() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (std::uint64_t step = 0; step < kSteps; ++step)
    if (steps.write(std::as_bytes(std::span(&step, 1)), Deadline::never()) != Outcome::ok) return 1;
  return 0;
}

int read(std::string_view name) {
  const Deadline soon = Deadline::after(std::chrono::seconds(20));
  Subscriber steps = Subscriber::open(name, {}, soon);
  std::uint64_t step = 0;
  std::uint64_t expected = 0;
  std::size_t size = 0;
  std::uint64_t missed = 0;
  while (steps.read(std::as_writable_bytes(std::span(&step, 1)), size, missed, soon) == Outcome::ok)
    if (step != expected++) return 1;
  std::cout << "a reader got steps 0 to " << step << "\n";
  return 0;
}

int main(int argc, char** argv) try {
  const std::string_view role = argc == 3 ? argv[1] : "";
  if (role == "publish") return publish(argv[2]);
  if (role == "read") return read(argv[2]);
  std::cerr << "usage: " << argv[0] << " publish NAME | read NAME\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
