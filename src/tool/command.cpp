// SPDX-License-Identifier: Apache-2.0
#include "tool/command.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace farcall::tool {

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::separated_by_commas() const {
  option_->delimiter(',');
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
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option Option::checked(Check check) const {
  option_->check(std::move(check));
  return *this;
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Command Command::subcommand(const char* name, const char* help) const {
  return Command(*app_->add_subcommand(name, help));
}

Command Command::hidden_subcommand(const char* name) const {
  return Command(*app_->add_subcommand(name)->group(""));
}

void Command::requires_subcommand() const { app_->require_subcommand(1); }

Option Command::flag(const char* name, bool& value, const char* help) const {
  return Option(*app_->add_flag(name, value, help));
}

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

void Command::runs(std::function<void()> body) const { app_->callback(std::move(body)); }

CommandLine::CommandLine(const char* name, const char* version, const char* description)
    : app_(std::make_unique<CLI::App>(description)) {
  app_->name(name);
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

std::optional<ExitCode> CommandLine::run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    // Prints the help that was asked for, or what is wrong.
    return app_->exit(error) == 0 ? kSuccess : kUsage;
  }
}

}  // namespace farcall::tool
