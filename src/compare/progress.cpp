// SPDX-License-Identifier: Apache-2.0
#include "compare/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLineEvery = 10 * kSecond;  // where lines stay

// Nobody may hear it, where standard error is closed or full; measuring goes on.
void say(const std::string& text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

std::string duration(std::int64_t ns) {
  const std::int64_t seconds = (ns + kSecond / 2) / kSecond;
  if (seconds < 100) return fmt::format("{} s", seconds);
  return fmt::format("{} min", (seconds + 30) / 60);
}

}  // namespace

Progress::Progress(std::int64_t expected_ns)
    : terminal_(::isatty(STDERR_FILENO) != 0),
      expected_ns_(std::max<std::int64_t>(expected_ns, 1)),
      begin_(monotonic_ns()),
      last_line_(begin_) {
  say(fmt::format("measuring, about {}\n", duration(expected_ns)));
}

Progress::~Progress() { clear(); }

void Progress::clear() const {
  if (terminal_) say("\r\033[K");
  std::fflush(stderr);
}

void Progress::step(std::int64_t work_ns, std::string_view what) {
  done_ns_ += current_ns_;
  current_ns_ = work_ns;
  const std::int64_t now = monotonic_ns();
  if (!terminal_ && now - last_line_ < kLineEvery) return;
  last_line_ = now;
  // The first seconds say little about the rest: until then the estimate counts.
  const double done = static_cast<double>(done_ns_);
  const double left = static_cast<double>(std::max<std::int64_t>(expected_ns_ - done_ns_, 0));
  const double spent = static_cast<double>(now - begin_);
  const double pace = now - begin_ > 3 * kSecond && done > 0 ? spent / done : 1;
  const std::string line = fmt::format("{:3.0f} %  {}  {} left", 100 * done / (done + left + 1),
                                       what, duration(static_cast<std::int64_t>(left * pace)));
  clear();
  say(fmt::format("{:.78}{}", line, terminal_ ? "" : "\n"));
  std::fflush(stderr);
}

void Progress::note(std::string_view text) {
  clear();
  say(fmt::format("{}\n", text));
}

}  // namespace farcall::compare
