#!/usr/bin/env bash
# Compares tensors, names and graphs on every pair of PyTorch and CPython in
# scripts/torch-versions.txt, one after another.
#
#   scripts/test-versions.sh [TORCH/CPYTHON ...]      all of them, or these: 2.6.0/3.12
#
# Sets up, tests and removes each pair (unless it existed before), so only one at a time takes
# space: up to 2 GB, downloaded for each. Ends with a table; the exit code is 0 if all pass.
# MEMSPY_DEVICES=cpu skips the simulated device, which halves the time.
set -uo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

pairs=("$@")
if [ ${#pairs[@]} -eq 0 ]; then
  mapfile -t pairs < <(awk '!/^#/ && NF && $3 != "default" { print $1 "/" $2 }' scripts/torch-versions.txt)
fi
scripts/setup-pythons.sh >&2
cargo test --quiet --test live --no-run || exit 1
failed=0
table=()
for pair in "${pairs[@]}"; do
  torch=${pair%/*} cpython=${pair#*/}
  environment=target/envs/torch-${torch%.*}-py$cpython
  had=$([ -e "$environment" ] && echo yes)
  start=$SECONDS
  said=equal
  if ! scripts/setup-env.sh "$torch" "$cpython" >/dev/null; then
    said="could not be set up"
  elif ! MEMSPY_VERSIONS=$pair cargo test --quiet --test live holders_versions::; then
    said=DIFFERENT
  fi
  [ "$said" = equal ] || failed=1
  [ -n "$had" ] || rm -rf "$environment" "target/envs/debian-unstable/opt/memspy/${environment##*/}"
  table+=("$(printf 'PyTorch %-7s CPython %-5s %s (%d s)' "$torch" "$cpython" "$said" $((SECONDS - start)))")
  echo "${table[-1]}" >&2
done
printf '%s\n' "${table[@]}"
exit $failed
