// SPDX-License-Identifier: Apache-2.0
#include "tool/terminal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace farcall::test {
namespace {

std::string modes_of(int terminal) {
  termios modes{};
  EXPECT_EQ(::tcgetattr(terminal, &modes), 0);
  std::string text;
  for (const tcflag_t flags : {modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag})
    text += std::to_string(flags) + " ";
  return text;
}

// Returns in the job, which is in the foreground.
void lead_job() {
  const pid_t job = ::fork();
  if (job == 0) {
    ::setpgid(0, 0);
    ::signal(SIGTTOU, SIG_IGN);
    ::tcsetpgrp(STDIN_FILENO, ::getpid());
    ::signal(SIGTTOU, SIG_DFL);
    return;
  }
  int status = 0;
  while (::waitpid(job, &status, WUNTRACED) == job && WIFSTOPPED(status)) {
    ::raise(SIGSTOP);
    ::kill(-job, SIGCONT);
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 126);
}

}  // namespace

TestTerminal::TestTerminal(const std::vector<std::string>& arguments, unsigned short width,
                           unsigned short height, Leader leader, const char* kind)
    : lines_(height), height_(height) {
  winsize size{};
  size.ws_col = width;
  size.ws_row = height;
  EXPECT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
  ::fcntl(master_, F_SETFD, FD_CLOEXEC);
  modes_ = modes_of(slave_);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::login_tty(slave_);
  ::setenv("TERM", kind, 1);
  if (leader == Leader::shell) lead_job();
  std::vector<char*> argv{const_cast<char*>(FARCALL_COMMAND)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

TestTerminal::~TestTerminal() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(master_);
  ::close(slave_);
}

void TestTerminal::type(const std::string& keys) const {
  EXPECT_EQ(::write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

void TestTerminal::resize(unsigned short width, unsigned short height) const {
  winsize size{};
  size.ws_col = width;
  size.ws_row = height;
  EXPECT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
}

void TestTerminal::kill(int signal) const { EXPECT_EQ(::kill(pid_, signal), 0); }

bool TestTerminal::has_modes_of_old() const { return modes_of(slave_) == modes_; }

void TestTerminal::obey(char command) {
  if (command == 'H') row_ = column_ = 0;
  if (command == 'K' && row_ < lines_.size())
    lines_[row_].resize(std::min(lines_[row_].size(), column_));
  if (command == 'J')
    for (std::string& line : lines_) line.clear();
  if (command == 'z') at_end_ = true;
  const bool on = command == 'h';
  if (sequence_ == "\x1b[?1049") alternate_ = on;
  if (sequence_ == "\x1b[?25") cursor_ = on;
}

void TestTerminal::take(char byte) {
  if (!sequence_.empty()) {
    if (sequence_.size() > 1 && byte >= '@' && byte <= '~') {
      obey(byte);
      sequence_.clear();
    } else {
      sequence_ += byte;
    }
  } else if (byte == '\x1b') {
    sequence_ = byte;
  } else if (byte == '\r') {
    column_ = 0;
  } else if (byte == '\n') {
    ++row_;
  } else if (row_ < lines_.size()) {
    std::string& line = lines_[row_];
    if (line.size() <= column_) line.resize(column_ + 1, ' ');
    line[column_++] = byte;
  }
}

bool TestTerminal::read(int timeout_ms) {
  pollfd entry{.fd = master_, .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, timeout_ms) <= 0) return false;
  char bytes[65536];
  const ssize_t got = ::read(master_, bytes, sizeof bytes);
  for (ssize_t i = 0; i < got; ++i) take(bytes[i]);
  return got > 0;
}

bool TestTerminal::shows(const std::function<bool()>& test) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < until) {
    // A screen that is drawn in part is not one to judge.
    while (read(30)) {
    }
    if (test()) return true;
    siginfo_t ended{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != 0)
      break;
  }
  std::string screen;
  for (const std::string& line : lines_) screen += line + "\n";
  ADD_FAILURE() << "the screen shows:\n" << screen;
  return false;
}

bool TestTerminal::shows(const std::string& text) {
  return shows([&] { return !line_with(text).empty(); });
}

std::string TestTerminal::line_with(const std::string& text) const {
  for (const std::string& line : lines_)
    if (line.find(text) != std::string::npos) return line;
  return {};
}

// The kernel hands on what is written when it finds the time: a sequence of our own comes after it.
void TestTerminal::read_to_the_end() {
  constexpr std::string_view kEnd = "\x1b[99z";
  at_end_ = false;
  EXPECT_EQ(::write(slave_, kEnd.data(), kEnd.size()), static_cast<ssize_t>(kEnd.size()));
  for (int i = 0; i < 1000 && !at_end_; ++i) read(10);
  EXPECT_TRUE(at_end_);
}

int TestTerminal::wait() {
  int status = -1;
  for (int i = 0; i < 3000; ++i) {
    while (read(10)) {
    }
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      read_to_the_end();
      return status;
    }
  }
  ADD_FAILURE() << "the command does not end";
  return -1;
}

}  // namespace farcall::test
