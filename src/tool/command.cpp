// SPDX-License-Identifier: Apache-2.0
#include "tool/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tool/exit_code.hpp"
#include "tool/say.hpp"

namespace farcall::tool {
namespace {

// An option of CLI11 has no place for them. There is one command line.
std::map<const CLI::Option*, std::string>& suggestions() {
  static std::map<const CLI::Option*, std::string> all;
  return all;
}

// The commands that run a program.
std::set<const CLI::App*>& runs_programs() {
  static std::set<const CLI::App*> all;
  return all;
}

OptionOutline outline_of(const CLI::Option& option) {
  OptionOutline outline;
  if (option.nonpositional()) {
    for (const std::string& name : option.get_snames()) outline.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) outline.names.push_back("--" + name);
  } else {
    outline.names.push_back(option.get_name(true));
  }
  outline.help = option.get_description();
  outline.takes_value = option.get_items_expected_max() > 0;
  outline.takes_many = option.get_items_expected_max() > 1;
  const auto found = suggestions().find(&option);
  if (found != suggestions().end()) outline.suggested = found->second;
  return outline;
}

CommandOutline outline_of(const CLI::App& app) {
  CommandOutline outline;
  outline.name = app.get_name();
  outline.help = app.get_description();
  for (const CLI::Option* option : app.get_options())
    (option->nonpositional() ? outline.options : outline.arguments).push_back(outline_of(*option));
  for (const CLI::App* subcommand :
       app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); }))
    outline.subcommands.push_back(outline_of(*subcommand));
  return outline;
}

// Where the program's words begin: at the first that is neither an option nor an option's value.
std::vector<std::string> words(int argc, char** argv) {
  std::vector<std::string> all(argv + 1, argv + argc);
  const auto found = std::ranges::find_if(runs_programs(), [&](const CLI::App* command) {
    return !all.empty() && command->get_name() == all[0];
  });
  if (found == runs_programs().end()) return all;
  for (std::size_t at = 1; at < all.size() && all[at] != "--"; ++at) {
    const std::string& word = all[at];
    if (!word.starts_with('-')) {
      all.emplace(all.begin() + static_cast<std::ptrdiff_t>(at), "--");
      break;
    }
    const CLI::Option* const option = (*found)->get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) ++at;
  }
  return all;
}

// A first word that is no command, which CLI11 would take for a value too many, or overlook beside
// --help.
bool knows_command(const CLI::App& app, const std::vector<std::string>& all) {
  if (all.empty() || all[0].empty() || all[0].starts_with('-')) return true;
  const auto is_named = [&](const CLI::App* each) { return each->get_name() == all[0]; };
  if (!app.get_subcommands(is_named).empty()) return true;
  std::string known;
  for (const CommandOutline& each : outline_of(app).subcommands)
    known += (known.empty() ? "" : ", ") + each.name;
  say("farcall: there is no command '{}'; there are: {}\n", all[0], known);
  return false;
}

int with_output_written(int exit_code) {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  // An earlier error is no longer known.
  say("farcall: cannot write to standard output: {}\n", std::strerror(errno != 0 ? errno : EIO));
  return exit_code == kSuccess ? kFailure : exit_code;
}

}  // namespace

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::separated_by_commas() const {
  // One word each time: what follows is somebody else's.
  option_->delimiter(',')->allow_extra_args(false);
  return *this;
}

Option Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::between(int least, int most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option Option::not_negative() const {
  option_->check([](const std::string& text) {
    double number = 0;
    const bool known = CLI::detail::lexical_cast(text, number);
    return known && number >= 0 ? std::string() : "'" + text + "' is no number from 0 on";
  });
  return *this;
}

Option Option::checked(Check check) const {
  option_->check(std::move(check));
  return *this;
}

Option Option::not_empty() const {
  return checked([](const std::string& text) { return text.empty() ? "must not be empty" : ""; });
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::suggests(const char* what) const {
  suggestions()[option_] = what;
  return *this;
}

Command Command::subcommand(const char* name, const char* help) const {
  return Command(*app_->add_subcommand(name, help));
}

Command Command::hidden_subcommand(const char* name) const {
  return Command(*app_->add_subcommand(name)->group(""));
}

void Command::ends_with_program() const { runs_programs().insert(app_); }

void Command::requires_subcommand() const { app_->require_subcommand(1); }

Option Command::flag(const char* name, bool& value, const char* help) const {
  return Option(*app_->add_flag(name, value, help));
}

CommandOutline Command::outline() const { return outline_of(*app_); }

template <class T>
Option Command::option(const char* name, T& value, const char* help) const {
  return Option(*app_->add_option(name, value, help));
}
template Option Command::option(const char*, double&, const char*) const;
template Option Command::option(const char*, int&, const char*) const;
template Option Command::option(const char*, unsigned&, const char*) const;
template Option Command::option(const char*, long long&, const char*) const;
template Option Command::option(const char*, std::uint64_t&, const char*) const;
template Option Command::option(const char*, std::string&, const char*) const;
template Option Command::option(const char*, std::optional<int>&, const char*) const;
template Option Command::option(const char*, std::optional<std::string>&, const char*) const;
template Option Command::option(const char*, std::vector<std::string>&, const char*) const;
template Option Command::option(const char*, std::vector<int>&, const char*) const;

void Command::runs(std::function<void()> body) const { app_->callback(std::move(body)); }

CommandLine::CommandLine(const char* name, const char* version, const char* description)
    : app_(std::make_unique<CLI::App>(description)) {
  app_->name(name);
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

int CommandLine::run(int argc, char** argv, const int& exit_code) {
  try {
    std::vector<std::string> all = words(argc, argv);
    if (!knows_command(*app_, all)) return kUsage;
    std::ranges::reverse(all);  // CLI11 takes them from the end
    app_->parse(std::move(all));
    return with_output_written(exit_code);
  } catch (const CLI::ParseError& error) {
    // Prints the help that was asked for, or what is wrong.
    return with_output_written(app_->exit(error) == 0 ? kSuccess : kUsage);
  } catch (const std::exception& error) {
    say("farcall: {}\n", error.what());
    return kFailure;
  }
}

}  // namespace farcall::tool
