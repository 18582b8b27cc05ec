#!/usr/bin/env bash
# Everything a change must pass: set-up, formatting, lints, documentation, tests, the simulated device's ladder.
#
#   scripts/test.sh [CARGO TEST ARGUMENT ...]      arguments go to cargo test, e.g. a test's name
#   scripts/test.sh --all-versions                 every pair of scripts/torch-versions.txt as well (an hour)
#
# What the tests run is set up by scripts/setup-tests.sh; what this machine cannot provide is said and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

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
# Beside the compiler; what it says comes when it is done.
set_up=target/setup-tests.log
mkdir -p target
scripts/setup-tests.sh >$set_up 2>&1 </dev/null &
setting_up=$!
trap 'kill $setting_up 2>/dev/null || true' EXIT
section "Lints"
cargo clippy --all-targets --quiet -- -D warnings
section "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
section "Building the tests"
cargo test --no-run --quiet
section "Set-up for the tests"
trap - EXIT
wait $setting_up || { cat $set_up; exit 1; }
cat $set_up
section "Tests"
cargo test "$@"
section "The simulated CUDA device"
scripts/with-sim python cuda/sim/ladder.py
if [ -n "$all_versions" ]; then
  section "All versions"
  scripts/test-versions.sh
fi
section "All passed"
