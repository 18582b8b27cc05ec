#!/usr/bin/env bash
# Prints the notes of a version out of CHANGELOG.md; without a section of its own, those of
# [Unreleased].
#
#   scripts/release/notes.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/../.."
section() {
  awk -v head="## [$1]" 'index($0, "## [") == 1 { inside = index($0, head) == 1; next } inside' CHANGELOG.md
}
notes=$(section "$1")
[ -n "${notes//[[:space:]]/}" ] || notes=$(section Unreleased)
[ -n "${notes//[[:space:]]/}" ] || { echo "notes: CHANGELOG.md has no notes of $1" >&2; exit 1; }
echo "# memspy $1"
echo
sed -e '/./,$!d' <<<"$notes"
