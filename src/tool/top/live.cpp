// SPDX-License-Identifier: Apache-2.0
//
// The screen of `farcall top`: a line of sums, what is sorted and filtered by, the flows.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "tool/exit_code.hpp"
#include "tool/top/table.hpp"
#include "tool/top/terminal.hpp"
#include "tool/top/top.hpp"

namespace farcall::tool::top {
namespace {

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kInverse = "\x1b[7m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kYellow = "\x1b[33m";

class Live {
 public:
  explicit Live(const Options& options)
      : interval_(static_cast<std::int64_t>(options.interval_s * 1e9)),
        flows_({.timed = true, .interval_ns = interval_}) {
    view_.sort = sort_of(options.sort);
    view_.filter = options.filter;
  }

  int run() {
    look();
    // The first figures that are per second come soon.
    next_ = looked_ + std::chrono::milliseconds(200);
    for (;;) {
      draw();
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_ && !paused_) {
        look();
        continue;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next_ - now).count();
      const int wait =
          paused_ ? -1 : static_cast<int>(std::clamp<std::int64_t>(left + 1, 1, 60'000));
      if (!take(terminal_.read(wait))) break;
    }
    return kSuccess;
  }
  [[nodiscard]] int ended_by() const { return terminal_.ended_by(); }

 private:
  void look() {
    processes_ = everybody_.look();
    flows_.look(processes_);
    looked_ = std::chrono::steady_clock::now();
    next_ = looked_ + std::chrono::nanoseconds(interval_);
  }

  [[nodiscard]] std::string title() const {
    double forward = 0;
    double bytes = 0;
    const double seconds = std::max(static_cast<double>(flows_.elapsed_ns()) / 1e9, 1e-9);
    unsigned connections = 0;
    for (const watch::Flow& flow : flows_.flows()) {
      connections += flow.connections;
      for (const watch::Passed* way : {&flow.since.forward, &flow.since.back}) {
        forward += static_cast<double>(way->messages + way->kernel_messages);
        bytes += static_cast<double>(way->bytes + way->kernel_bytes);
      }
    }
    if (flows_.elapsed_ns() == 0) forward = bytes = 0;
    return fmt::format("farcall top: {} processes, {} connections, {} messages/s, {} bytes/s",
                       processes_.size(), connections, short_number(forward / seconds),
                       short_number(bytes / seconds));
  }

  [[nodiscard]] std::string status() const {
    if (typing_) return fmt::format("filter: {}_", view_.filter);
    std::string text =
        fmt::format("sorted by {}{}", to_text(view_.sort), view_.reversed ? ", least first" : "");
    if (!view_.filter.empty()) text += fmt::format("   filter: {}", view_.filter);
    if (paused_) text += "   paused";
    return text + "   (h: help)";
  }

  static std::vector<std::string> help() {
    return {"farcall top: keys",
            "",
            "  q  F10  Ctrl-C     quit",
            "  s  >  F6           sort by the next of: messages, bytes, kernel, latency, spin,",
            "                     wait, kind, name",
            "  <                  by the one before",
            "  I                  the other way round",
            "  /  \\  F4           filter: lines that hold the text; Enter ends, Esc clears it",
            "  p                  pause",
            "  space              look now",
            "  arrows, PgUp/PgDn  move through the lines",
            "  Home, End",
            "",
            "  FROM sends MSG/s> and B/s> to TO, which sends <MSG/s and <B/s. KERN: the share that",
            "  the kernel carries. P50, P99: of the time until FROM has an answer. SPIN: processor",
            "  time that both spend waiting. WAIT: < FROM, > TO sleeps until the other does",
            "  something, and since when. N: connections.",
            "",
            "  any key goes on"};
  }

  void draw() {
    const unsigned width = terminal_.width();
    if (helping_) {
      std::vector<std::string> text = help();
      for (std::string& line : text) line.resize(std::min<std::size_t>(line.size(), width));
      return terminal_.draw(text);
    }
    std::vector<std::string> screen;
    const auto cut = [width](std::string text) {
      text.resize(std::min<std::size_t>(text.size(), width));
      return text;
    };
    screen.push_back(kBold + cut(title()));
    screen.push_back(cut(status()));
    screen.push_back(kInverse + header(width, view_));
    const std::vector<Line> all = lines(flows_, width, view_);
    const std::size_t room = terminal_.height() > 3 ? terminal_.height() - 3 : 0;
    page_ = std::max<std::size_t>(room, 1);
    top_ = std::min(top_, all.size() > room ? all.size() - room : 0);
    for (std::size_t i = top_; i < all.size() && i - top_ < room; ++i)
      screen.push_back((all[i].by_kernel ? kYellow : all[i].waits ? kDim : "") + all[i].text);
    if (all.empty() && room > 1)
      screen.push_back(cut(view_.filter.empty() ? "no process that you may look at uses farcall"
                                                : "nothing fits"));
    terminal_.draw(screen);
  }

  void type(Key key) {
    const int code = static_cast<int>(key);
    if (code == '\r' || code == '\n') {
      typing_ = false;
    } else if (key == Key::escape) {
      typing_ = false;
      view_.filter.clear();
    } else if (code == 0x7f || code == 0x08) {
      while (!view_.filter.empty()) {
        const auto last = static_cast<unsigned char>(view_.filter.back());
        view_.filter.pop_back();
        if ((last & 0xc0) != 0x80) break;  // a whole character
      }
    } else if (code >= ' ' && code <= 0xff && view_.filter.size() < 100) {
      view_.filter += static_cast<char>(code);
    }
  }

  void sort_next(int step) {
    const int count = static_cast<int>(Sort::count_);
    view_.sort = static_cast<Sort>((static_cast<int>(view_.sort) + step + count) % count);
  }

  void scroll(Key key) {
    if (key == Key::up && top_ > 0) --top_;
    if (key == Key::down) ++top_;
    if (key == Key::page_up) top_ -= std::min(top_, page_);
    if (key == Key::page_down) top_ += page_;
    if (key == Key::home) top_ = 0;
    if (key == Key::end) top_ = SIZE_MAX / 2;
  }

  // False: that was the last.
  bool take(Key key) {
    if (key == Key::hung_up) return false;
    if (key == Key::none || key == Key::resized) return true;
    if (helping_) {
      helping_ = false;
      return true;
    }
    if (typing_) {
      type(key);
      return true;
    }
    scroll(key);
    switch (static_cast<int>(key)) {
      case 'q':
      case static_cast<int>(Key::f10): return false;
      case 's':
      case '>':
      case static_cast<int>(Key::f6): sort_next(1); break;
      case '<': sort_next(-1); break;
      case 'I': view_.reversed = !view_.reversed; break;
      case '/':
      case '\\':
      case static_cast<int>(Key::f4): typing_ = true; break;
      case static_cast<int>(Key::escape): view_.filter.clear(); break;
      case 'p': paused_ = !paused_; break;
      case ' ': look(); break;
      case 'h':
      case '?':
      case static_cast<int>(Key::f1): helping_ = true; break;
      default: break;
    }
    return true;
  }

  const std::int64_t interval_;
  watch::Everybody everybody_;
  watch::Flows flows_;
  std::vector<watch::Process> processes_;
  std::chrono::steady_clock::time_point looked_;
  std::chrono::steady_clock::time_point next_;
  View view_;
  std::size_t top_ = 0;
  std::size_t page_ = 1;
  bool typing_ = false;
  bool helping_ = false;
  bool paused_ = false;
  Terminal terminal_;  // last: what fails before leaves it as it is
};

}  // namespace

int show_live(const Options& options) {
  int signal = 0;
  {
    Live live(options);
    live.run();
    signal = live.ended_by();
  }
  if (signal == 0 || signal == SIGINT) return kSuccess;
  // As others end who are told to, now that the terminal is as it was.
  ::signal(signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  return kFailure;
}

}  // namespace farcall::tool::top
