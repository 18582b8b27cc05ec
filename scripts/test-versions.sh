#!/usr/bin/env bash
# Compares tensors, names and graphs on pairs of PyTorch and CPython, one after another.
#
#   scripts/test-versions.sh [TORCH/CPYTHON ...]             all of scripts/torch-versions.txt, or
#                                                            these: 2.6.0/3.12
#   scripts/test-versions.sh --newest [--list | --again]     pip's newest PyTorch on the newest
#                                                            CPython that Debian and PyTorch offer
#
# Sets up, tests and removes each pair (unless it existed before), so only one at a time takes
# space: up to 2 GB, downloaded for each. Ends with a table; the exit code is 0 if all pass.
# MEMSPY_DEVICES=cpu skips the simulated device, which halves the time.
#
# --newest reports and skips a pair that scripts/torch-versions.txt already has; --again tries it
# anyway, --list tries nothing. It keeps the pair, and dump, record and record --exact must work
# beside a training job there, too. Add a pair that passes to scripts/torch-versions.txt.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
case "${1:-}" in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

listed() { awk '!/^#/ && NF && $3 != "default" { print $1 "/" $2 }' scripts/torch-versions.txt; }
environment_of() { # of a pair
  local torch=${1%/*}
  echo "torch-${torch%.*}-py${1#*/}"
}

failed=()
table=()
compare() {
  local pair=$1 environment had start=$SECONDS said=equal
  environment=$(environment_of "$pair")
  had=$([ -e "target/envs/$environment" ] && echo yes)
  if ! scripts/setup.sh env "${pair%/*}" "${pair#*/}" >/dev/null; then
    said="could not be set up"
  elif ! MEMSPY_VERSIONS=$pair cargo test --quiet --test live holders_versions::; then
    said=DIFFERENT
  fi
  [ "$said" = equal ] || failed+=("$pair: $said")
  [ -n "$had" ] || rm -rf "target/envs/$environment" "target/envs/debian-unstable/opt/memspy/$environment"
  table+=("$(printf 'PyTorch %-7s CPython %-5s %s (%d s)' "${pair%/*}" "${pair#*/}" "$said" $((SECONDS - start)))")
  echo "${table[-1]}" >&2
}

# From the Debian unstable tree of scripts/setup.sh pythons; without it, from this machine.
offered() {
  local tree=target/envs/debian-unstable
  if [ -d $tree ] && [ "$(id -u)" -eq 0 ]; then
    # If the update fails, the old lists may still do.
    chroot $tree apt-get update -qq >&2 || true
    chroot $tree apt-cache search --names-only '^python3\.[0-9]+$'
  else
    apt-cache search --names-only '^python3\.[0-9]+$'
  fi | sed 's/^python\(3\.[0-9]*\) .*/\1/' | sort -V
}

# Whether PyTorch has a wheel for a CPython.
has_wheel() {
  local folder status
  folder=$(mktemp -d)
  "$python" -m pip install --quiet --dry-run --no-deps --only-binary=:all: --implementation cp --python-version "$2" --abi "cp${2/./}" \
    --platform manylinux_2_28_x86_64 --target "$folder" "torch==$1" >/dev/null 2>&1
  status=$?
  rm -rf "$folder"
  return $status
}

newest_pair() {
  local torch cpython='' version
  torch=$("$python" -m pip index versions torch 2>/dev/null | sed -n '1s/^torch (\(.*\))$/\1/p')
  [ -n "$torch" ] || { echo "test-versions: pip does not say which PyTorch is the newest: is there a network?" >&2; return 1; }
  for version in $(offered); do
    echo "test-versions: Debian offers CPython $version" >&2
    if has_wheel "$torch" "$version"; then cpython=$version; else echo "test-versions: PyTorch $torch has no wheel for CPython $version" >&2; fi
  done
  [ -n "$cpython" ] || { echo "test-versions: PyTorch $torch has a wheel for none of them" >&2; return 1; }
  echo "$torch/$cpython"
}

# Runs memspy beside a training job in the environment of a pair.
beside_a_job() {
  local job status=0 log
  log=$(mktemp)
  MEMSPY_SIM=$1 scripts/with-sim python tests/targets/train.py --seconds 60 >"$log" 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if grep -q "^step" "$log" || ! kill -0 $job 2>/dev/null; then break; fi
    sleep 0.1
  done
  scripts/with-sim --share $job target/debug/memspy "$2" -p $job "${@:3}" >"$log.said" 2>&1 || status=$?
  kill $job 2>/dev/null
  wait $job 2>/dev/null
  [ $status -eq 0 ] || failed+=("memspy ${*:2}: $(tail -n 1 "$log.said")")
  rm -f "$log" "$log.said"
}

newest=
if [ "${1:-}" = --newest ]; then
  newest=yes
  python=${MEMSPY_PYTHON:-python3}
  pair=$(newest_pair) || exit 1
  if listed | grep -qxF "$pair"; then
    echo "$pair: the newest, and in scripts/torch-versions.txt already"
    [ "${2:-}" = --again ] || exit 0
  else
    echo "$pair: not in scripts/torch-versions.txt"
  fi
  [ "${2:-}" != --list ] || exit 0
  pairs=("$pair")
  scripts/setup.sh env "${pair%/*}" "${pair#*/}" >/dev/null || { echo "$pair could not be set up" >&2; exit 1; }
elif [ $# -gt 0 ]; then
  pairs=("$@")
else
  mapfile -t pairs < <(listed)
fi

scripts/setup.sh pythons >&2
cargo test --quiet --test live --no-run || exit 1
for pair in "${pairs[@]}"; do compare "$pair"; done
if [ -n "$newest" ]; then
  cargo build --quiet || exit 1
  environment=$(environment_of "$pair")
  beside_a_job "$environment" dump
  beside_a_job "$environment" record -d 3 -r 200 -o /dev/null
  beside_a_job "$environment" record -d 3 --follow -o /dev/null
  [ "$(id -u)" -ne 0 ] || beside_a_job "$environment" record -d 3 --exact -o /dev/null
fi
printf '%s\n' "${table[@]}"
[ ${#failed[@]} -eq 0 ] || { echo "${#failed[@]} failed:"; printf '  %s\n' "${failed[@]}"; exit 1; }
