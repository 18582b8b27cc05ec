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

section "Set-up"
scripts/setup-rust.sh
scripts/setup-env.sh >/dev/null
scripts/setup-pythons.sh

section "Formatting"
cargo fmt --check
section "Lints"
cargo clippy --all-targets --quiet -- -D warnings
section "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
section "Tests"
cargo test "$@"
section "The simulated CUDA device"
scripts/with-sim python cuda/sim/ladder.py
section "All passed"
