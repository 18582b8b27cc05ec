#!/usr/bin/env bash
# Sets up one part of what the tests and the demo need.
#
#   scripts/setup.sh PART [ARGUMENT ...]      PART --help says more about it
#
# May run at any time, several at once: skips what is up to date. As root it installs missing Debian
# packages by name. Results go to target/. The parts are the files of scripts/setup/:
#
set -euo pipefail
cd "$(dirname "$0")/.."

heading() { sed -n '/^#/!q; s/^# \{0,1\}//p' "$1"; }
part=${1:-}
case "$part" in
  "" | -h | --help)
    heading <(tail -n +2 scripts/setup.sh)
    for file in scripts/setup/*.sh; do
      printf '  %-14s%s\n' "$(basename "$file" .sh)" "$(head -n 1 "$file" | sed 's/^# //')"
    done
    exit 0
    ;;
  */* | .*) file= ;;
  *) file=scripts/setup/$part.sh ;;
esac
[ -f "$file" ] || { echo "setup: there is no part '$part'; 'scripts/setup.sh --help' lists them" >&2; exit 2; }
shift
case "${1:-}" in -h | --help) heading "$file"; exit 0 ;; esac
# shellcheck disable=SC1090 # a part is chosen by its name
source "$file"
