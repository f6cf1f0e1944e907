// SPDX-License-Identifier: Apache-2.0
//
// The script walks over the words before the cursor to learn which command they have come to, how
// many arguments it has had, and whether an option waits for its value. What it has to know of
// commands stands in its cases, which are written here.
#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "tool/completion/completion.hpp"

namespace farcall::tool::completion {
namespace {

constexpr const char* kHead = R"sh(# Written by `farcall completion bash`.

_farcall() {
  local current=${COMP_WORDS[COMP_CWORD]} command=farcall word what='' arguments=0 options=yes i
  # At a sign that breaks words: `--option=` is two of them, and the value comes as a third.
  if [[ $current == '=' ]]; then current=''; fi
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    what=''
    if [[ $options && $word == -- ]]; then
      options=''
    elif [[ $options && $word == -* ]]; then
      what=$(_farcall_value "$command $word")
      if [[ $what && ${COMP_WORDS[i + 1]} == '=' ]]; then ((++i)); fi
      if [[ $what && $((i + 1)) -lt $COMP_CWORD ]]; then
        ((++i))
        what=''
      fi
    elif [[ ' '$(_farcall_commands "$command")' ' == *" $word "* ]]; then
      command+=" $word"
    else
      ((++arguments))
    fi
  done
  if [[ $what ]]; then
    _farcall_reply "$what"
  elif [[ $options && $current == -* ]]; then
    _farcall_reply "words $(_farcall_options "$command")"
  elif [[ $arguments == 0 && $(_farcall_commands "$command") ]]; then
    _farcall_reply "words $(_farcall_commands "$command")"
  else
    _farcall_reply "$(_farcall_argument "$command" "$arguments")"
  fi
}

_farcall_reply() { # WHAT, for the word `current`
  local before=''
  case $1 in
    file)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      ;;
    program) mapfile -t COMPREPLY < <(compgen -c -- "$current") ;;
    list\ *)
      if [[ $current == *,* ]]; then before=${current%,*},; fi
      mapfile -t COMPREPLY < <(compgen -P "$before" -W "${1#list }" -- "${current##*,}")
      ;;
    words\ *) mapfile -t COMPREPLY < <(compgen -W "${1#words }" -- "$current") ;;
  esac
}

)sh";

// What _farcall_reply is told; "nothing" where nobody knows what may stand there.
std::string what(const OptionOutline& option) {
  if (option.suggested.empty()) return "nothing";
  if (option.suggested == "file" || option.suggested == "program") return option.suggested;
  return (option.takes_many ? "list " : "words ") + option.suggested;
}

struct Cases {
  std::string commands, options, values, arguments;
};

void add(Cases& cases, const CommandOutline& command, const std::string& path) {
  std::string names;
  for (const CommandOutline& subcommand : command.subcommands) {
    names += (names.empty() ? "" : " ") + subcommand.name;
    add(cases, subcommand, path + " " + subcommand.name);
  }
  if (!names.empty()) cases.commands += fmt::format("    '{}') echo '{}' ;;\n", path, names);
  names.clear();
  for (const OptionOutline& option : command.options)
    for (const std::string& name : option.names) {
      names += (names.empty() ? "" : " ") + name;
      if (option.takes_value)
        cases.values += fmt::format("    '{} {}') echo '{}' ;;\n", path, name, what(option));
    }
  cases.options += fmt::format("    '{}') echo '{}' ;;\n", path, names);
  for (std::size_t i = 0; i < command.arguments.size(); ++i) {
    const OptionOutline& argument = command.arguments[i];
    cases.arguments += fmt::format("    '{} {}') echo '{}' ;;\n", path, i, what(argument));
    // After the name of a program come its arguments, often files.
    if (argument.takes_many) cases.arguments += fmt::format("    '{} '*) echo file ;;\n", path);
  }
}

std::string shell_function(const char* name, const char* word, const std::string& cases) {
  return fmt::format("{}() {{\n  case \"{}\" in\n{}  esac\n}}\n\n", name, word, cases);
}

}  // namespace

std::string bash(const CommandOutline& root) {
  Cases cases;
  add(cases, root, root.name);
  return kHead + shell_function("_farcall_commands", "$1", cases.commands) +
         shell_function("_farcall_options", "$1", cases.options) +
         shell_function("_farcall_value", "$1", cases.values) +
         shell_function("_farcall_argument", "$1 $2", cases.arguments) +
         "complete -F _farcall farcall\n";
}

}  // namespace farcall::tool::completion
