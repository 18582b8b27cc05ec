#!/usr/bin/env python3
"""How long a job with many objects stands still for a look at its tensors, and how long the look takes.

    benches/standstill.py --memspy target/release/memspy [--looks 10] [--run-with scripts/with-sim] [--python python3]
                          [--job "--objects 500000" --job "--modules 100000"]

Each job is tests/targets/large_heap.py with these words, once at rest and once while it trains. Prints medians, and the largest.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def start(arguments, job):
    command = [*arguments.run_with, arguments.python, os.path.join(HERE, "tests/targets/large_heap.py"), *shlex.split(job)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    hello = json.loads(process.stdout.readline())
    assert process.stdout.readline().strip() == "READY"
    return process, hello


def look(arguments, pid):
    share = [*arguments.run_with, "--share", str(pid)] if arguments.run_with else []
    command = [*share, os.path.abspath(arguments.memspy), "tensors", "-p", str(pid), "--json", *arguments.word]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    # The largest resident size of any child by now is that of memspy: the job is no child that has been waited for.
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1], "took": took}
    seen = json.loads(done.stdout)
    stops = seen.get("stops") or {"count": 1, "total_seconds": seen["pause_seconds"], "longest_seconds": seen["pause_seconds"]}
    return {"took": took, "incomplete": seen.get("incomplete"), "objects": seen["objects"], **stops}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memspy", default="target/release/memspy")
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--run-with", type=shlex.split, default=[])
    parser.add_argument("--python", default="python3")
    parser.add_argument("--job", action="append")
    parser.add_argument("--word", action="append", default=[], help="another word for memspy")
    arguments = parser.parse_args()
    for job in arguments.job or ["--objects 500000", "--modules 100000"]:
        process, hello = start(arguments, job)
        for state in ["at rest", "training"]:
            if state == "training":
                process.stdin.write("train\n")
                process.stdin.flush()
            looks = [look(arguments, process.pid) for _ in range(arguments.looks)]
            for error in {one["error"] for one in looks if "error" in one}:
                print(f"{job}, {state}: {error}")
            looks = [one for one in looks if "error" not in one]
            if not looks:
                continue
            of = lambda key: [one[key] for one in looks]
            print(f"{job}, {state}: {looks[0]['objects']:,} objects of {hello['objects']:,}; {len(looks)} looks, "
                  f"{sum(one['incomplete'] is not None for one in looks)} incomplete; "
                  f"longest standstill median {1e3 * statistics.median(of('longest_seconds')):.1f} ms, largest {1e3 * max(of('longest_seconds')):.1f} ms; "
                  f"all of a look {1e3 * statistics.median(of('total_seconds')):.1f} ms in {statistics.median(of('count'))} stops; "
                  f"the command {statistics.median(of('took')):.2f} s, largest {max(of('took')):.2f} s", flush=True)
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
