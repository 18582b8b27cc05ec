#!/usr/bin/env python3
"""Runs every job of this folder in its own process and writes what memory each took, as JSON lines.

    run_all.py OUT [--only JOB ...] [--seconds N]      plain CUDA, without memspy; ddp and fsdp need two GPUs

Needs torch, torchvision, transformers and peft; a job whose package is missing says so in its line.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = ["resnet50", "vit", "gpt", "autocast", "checkpointing", "bert", "t5", "speech", "lstm", "unet", "gnn", "lora"]
TWO = ["ddp", "fsdp"]
# Picked and written before the simulated device was tuned, and looked at only afterwards.
HELD_OUT = ["efficientnet", "whisper", "translation", "segmentation"]
# Jobs that are also run with too little memory, and by how much.
SHORT = ["resnet50", "gpt", "bert"]
SHARES = [0.95, 0.8, 0.6]
# The largest batch of this job that fits the limit is searched.
FIT_JOB, FIT_LIMIT, FIT_RANGE = "gpt", 12 << 30, (1, 64)


def run(out, job, seconds, arguments=(), limit=None, ranks=1):
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(HERE / "measure.py")]
    if limit is not None:
        command += ["--limit", str(limit)]
    command += [str(out), str(HERE / "jobs" / f"{job}.py"), *arguments]
    before = len(rows_of(out))
    try:
        ended = subprocess.run(command, timeout=seconds, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        problem = ended.stderr[-500:] if ended.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"took longer than {seconds} s"
    rows = rows_of(out)[before:]
    if not rows:
        with open(out, "a") as file:
            file.write(json.dumps({"job": job, "error": problem or "wrote nothing"}) + "\n")
    print(job, *arguments, limit or "", [row.get("oom") or row.get("error") or row.get("allocated") for row in rows], flush=True)
    return rows


def rows_of(out):
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def search(out, seconds):
    """Bisects the largest batch that fits."""
    low, high = FIT_RANGE
    while low < high:
        middle = (low + high + 1) // 2
        rows = run(out, FIT_JOB, seconds, ["--batch", str(middle)], FIT_LIMIT)
        if rows and "oom" not in rows[0] and "error" not in rows[0]:
            low = middle
        else:
            high = middle - 1
    with open(out, "a") as file:
        file.write(json.dumps({"fit": FIT_JOB, "limit": FIT_LIMIT, "largest": low}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", help="these jobs, and no limits")
    parser.add_argument("--search", action="store_true", help="only the search for the largest batch")
    parser.add_argument("--seconds", type=int, default=60, help="time limit of one job")
    parser.add_argument("--total", type=int, default=330, help="no job is started after so many seconds")
    args = parser.parse_args()
    out = args.out.resolve()
    began = time.time()
    peaks = {}
    if args.search:
        return search(out, args.seconds)
    for job in args.only or JOBS + HELD_OUT + TWO:
        if time.time() - began > args.total:
            break
        rows = run(out, job, args.seconds, ranks=2 if job in TWO else 1)
        if rows and "allocated" in rows[0]:
            peaks[job] = rows[0]["reserved"]
    for job in () if args.only else SHORT:
        for share in SHARES:
            if job in peaks and time.time() - began < args.total:
                run(out, job, args.seconds, limit=int(peaks[job] * share))
    if not args.only and time.time() - began < args.total:
        search(out, args.seconds)
    print(f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
