// SPDX-License-Identifier: Apache-2.0
#include "tool/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
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

// The options whose values are lists with commas.
std::set<const CLI::Option*>& lists() {
  static std::set<const CLI::Option*> all;
  return all;
}

// What undoes encoded() in the values of a command, before its body has them.
std::map<const CLI::App*, std::vector<std::function<void()>>>& decoders() {
  static std::map<const CLI::App*, std::vector<std::function<void()>>> all;
  return all;
}

// CLI11 takes some words apart that it takes for lists: "[a,b]" is two words to it, "[]" none, and
// other versions know more such forms. It gets those with a character in front.
constexpr char kAsItIs = '\x01';

std::vector<std::string> encoded(std::vector<std::string> all) {
  constexpr std::string_view kTakenApart = "[{(%\"'`\x01";
  bool options = true;
  for (std::string& word : all) {
    if (options && word.starts_with('-')) {
      options = word != "--";
      // A value in the same word is taken as it is: where it begins like that, it gets one more.
      const std::size_t value = word.starts_with("--") ? word.find('=') + 1 : 2;
      if (value != 0 && value < word.size() && word[value] == kAsItIs)
        word.insert(value, 1, kAsItIs);
    } else if (!word.empty() && kTakenApart.find(word[0]) != std::string_view::npos) {
      word.insert(0, 1, kAsItIs);
    }
  }
  return all;
}

void decode(std::string& word) {
  if (word.starts_with(kAsItIs)) word.erase(0, 1);
}
void decode(std::optional<std::string>& word) {
  if (word) decode(*word);
}
void decode(std::vector<std::string>& all) {
  for (std::string& word : all) decode(word);
}
template <class Number>
void decode(Number&) {}

// The type of whole numbers that an option takes.
template <class T>
struct WholeNumber {
  using Type = T;
};
template <class T>
struct WholeNumber<std::optional<T>> : WholeNumber<T> {};
template <class T>
struct WholeNumber<std::vector<T>> : WholeNumber<T> {};

// CLI11 reads them as C does, for which 010 is 8, and takes the largest for one that is too large.
template <class Number>
std::string read_as_decimal(std::string& text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  using Limits = std::numeric_limits<Number>;
  if (error != std::errc{} || at != end)
    return "'" + text + "' is no whole number from " + std::to_string(Limits::min()) + " to " +
           std::to_string(Limits::max());
  text = std::to_string(number);
  return "";
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

// A word that is no command, where there has to be one. CLI11 would take it for a value too many,
// or overlook it beside --help.
bool knows_command(const CLI::App& app, std::span<const std::string> all) {
  if (all.empty() || all[0].empty() || all[0].starts_with('-')) return true;
  const auto is_named = [&](const CLI::App* each) { return each->get_name() == all[0]; };
  const auto named = app.get_subcommands(is_named);
  if (!named.empty())
    return named[0]->get_require_subcommand_min() == 0 || knows_command(*named[0], all.subspan(1));
  std::string known;
  for (const CommandOutline& each : outline_of(app).subcommands)
    known += (known.empty() ? "" : ", ") + each.name;
  const std::string group = app.get_parent() != nullptr ? app.get_name() + " " : "";
  say("farcall: there is no command '{}{}'; there are: {}\n", group, all[0], known);
  return false;
}

struct UsedOption {
  const CLI::App* command;
  const CLI::Option* option;  // null: it has none of that name
  std::string name;
  std::string value;
};

// Those before `--`.
std::vector<UsedOption> used_options(const CLI::App& root, const std::vector<std::string>& all) {
  std::vector<UsedOption> used;
  const CLI::App* command = &root;
  for (std::size_t at = 0; at < all.size() && all[at] != "--"; ++at) {
    const std::string& word = all[at];
    if (!word.starts_with('-') || word == "-") {
      const auto is_named = [&](const CLI::App* each) { return each->get_name() == word; };
      if (const auto named = command->get_subcommands(is_named); !named.empty()) command = named[0];
      continue;
    }
    const bool is_long = word.starts_with("--");
    const std::size_t end = std::min(is_long ? word.find('=') : 2, word.size());
    UsedOption found{command, nullptr, word.substr(0, end), {}};
    found.option = command->get_option_no_throw(found.name);
    if (end < word.size())
      found.value = word.substr(is_long ? end + 1 : end);
    else if (found.option != nullptr && found.option->get_items_expected_max() > 0 &&
             at + 1 < all.size())
      found.value = all[++at];
    used.push_back(std::move(found));
  }
  return used;
}

// CLI11 leaves out what is empty between two commas.
bool lists_are_whole(const CLI::App& app, const std::vector<std::string>& all) {
  for (const UsedOption& each : used_options(app, all))
    if (lists().contains(each.option) && ("," + each.value + ",").find(",,") != std::string::npos) {
      say("farcall: {}: '{}' has an empty part\n", each.name, each.value);
      return false;
    }
  return true;
}

// Prints the help that was asked for, or what is wrong: an unknown option first of all, which CLI11
// has found after what is missing.
int exit_of(const CLI::App& app, const std::vector<std::string>& all,
            const CLI::ParseError& error) {
  std::ostringstream help;
  std::ostringstream wrong;
  const int code = app.exit(error, help, wrong);
  (void)std::fputs(help.str().c_str(), stdout);
  if (code == 0) return kSuccess;
  for (const UsedOption& each : used_options(app, all))
    if (each.option == nullptr) {
      const std::string name = each.command->get_name();
      const bool is_root = each.command->get_parent() == nullptr;
      say("farcall: {}there is no option '{}'\nRun with --help for more information.\n",
          is_root ? "" : name + ": ", each.name);
      return kUsage;
    }
  std::string text = wrong.str();
  std::erase(text, kAsItIs);
  say("farcall: {}", text);
  return kUsage;
}

// `error`: 0 where it is no longer known.
int output_lost(int error) {
  say("farcall: cannot write to standard output{}{}\n", error != 0 ? ": " : "",
      error != 0 ? std::strerror(error) : "");
  return kFailure;
}

int with_output_written(int exit_code) {
  const bool failed = std::ferror(stdout) != 0;
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  std::cout.flush();  // has nothing of its own, but a state
  if (error == 0 && !failed && std::cout.good()) return exit_code;
  const int lost = output_lost(error);
  return exit_code == kSuccess ? lost : exit_code;
}

}  // namespace

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::separated_by_commas() const {
  lists().insert(option_);
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

Option Option::between(double least, double most) const {
  option_->check([=](const std::string& text) {
    double number = 0;
    const bool known = CLI::detail::lexical_cast(text, number);
    if (known && number >= least && number <= most) return std::string();
    const std::string end = most < HUGE_VAL ? fmt::format("to {}", most) : "on";
    return fmt::format("'{}' is no number from {} {}", text, least, end);
  });
  return *this;
}

Option Option::not_negative() const { return between(0.0, HUGE_VAL); }

Option Option::checked(Check check) const {
  option_->check([check = std::move(check)](std::string text) {
    decode(text);
    return check(text);
  });
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
  decoders()[app_].emplace_back([&value] { decode(value); });
  CLI::Option* const option = app_->add_option(name, value, help);
  using Number = typename WholeNumber<T>::Type;
  if constexpr (std::is_integral_v<Number>)
    option->transform(CLI::Validator(&read_as_decimal<Number>, ""));
  return Option(*option);
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

void Command::runs(std::function<void()> body) const {
  app_->callback([app = app_, body = std::move(body)] {
    for (const auto& undo : decoders()[app]) undo();
    body();
  });
}

CommandLine::CommandLine(const char* name, const char* version, const char* description)
    : app_(std::make_unique<CLI::App>(description)) {
  app_->name(name);
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

int CommandLine::run(int argc, char** argv, const int& exit_code) {
  std::vector<std::string> all;
  try {
    all = words(argc, argv);
    if (!knows_command(*app_, all) || !lists_are_whole(*app_, all)) return kUsage;
    std::vector<std::string> reversed = encoded(all);
    std::ranges::reverse(reversed);  // CLI11 takes them from the end
    app_->parse(std::move(reversed));
    return with_output_written(exit_code);
  } catch (const CLI::ParseError& error) {
    return with_output_written(exit_of(*app_, all, error));
  } catch (const std::system_error& error) {
    // What prints says of no file which one it is.
    if (std::ferror(stdout) != 0) return output_lost(error.code().value());
    say("farcall: {}\n", error.what());
    return kFailure;
  } catch (const std::exception& error) {
    say("farcall: {}\n", error.what());
    return kFailure;
  }
}

}  // namespace farcall::tool
