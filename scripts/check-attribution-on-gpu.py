"""Checks on a machine with a real GPU which stacks a followed recording gives the memory to, and what following costs.

    python scripts/check-attribution-on-gpu.py MEMSPY [--jobs trainer,lora,...] [--steps N] [--after SECONDS] [--seconds SECONDS] [--words "--cpu 25"]

For its speed, each job runs by itself, with MEMSPY following it, and by itself again, in one process. For the truth, it
runs in a process of its own (what an earlier job left behind would be older than the recording) beside MEMSPY and
PyTorch's own memory history with Python stacks. There it stands still in the middle of its last
step, after the forward pass, and both are compared: sum over stacks of the smaller of the two. "proven" are the bytes that
memspy says are on the stack that allocated them; "wrong among proven" has to be about 0. Bytes that the autograd engine's
C++ threads allocated have no Python stack in the history; memspy has to give them to [autograd thread].
Besides the live bytes every allocation is compared, freed or not: the shares of all bytes that each stack allocated (memspy begins a little before
the history does: proven bytes count as wrong from 2 % more on). The history has what was asked for; how large the block was is replayed
(attribution/blocks.py).
With --after, MEMSPY and the history begin that long after the job, as when one attaches to a job that runs: compared is what was
allocated since, and what is older has to be [before recording].
Jobs whose libraries (transformers, peft, lightning, timm, torchvision) are missing are left out, and named.
"""
import argparse
import collections
import json
import os
import shlex
import subprocess
import sys

import torch

from attribution.jobs import JOBS, Watched
from attribution.recording import BEFORE, BesideHistory, Recording, run


def overlap(ours, theirs):
    return sum(min(ours[key], theirs[key]) for key in ours)


def in_shares(stacks, of):
    total = sum(of.values())
    return collections.Counter({key: count / max(total, 1) for key, count in stacks.items()})


def by(stacks, key):
    merged = collections.Counter()
    for stack, count in stacks.items():
        merged[key(stack)] += count
    return merged


LIBRARIES = ("site-packages", "/lib/python", "/torchinductor_")


def own_line(stack):
    """The innermost frame outside of installed libraries, and of what torch.compile wrote."""
    own = [frame for frame in stack if isinstance(frame, tuple) and not any(part in frame[0] for part in LIBRARIES)]
    return own[0] if own else stack[0]


def words(args):
    # Without a mode among them, it follows.
    return shlex.split(args.words)


def check_speed(name, job, args):
    plain = run(job, Watched(args.steps)).seconds_a_step()
    recording = Recording(args.memspy, words(args))
    beside = run(job, Watched(args.steps)).seconds_a_step()
    recording.stop()
    again = run(job, Watched(args.steps)).seconds_a_step()
    rates = [1 / seconds for seconds in (plain, beside, again)]
    print(f"{name}: {rates[0]:.2f} steps a second, {rates[1]:.2f} followed, {rates[2]:.2f} not followed: "
          f"{2 * rates[1] / (rates[0] + rates[2]):.2f} of its speed")
    print(f"    {recording.followed()}", flush=True)


def check_truth(name, job, args):
    beside = BesideHistory(args.memspy, words(args), job, args.steps, args.after, args.seconds)
    recording, theirs, every, peaks = beside.recording, beside.live, beside.every, beside.peaks
    # Samples know nothing for certain, and only what is alive.
    is_followed = not recording.followed().startswith("it was not")
    ours, proven = recording.stacks("--at", "end"), recording.stacks("--at", "end", "--proven") if is_followed else collections.Counter()
    older = [stacks.pop((BEFORE,), 0) for stacks in (theirs, ours)]
    if args.after:
        print(f"{name}, attached after {args.after:g} s: {older[0]:,} bytes are older, memspy {older[1]:,}")
    total = sum(theirs.values())
    sure = sum(proven.values())
    wrong = sum(max(0, count - theirs[key]) for key, count in proven.items())
    share = lambda part, of: f"{100 * part / (of or 1):6.2f} %"
    print(f"{name}: {total:,} live bytes in {len(theirs)} stacks, memspy {sum(ours.values()):,}")
    print(f"    right full stack {share(overlap(ours, theirs), total)}, innermost line "
          f"{share(overlap(by(ours, lambda s: s[0]), by(theirs, lambda s: s[0])), total)}, line of the program "
          f"{share(overlap(by(ours, own_line), by(theirs, own_line)), total)}")
    print(f"    proven {share(sure, total)}, wrong among proven {share(wrong, sure)}")
    in_all, certain = [recording.stacks("--total-allocated", *more) if is_followed else collections.Counter() for more in ([], ["--proven"])]
    ours_of_all, theirs_of_all, certain_of_all = in_shares(in_all, in_all), in_shares(every, every), in_shares(certain, in_all)
    wrong_of_all = sum(max(0, part - 1.02 * theirs_of_all[key]) for key, part in certain_of_all.items())
    print(f"    every allocation: {sum(every.values()):,} bytes, memspy {sum(in_all.values()):,}; right full stack "
          f"{share(overlap(ours_of_all, theirs_of_all), 1)}, line of the program "
          f"{share(overlap(by(ours_of_all, own_line), by(theirs_of_all, own_line)), 1)}, proven {share(sum(certain_of_all.values()), 1)}, "
          f"wrong among proven {share(wrong_of_all, sum(certain_of_all.values()))}")
    at_peak, sure_at_peak = recording.stacks(), recording.stacks("--proven") if is_followed else collections.Counter()
    # memspy shows one of them.
    highest = max(peaks, key=lambda peak: overlap(at_peak, peak))
    before = [stacks[BEFORE,] for stacks in (highest, at_peak)]
    at_peak.pop((BEFORE,), None)
    compared = collections.Counter({key: count for key, count in highest.items() if key != (BEFORE,)})
    total = sum(compared.values())
    sure, wrong = sum(sure_at_peak.values()), sum(max(0, count - 1.02 * compared[key]) for key, count in sure_at_peak.items())
    print(f"    at the peak{f', one of {len(peaks)} equally high' if len(peaks) > 1 else ''}: {total + before[0]:,} bytes, "
          f"memspy {sum(at_peak.values()) + before[1]:,}; right full stack {share(overlap(at_peak, compared), total)}, "
          f"line of the program {share(overlap(by(at_peak, own_line), by(compared, own_line)), total)}, proven {share(sure, total)}, "
          f"wrong among proven {share(wrong, sure)}")
    missing = {key: count - ours[key] for key, count in theirs.items() if count > ours[key]}
    extra = {key: count - theirs[key] for key, count in ours.items() if count > theirs[key]}
    for what, stacks in (("missing on", missing), ("too much on", extra)):
        for key, count in sorted(stacks.items(), key=lambda item: -item[1])[:args.show]:
            inner = " < ".join(f"{os.path.basename(f[0])}:{f[1]}" if isinstance(f, tuple) else f for f in key[:4])
            print(f"      {count:>15,} {what} {inner}")
    print(f"    {recording.followed()}", flush=True)


PARTS = {"speed": check_speed, "truth": check_truth}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--jobs", default=",".join(name for name in JOBS if "," not in name) + ",trainer+LoRA,trainer+checkpointing",
                        help="of: " + "; ".join(JOBS) + " (write + for the comma in a name)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--after", type=float, default=0, help="seconds after the beginning of the job at which memspy attaches")
    parser.add_argument("--seconds", type=float, default=0, help="how long each job runs at least for its truth")
    parser.add_argument("--show", type=int, default=3, help="stacks shown that differ most")
    parser.add_argument("--words", default="", help="more words for 'memspy record' [default: --follow]")
    parser.add_argument("--part", choices=PARTS, help="only this, in this process")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    if args.part:
        return part(args)
    print(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "gpu": torch.cuda.get_device_name(),
                      "kernel": os.uname().release, "processors": os.cpu_count()}), flush=True)
    failed = []
    for name in args.jobs.split(","):
        for which in PARTS:
            command = [sys.executable, *sys.argv, "--jobs", name, "--part", which]
            if subprocess.run(command).returncode:
                failed.append(f"{name} ({which})")
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


def part(args):
    name = args.jobs.replace("+", ", ")
    try:
        PARTS[args.part](name, JOBS[name], args)
    except ImportError as error:
        print(f"{name}: left out, {error}", flush=True)


if __name__ == "__main__":
    main()
