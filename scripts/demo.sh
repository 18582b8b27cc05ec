#!/usr/bin/env bash
# Sets everything up on a fresh Debian or Ubuntu machine, then records a PyTorch training run.
#
#   scripts/demo.sh [SECONDS]      how long to record, default 10
#
# The job is tests/targets/train.py, unmodified and unaware of memspy. It runs on the GPU if there
# is one, else on the simulated CUDA device (cuda/sim/README.md). Results go to target/demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

seconds=${1:-10}
results=target/demo
memspy=target/release/memspy
say() { printf '\n== %s\n' "$*"; }

say "Building memspy"
scripts/setup.sh rust
cargo build --release

on_gpu=no
python=python3
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  on_gpu=yes
elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  on_gpu=yes
  python=target/envs/torch-gpu/bin/python
  say "Found a GPU but no PyTorch for it: installing one (about 3 GB)"
  [ -x target/envs/torch-gpu/bin/pip ] || python3 -m venv target/envs/torch-gpu ||
    { scripts/setup.sh packages python3-venv && python3 -m venv target/envs/torch-gpu; }
  $python -m pip install --quiet torch numpy
fi

job=("$python")
words=()
attach=()
if [ $on_gpu = no ]; then
  say "No GPU here: setting up the simulated CUDA device"
  scripts/setup.sh env >/dev/null
  job=(scripts/with-sim python)
  # A simulated kernel takes no time. Batches that keep the processor busy for a while make steps
  # as frequent as a GPU's.
  words=(--batch 128)
fi

say "Starting the training run"
mkdir -p $results
log=$results/train.log
"${job[@]}" tests/targets/train.py "${words[@]}" --seconds $((seconds + 20)) >$log 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true' EXIT
until grep -q '^step' $log; do
  kill -0 $pid 2>/dev/null || { cat $log; echo "demo: the training run ended early" >&2; exit 1; }
  sleep 0.2
done
head -n 2 $log
[ $on_gpu = yes ] || attach=(scripts/with-sim --share "$pid")
# If the kernel lets only ancestors read a process, reading another one's memory takes root.
if [ "$(id -u)" -ne 0 ] && [ "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0)" != 0 ]; then
  attach=(sudo "${attach[@]}")
fi

say "What process $pid is doing now"
"${attach[@]}" $memspy dump -p $pid

say "Recording process $pid for $seconds seconds"
"${attach[@]}" $memspy record -p $pid -o $results/trace.bin -d "$seconds" --force

say "Where the memory came from, line by line"
$memspy lines $results/trace.bin
$memspy flame $results/trace.bin -o $results/flame.svg --force

if [ $on_gpu = no ]; then
  say "Would the training run fit an L4?"
  $memspy dry-run --card l4 --until-step 3 -- target/envs/torch-2.11/bin/python tests/targets/train.py --steps 5
fi

say "Done"
echo "trace:       $results/trace.bin"
echo "flame graph: $results/flame.svg   (open it in a browser)"
echo "job's log:   $log"
