// SPDX-License-Identifier: Apache-2.0
//
// A terminal of the test's own, with the farcall command on it: what it shows, and what is typed.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace farcall::test {

class TestTerminal {
 public:
  // What the terminal belongs to: the command itself, whom nobody would continue, or something like
  // a shell, whose job the command is, and which stops, continues and ends with it.
  enum class Leader { command, shell };
  explicit TestTerminal(const std::vector<std::string>& arguments, unsigned short width = 160,
                        unsigned short height = 30, Leader leader = Leader::command,
                        const char* kind = "xterm");
  ~TestTerminal();
  TestTerminal(const TestTerminal&) = delete;
  TestTerminal& operator=(const TestTerminal&) = delete;

  void type(const std::string& keys) const;
  void resize(unsigned short width, unsigned short height) const;
  void kill(int signal) const;
  // Reads what comes until `test` likes the screen; false after some 30 s, or when the command has
  // ended.
  bool shows(const std::function<bool()>& test);
  bool shows(const std::string& text);
  // How the command ends, as waitpid(2) says; reads on meanwhile.
  int wait();
  // The lines of the screen, without colours.
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  // The first line that holds the text, or "".
  [[nodiscard]] std::string line_with(const std::string& text) const;
  [[nodiscard]] bool on_alternate_screen() const { return alternate_; }
  [[nodiscard]] bool shows_cursor() const { return cursor_; }
  // Whether the terminal's modes are what they were before the command began.
  [[nodiscard]] bool has_modes_of_old() const;
  [[nodiscard]] pid_t pid() const { return pid_; }  // of the leader

 private:
  bool read(int timeout_ms);
  void read_to_the_end();
  void take(char byte);
  void obey(char command);

  int master_ = -1;
  int slave_ = -1;  // kept, so that the terminal outlives the command
  pid_t pid_ = -1;
  std::string modes_;
  std::vector<std::string> lines_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  std::string sequence_;  // that has begun with ESC
  bool at_end_ = false;   // of what the command has written
  bool alternate_ = false;
  bool cursor_ = true;
  unsigned short height_;
};

}  // namespace farcall::test
