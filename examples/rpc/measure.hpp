// SPDX-License-Identifier: Apache-2.0
//
// The comparison that is run over every transport: how long 10,000 iterations take, in each of
// which the client also asks for name and version, and how late ticks arrive.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "services.hpp"

namespace farcall::rpc {

struct Workload {
  std::function<void()> ping;
  std::function<void()> hello;
  std::function<void()> calculate;
  // Runs a timer for so many ticks, and tells how late each was, in nanoseconds.
  std::function<std::vector<std::int64_t>(int ticks)> ticks;
};

// Prints one line of JSON. Times are of all iterations together, in milliseconds; of a tick the
// median, in microseconds.
inline void measure(const char* transport, const Workload& workload) {
  const char* text = std::getenv("RPC_ITERATIONS");
  const int iterations = text != nullptr ? std::max(1, std::atoi(text)) : 10'000;
  const auto time = [&](const std::function<void()>& body) {
    for (int i = 0; i < std::min(iterations, 200); ++i) body();  // warm
    const std::int64_t start = now_ns();
    for (int i = 0; i < iterations; ++i) body();
    return static_cast<double>(now_ns() - start) / 1e6;
  };
  const double ping = time(workload.ping);
  const double hello = time(workload.hello);
  const double calculator = time(workload.calculate);
  std::vector<std::int64_t> late = workload.ticks(std::clamp(iterations / 20, 20, 500));
  std::ranges::sort(late);
  std::printf(
      "{\"transport\": \"%s\", \"iterations\": %d, \"ping_ms\": %.3f, \"hello_ms\": %.3f, "
      "\"calculator_ms\": %.3f, \"timer_us\": %.2f}\n",
      transport, iterations, ping, hello, calculator,
      static_cast<double>(late[late.size() / 2]) / 1e3);
  std::fflush(stdout);
}

}  // namespace farcall::rpc
