// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `farcall`, one file each. A command adds itself to the command line and stores
// its exit code; exceptions that it lets through are reported by main as failures. What parses the
// command line is known to command.cpp alone: compiling it takes ten seconds.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tool/exit_code.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace farcall::tool {

// What a command line may hold, for those who write about it: completions of shells.
struct OptionOutline {
  std::vector<std::string> names;  // with their dashes; an argument has one, without
  std::string help;
  bool takes_value;
  bool takes_many;        // values, separated by commas or, of an argument, as words
  std::string suggested;  // see Option::suggests
};
struct CommandOutline {
  std::string name;
  std::string help;
  std::vector<OptionOutline> options;
  std::vector<OptionOutline> arguments;
  std::vector<CommandOutline> subcommands;
};

// One option or argument. Copies are the same one; it lives as long as the command line.
class Option {
 public:
  // Says what is wrong with a value, or nothing.
  using Check = std::function<std::string(const std::string& value)>;

  explicit Option(CLI::Option& option) : option_(&option) {}

  Option required() const;
  Option separated_by_commas() const;
  Option shows_default() const;  // in the help: what its variable holds now
  Option between(int least, int most) const;
  Option between(double least, double most) const;
  Option not_negative() const;
  Option checked(Check check) const;
  Option not_empty() const;
  Option excludes(Option other) const;
  Option needs(Option other) const;
  // What a shell completes its value with: "file", "program", or words with spaces between them.
  Option suggests(const char* what) const;

 private:
  CLI::Option* option_;
};

// One subcommand, or `farcall` itself. Copies are the same one; it lives as long as the command
// line.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  Command subcommand(const char* name, const char* help) const;
  Command hidden_subcommand(const char* name) const;
  void requires_subcommand() const;
  // After its options comes a program with arguments of its own; "--" may stand before it.
  void ends_with_program() const;
  [[nodiscard]] CommandOutline outline() const;  // without what is hidden

  Option flag(const char* name, bool& value, const char* help) const;
  // `value` must outlive the command line. Defined, in command.cpp, for the types that are used.
  template <class T>
  Option option(const char* name, T& value, const char* help) const;
  // What is to be done once all of the command line is right.
  void runs(std::function<void()> body) const;

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  CommandLine(const char* name, const char* version, const char* description);
  ~CommandLine();

  [[nodiscard]] Command root() const { return Command(*app_); }
  // Runs what was asked for, which sets `exit_code`, or prints the help. Returns what main() is to
  // return, after telling what is wrong: of the command line, with the command, or with what
  // standard output goes to.
  int run(int argc, char** argv, const int& exit_code);

 private:
  std::unique_ptr<CLI::App> app_;
};

void add_compare(Command root, int& exit_code);
// What compare executes in a process with the preload library; not for users.
void add_compare_slot(Command root, int& exit_code);
void add_capture(Command root, int& exit_code);
void add_clean(Command root, int& exit_code);
void add_door(Command root, int& exit_code);
void add_channel(Command root, int& exit_code);
void add_bridge(Command root, int& exit_code);
void add_run(Command root, int& exit_code);
void add_doctor(Command root, int& exit_code);
void add_stat(Command root, int& exit_code);
void add_top(Command root, int& exit_code);
void add_completion(Command root, int& exit_code);  // last: it tells of all the others

}  // namespace farcall::tool
