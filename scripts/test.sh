#!/usr/bin/env bash
# Everything a change must pass: set-up, formatting, lints, documentation, tests, the simulated device's ladder.
#
#   scripts/test.sh [CARGO TEST ARGUMENT ...]      arguments go to cargo test, e.g. a test's name
#   scripts/test.sh --all-versions                 every pair of scripts/torch-versions.txt as well (an hour)
#
# What the tests find: PyTorch on the simulated device through scripts/with-sim, CPythons through scripts/with-python, further
# pairs of both out of scripts/torch-versions.txt. All are set up here; what this machine cannot provide is said and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

all_versions=
if [ "${1:-}" = --all-versions ]; then
  all_versions=yes
  shift
fi
section() { printf '\n== %s (%ds)\n' "$*" $SECONDS; }
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

section "Formatting"
scripts/setup-rust.sh
cargo fmt --check
section "Lints"
cargo clippy --all-targets --quiet -- -D warnings
section "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
section "Set-up for the tests"
scripts/setup-env.sh >/dev/null
scripts/setup-pythons.sh
scripts/setup-freethreaded.sh
awk '$3 == "always" { print $1, $2 }' scripts/torch-versions.txt | while read -r torch cpython; do
  if scripts/with-python --where "$cpython" >/dev/null 2>&1; then
    scripts/setup-env.sh "$torch" "$cpython" >/dev/null </dev/null
  else
    echo "test: no CPython $cpython here: PyTorch $torch is not set up for it" >&2
  fi
done
missing=()
command -v tmux >/dev/null || missing+=(tmux) # the live view is tested in a terminal
for package in libjemalloc2/libjemalloc.so.2 libtcmalloc-minimal4/libtcmalloc_minimal.so.4; do # PyTorch under another malloc
  [ -e "/usr/lib/$(uname -m)-linux-gnu/${package#*/}" ] || missing+=("${package%/*}")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || { echo "test: please install ${missing[*]}" >&2; exit 1; }
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
section "Tests"
cargo test "$@"
section "The simulated CUDA device"
scripts/with-sim python cuda/sim/ladder.py
if [ -n "$all_versions" ]; then
  section "All versions"
  scripts/test-versions.sh
fi
section "All passed"
