// SPDX-License-Identifier: Apache-2.0
#include "tool/top/terminal.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "farcall/error.hpp"

namespace farcall::tool::top {
namespace {

// Alternate screen, no cursor, no wrapping; and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
// Those of the program's own mistakes, which nobody reads from a descriptor.
constexpr std::array kFatal{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr std::array kEnding{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

termios before{};
bool entered = false;

void write_to_terminal(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put < 0 && errno == EAGAIN) {
      pollfd room{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, 100);
    } else if (put < 0 && errno != EINTR) {
      return;
    }
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
}

// Safe in signal handlers.
void restore() noexcept {
  if (!std::exchange(entered, false)) return;
  write_to_terminal(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

void die(int signal) {
  restore();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

sigset_t read_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kEnding) ::sigaddset(&set, signal);
  ::sigaddset(&set, SIGWINCH);
  ::sigaddset(&set, SIGTSTP);
  ::sigaddset(&set, SIGCONT);
  return set;
}

}  // namespace

Terminal::Terminal() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
    throw SystemError(ENOTTY, "farcall top needs a terminal (else: --once, --json, --prometheus)");
  const char* const kind = std::getenv("TERM");
  if (kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb")
    throw SystemError(ENOTTY,
                      "farcall top needs a terminal that moves its cursor, and TERM says "
                      "that this one does not (else: --once, --json, --prometheus)");
  if (::tcgetattr(STDIN_FILENO, &before) != 0) throw_errno("tcgetattr");
  const sigset_t set = read_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) throw_errno("signalfd");
  for (const int signal : kFatal) ::signal(signal, die);
  std::atexit([] { restore(); });
  enter();
}

Terminal::~Terminal() {
  restore();
  ::close(signals_);
}

void Terminal::enter() {
  termios raw = before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);  // signals stay
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  entered = true;
  // In the background this would stop the program, which is right.
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  write_to_terminal(kEnter);
  measure();
}

void Terminal::measure() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    return;
  width_ = size.ws_col;
  height_ = size.ws_row;
}

// Ctrl-Z: the shell gets its terminal as it was. Where none could ever continue this process, the
// kernel does not stop it at that signal, as it would at SIGSTOP.
void Terminal::suspend() {
  restore();
  ::raise(SIGTSTP);
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // here it stops
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  enter();
  redraw_ = true;
}

void Terminal::take_signal() {
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTSTP) {
      suspend();
    } else if (signal == SIGWINCH || signal == SIGCONT) {
      // Whoever was stopped by SIGSTOP may find the terminal as a shell has left it.
      if (signal == SIGCONT) enter();
      measure();
      redraw_ = true;
    } else {
      ended_by_ = signal;
    }
  }
}

Key Terminal::decode() {
  struct Sequence {
    std::string_view bytes;
    Key key;
  };
  static constexpr std::array kSequences{
      Sequence{"\x1b[A", Key::up},       Sequence{"\x1b[B", Key::down},
      Sequence{"\x1bOA", Key::up},       Sequence{"\x1bOB", Key::down},
      Sequence{"\x1b[5~", Key::page_up}, Sequence{"\x1b[6~", Key::page_down},
      Sequence{"\x1b[H", Key::home},     Sequence{"\x1b[F", Key::end},
      Sequence{"\x1bOH", Key::home},     Sequence{"\x1bOF", Key::end},
      Sequence{"\x1b[1~", Key::home},    Sequence{"\x1b[4~", Key::end},
      Sequence{"\x1bOP", Key::f1},       Sequence{"\x1b[11~", Key::f1},
      Sequence{"\x1b[[A", Key::f1},      Sequence{"\x1bOS", Key::f4},
      Sequence{"\x1b[14~", Key::f4},     Sequence{"\x1b[[D", Key::f4},
      Sequence{"\x1b[17~", Key::f6},     Sequence{"\x1b[21~", Key::f10}};
  if (input_.empty()) return Key::none;
  for (const Sequence& sequence : kSequences)
    if (input_.starts_with(sequence.bytes)) {
      input_.erase(0, sequence.bytes.size());
      return sequence.key;
    }
  const auto first = static_cast<unsigned char>(input_[0]);
  if (first != 0x1b) {
    input_.erase(0, 1);
    return static_cast<Key>(first);
  }
  // A sequence that is not known goes as a whole: its letters are no keys.
  if (input_.size() == 1) {
    input_.clear();
    return Key::escape;
  }
  std::size_t end = 2;
  while (end < input_.size() && (input_[end] < '@' || input_[end] > '~')) ++end;
  input_.erase(0, end + 1);
  return Key::none;
}

Key Terminal::read(int timeout_ms) {
  if (input_.empty()) {
    std::array<pollfd, 2> entries{{{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                   {.fd = signals_, .events = POLLIN, .revents = 0}}};
    const int ready = ::poll(entries.data(), entries.size(), timeout_ms);
    if (ready > 0 && entries[1].revents != 0) take_signal();
    if (ended_by_ != 0) return Key::hung_up;
    if (std::exchange(redraw_, false)) return Key::resized;
    if (ready <= 0 || entries[0].revents == 0) return Key::none;
    std::array<char, 256> bytes;
    const ssize_t got = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return Key::none;
    if (got <= 0) return Key::hung_up;
    input_.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return decode();
}

void Terminal::draw(const std::vector<std::string>& lines) {
  std::string screen = "\x1b[H";
  for (std::size_t row = 0; row < height_; ++row) {
    if (row < lines.size()) screen += lines[row];
    screen += "\x1b[0m\x1b[K";
    if (row + 1 < height_) screen += "\r\n";
  }
  write_to_terminal(screen);
}

}  // namespace farcall::tool::top
