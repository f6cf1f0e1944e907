#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What shells are told of the command is what its help says, for each subcommand.
# Usage: completion.sh COMMAND bash|zsh
set -euo pipefail
farcall=$1 shell=$2
script=$("$farcall" completion "$shell")

fail() {
  echo "$*" >&2
  exit 1
}

# From the help alone: what stands at the beginning of its lines.
options() { "$farcall" "$@" --help | grep -oE '^ +(-[a-z],)?--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort; }
subcommands() { "$farcall" "$@" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]\+\) .*/\1/p' | sort; }

# What bash offers for the last of some words.
offered() { # WORD...
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _farcall
  printf '%s\n' "${COMPREPLY[@]}" | sort
}

look_in_bash() { # SUBCOMMAND...
  local known
  known=$(offered farcall "$@" -- | sort)
  [[ $known == "$(options "$@")" ]] || fail "options of farcall $*: $known, not $(options "$@")"
  known=$(subcommands "$@")
  [[ ! $known || $(offered farcall "$@" '') == "$known" ]] ||
    fail "commands of farcall $*: $(offered farcall "$@" ''), not $known"
}

look_in_zsh() { # SUBCOMMAND...
  local name known
  name=_farcall$(printf '%s' "${@/#/_}")
  known=$(sed -n "/^$name() {/,/^}/p" <<<"$script" | grep -oE "^ +'--[a-z-]+" | grep -oE -- '--[a-z-]+' | sort)
  [[ $known == "$(options "$@")" ]] || fail "options of farcall $*: $known, not $(options "$@")"
  known=$(sed -n "/^$name() {/,/^}/s/^      '\([a-z]*\):.*/\1/p" <<<"$script" | sort)
  [[ $known == "$(subcommands "$@")" ]] || fail "commands of farcall $*: $known, not $(subcommands "$@")"
}

looked=0
look() { # SUBCOMMAND...
  local each
  "look_in_$shell" "$@"
  looked=$((looked + 1))
  for each in $(subcommands "$@"); do look "$@" "$each"; done
}

expect() { # EXPECTED WORD...
  local expected=$1 found
  shift
  found=$(offered "$@" | paste -sd ' ')
  [[ $found == "$expected" ]] || fail "offered for '$*': '$found', not '$expected'"
}

case $shell in
  bash)
    eval "$script"
    look
    # Values, also of lists; what comes after them; programs and their arguments.
    expect 'no yes' farcall run --tcp ''
    expect 'no' farcall run --tcp = n
    expect 'two-cpus,one-cpu' farcall compare --placement two-cpus,o
    expect '--dry-run' farcall clean --d
    expect '--stats --stats-json' farcall run --tcp no --st
    expect '--stats --stats-json' farcall run --tcp = no --st
    expect '' farcall run --ring-size ''
    expect 'compare completion' farcall comp
    expect '' farcall run -- /no/such/program --tc
    [[ $(offered farcall run -- tru) == *true* ]] || fail "no program is offered"
    [[ $(offered farcall door serve "$0" -- tru) == *true* ]] || fail "no program is offered to a door"
    expect "$0" farcall door call "$0"
    ;;
  zsh)
    look
    if command -v zsh >/dev/null; then zsh -n <<<"$script"; fi
    ;;
esac
((looked >= 8)) || fail "looked at $looked commands only"
echo "$looked commands: good"
