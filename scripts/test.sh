#!/usr/bin/env bash
# Everything a change must pass: set-up, formatting, lints, documentation, tests, the simulated device's ladder.
#
#   scripts/test.sh [CARGO TEST ARGUMENT ...]      arguments go to cargo test, e.g. a test's name
#
# What the tests find: PyTorch on the simulated device through scripts/with-sim, CPythons through
# scripts/with-python. Both are set up here; what this machine cannot provide is said and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

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
if ! command -v tmux >/dev/null; then # the live view is tested in a terminal
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || { echo "test: please install tmux" >&2; exit 1; }
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends tmux >/dev/null
fi
section "Tests"
cargo test "$@"
section "The simulated CUDA device"
scripts/with-sim python cuda/sim/ladder.py
section "All passed"
