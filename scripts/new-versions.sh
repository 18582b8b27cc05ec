#!/usr/bin/env bash
# Tries pip's newest PyTorch on the newest CPython that Debian and PyTorch offer.
#
#   scripts/new-versions.sh [--list | --again]
#
# Reports and skips a pair that scripts/torch-versions.txt already has; --again tries it anyway,
# --list tries nothing. Sets up another pair (scripts/setup-env.sh: up to 2 GB) and compares
# tensors, names and graphs to the byte (scripts/test-versions.sh). Then dump, record and
# record --exact must work with a training job there. Ends with a table and the failures; the exit
# code is 0 if all passes. Add pairs that pass to scripts/torch-versions.txt.
set -uo pipefail
cd "$(dirname "$0")/.."
mode=${1:-}
case "$mode" in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

python=${MEMSPY_PYTHON:-python3}
torch=$("$python" -m pip index versions torch 2>/dev/null | sed -n '1s/^torch (\(.*\))$/\1/p')
[ -n "$torch" ] || { echo "new-versions: pip does not say which PyTorch is the newest: is there a network?" >&2; exit 1; }

# From the Debian unstable tree of scripts/setup-pythons.sh; without it, from this machine.
tree=target/envs/debian-unstable
offered() {
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
  local tag=cp${1/./} folder
  folder=$(mktemp -d)
  "$python" -m pip install --quiet --dry-run --no-deps --only-binary=:all: --implementation cp --python-version "$1" --abi "$tag" \
    --platform manylinux_2_28_x86_64 --target "$folder" "torch==$torch" >/dev/null 2>&1
  local status=$?
  rm -rf "$folder"
  return $status
}
cpython=
for version in $(offered); do
  echo "new-versions: Debian offers CPython $version" >&2
  if has_wheel "$version"; then cpython=$version; else echo "new-versions: PyTorch $torch has no wheel for CPython $version" >&2; fi
done
[ -n "$cpython" ] || { echo "new-versions: PyTorch $torch has a wheel for none of them" >&2; exit 1; }
pair=$torch/$cpython
if awk '!/^#/ { print $1 "/" $2 }' scripts/torch-versions.txt | grep -qxF "$pair"; then
  echo "PyTorch $torch, CPython $cpython: the newest, and in scripts/torch-versions.txt already"
  [ "$mode" = --again ] || exit 0
else
  echo "PyTorch $torch, CPython $cpython: not in scripts/torch-versions.txt"
fi
[ "$mode" != --list ] || exit 0

failed=()
# Runs memspy beside a training job in the environment just tested.
beside_a_job() {
  local job status=0 log
  log=$(mktemp)
  MEMSPY_SIM=torch-${torch%.*}-py$cpython scripts/with-sim python tests/targets/train.py --seconds 60 >"$log" 2>&1 &
  job=$!
  for _ in $(seq 600); do grep -q "^step" "$log" && break; sleep 0.1; done
  scripts/with-sim --share $job target/debug/memspy "$1" -p $job "${@:2}" >"$log.said" 2>&1 || status=$?
  kill $job
  wait $job 2>/dev/null
  [ $status -eq 0 ] || failed+=("memspy $*: $(tail -n 1 "$log.said")")
  rm -f "$log" "$log.said"
}
scripts/setup-env.sh "$torch" "$cpython" >/dev/null || { echo "PyTorch $torch, CPython $cpython could not be set up" >&2; exit 1; }
cargo build --quiet || exit 1
beside_a_job dump
beside_a_job record -d 3 -r 200 -o /dev/null
beside_a_job record -d 3 --follow -o /dev/null
[ "$(id -u)" -ne 0 ] || beside_a_job record -d 3 --exact -o /dev/null
said=$(scripts/test-versions.sh "$pair" | tail -n 1)
case "$said" in *equal*) ;; *) failed+=("$said") ;; esac
if [ ${#failed[@]} -eq 0 ]; then
  echo "PyTorch $torch, CPython $cpython: all as it should be ($said)"
  exit 0
fi
printf 'PyTorch %s, CPython %s: %s\n' "$torch" "$cpython" "${#failed[@]} failed"
printf '  %s\n' "${failed[@]}"
exit 1
