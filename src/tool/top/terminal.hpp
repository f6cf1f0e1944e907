// SPDX-License-Identifier: Apache-2.0
//
// The terminal as a screen: keys one by one, the alternate screen, and everything as it was on any
// way out, signals included. (Who is killed by SIGKILL leaves it to reset(1).) One at a time.
#pragma once

#include <string>
#include <vector>

namespace farcall::tool::top {

enum class Key : int {
  none = -1,     // the time is up
  resized = -2,  // or the program was stopped and goes on: draw again
  up = -3,
  down = -4,
  page_up = -5,
  page_down = -6,
  home = -7,
  end = -8,
  f1 = -9,
  f4 = -10,
  f6 = -11,
  f10 = -12,
  escape = -13,
  hung_up = -14,  // the terminal has gone, or a signal asks to end
};
// Any other key is its character.

class Terminal {
 public:
  // Throws SystemError where standard input or output is no terminal.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] unsigned width() const noexcept { return width_; }
  [[nodiscard]] unsigned height() const noexcept { return height_; }
  // Waits for a key.
  Key read(int timeout_ms);
  // The whole screen; what is beyond it is not drawn. Lines may hold escapes of colours.
  void draw(const std::vector<std::string>& lines);
  // The signal that has asked to end, or 0.
  [[nodiscard]] int ended_by() const noexcept { return ended_by_; }

 private:
  void enter();
  void measure();
  void take_signal();
  void suspend();
  Key decode();

  int signals_ = -1;
  int ended_by_ = 0;
  bool redraw_ = false;
  unsigned width_ = 80;
  unsigned height_ = 24;
  std::string input_;  // that has not been decoded
};

}  // namespace farcall::tool::top
