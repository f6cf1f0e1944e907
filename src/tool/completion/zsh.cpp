// SPDX-License-Identifier: Apache-2.0
//
// One function per command, which tells zsh's _arguments what the command takes.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tool/completion/completion.hpp"

namespace farcall::tool::completion {
namespace {

// In single quotes, with what _arguments would take for its own marked.
std::string quoted(std::string_view text, std::string_view marked) {
  std::string result;
  for (const char c : text) {
    if (c == '\'')
      result += "'\\'";
    else if (marked.find(c) != std::string_view::npos)
      result += '\\';
    result += c;
  }
  return result;
}

constexpr std::string_view kOwn = "[]:\\";

std::string action(const OptionOutline& option) {
  if (option.suggested.empty()) return "";
  if (option.suggested == "file") return "_files";
  if (option.suggested == "program") return "_normal";
  if (option.takes_many)
    return fmt::format("_values -s , {} {}", option.names.back(), option.suggested);
  return fmt::format("({})", option.suggested);
}

std::string function_name(std::string path) {
  std::replace(path.begin(), path.end(), ' ', '_');
  return "_" + path;
}

std::string options(const CommandOutline& command) {
  std::string result;
  for (const OptionOutline& option : command.options)
    for (const std::string& name : option.names) {
      const bool is_long = name.rfind("--", 0) == 0;
      result += fmt::format(" \\\n    '{}{}[{}]", name, option.takes_value && is_long ? "=" : "",
                            quoted(option.help, kOwn));
      if (option.takes_value)
        result += fmt::format(":{}:{}", name.substr(is_long ? 2 : 1), action(option));
      result += "'";
    }
  return result;
}

std::string arguments(const CommandOutline& command) {
  std::string result;
  for (const OptionOutline& argument : command.arguments) {
    // The words from a program on are a command line of their own.
    const char* const many = argument.suggested == "program" ? "*::" : "*:";
    result += fmt::format(" \\\n    '{}{}:{}'", argument.takes_many ? many : ":", argument.names[0],
                          action(argument));
  }
  return result;
}

std::string functions(const CommandOutline& command, const std::string& path) {
  const std::string name = function_name(path);
  if (command.subcommands.empty())
    return fmt::format("{}() {{\n  _arguments -S{}{}\n}}\n\n", name, options(command),
                       arguments(command));
  std::string names, cases, others;
  for (const CommandOutline& subcommand : command.subcommands) {
    names += fmt::format("      '{}:{}'\n", subcommand.name, quoted(subcommand.help, ""));
    cases += fmt::format("        {}) {}_{} ;;\n", subcommand.name, name, subcommand.name);
    others += functions(subcommand, path + " " + subcommand.name);
  }
  return others + fmt::format(
                      "{}() {{\n"
                      "  local curcontext=$curcontext state line\n"
                      "  typeset -A opt_args\n"
                      "  local -a commands=(\n{}  )\n"
                      "  _arguments -C{} \\\n    '1: :->command' \\\n    '*:: :->arguments'\n"
                      "  case $state in\n"
                      "    command) _describe command commands ;;\n"
                      "    arguments)\n"
                      "      case $line[1] in\n{}      esac\n      ;;\n"
                      "  esac\n}}\n\n",
                      name, names, options(command), cases);
}

}  // namespace

std::string zsh(const CommandOutline& root) {
  return "#compdef farcall\n# Written by `farcall completion zsh`.\n\n" +
         functions(root, root.name) + "_farcall \"$@\"\n";
}

}  // namespace farcall::tool::completion
