#!/usr/bin/env bash
# Exact recordings of jobs on this machine's GPU, with PyTorch's own figures beside them.
#
#   record.sh MEMSPY FOLDER
set -euo pipefail
memspy=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$(realpath "$0")")/.."
record() { "$memspy" record --exact -o "$folder/$1.bin" -- python "${@:2}" "$folder/figures.jsonl" "${more[@]}"; }
more=()
for job in lengths cache pictures; do
  PYTORCH_CUDA_ALLOC_CONF= record $job what_if/fragmenting.py $job
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True record $job-expandable what_if/fragmenting.py $job
done
for job in gpt resnet50 unet bert segmentation; do
  more=(dry_run/jobs/$job.py)
  record $job dry_run/measure.py
done
