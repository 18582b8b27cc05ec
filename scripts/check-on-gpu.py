#!/usr/bin/env python3
"""Checks memspy against PyTorch's own figures on a real GPU and prints what it measured.

    scripts/check-on-gpu.py [--memspy target/release/memspy] [--out FOLDER] [--seconds 20]
        [--run-with scripts/with-sim]

Needs a python3 with PyTorch. With --run-with scripts/with-sim it runs on the simulated device.
1. At rest: every counter and every block of several allocator states.
2. A training job recorded from outside: the peak to the byte; leaves flamegraph and tables in
   FOLDER.
Exit code 1 if anything differs. For the cost of a recording see benches/overhead.py.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAILED = []


def check(what, good, detail=""):
    print(f"{'ok  ' if good else 'FAIL'} {what}{': ' if detail else ''}{detail}", flush=True)
    if not good:
        FAILED.append(what)


class Target:
    """A program of tests/targets/ that prints its truth and READY."""

    def __init__(self, arguments, script, *words):
        command = [*arguments.run_with, arguments.python, os.path.join(HERE, "tests/targets", script), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def truth(self):
        lines = []
        for line in self.process.stdout:
            if line.strip() == "READY":
                return json.loads(lines[-1])
            lines.append(line)
        raise SystemExit(f"the target ended: {lines}")

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=120)


def memspy(arguments, pid, *words):
    share = [*arguments.run_with, "--share", str(pid)] if arguments.run_with and pid else []
    started = time.perf_counter()
    done = subprocess.run([*share, arguments.memspy, *words], capture_output=True, text=True)
    return done, time.perf_counter() - started


def same_counters(found, truth):
    """Keys of torch.cuda.memory_stats that memspy lacks or reports differently."""
    ignored = {"max_split_size", "active.compressed"}
    return {key: (found.get(key), value) for key, value in truth.items()
            if key not in ignored and found.get(key) != value}


def flat(segments):
    """Segments and blocks as comparable tuples."""
    result = []
    for s in sorted(segments, key=lambda s: s["address"]):
        blocks = [(b["address"], b["size"], b["state"], 0 if b["state"] == "inactive" else b["requested_size"])
                  for b in s["blocks"]]
        result.append((s["address"], s["total_size"], s["stream"], s["segment_type"],
                       tuple(s.get("segment_pool_id", (0, 0))), bool(s.get("is_expandable", False)), tuple(blocks)))
    return result


def standing_still(arguments, mode):
    target = Target(arguments, "allocator_truth.py", mode)
    for turn in ("first", "again"):
        if turn == "again":
            target.process.stdin.write("again\n")
            target.process.stdin.flush()
        truth = target.truth()
        done, seconds = memspy(arguments, target.pid, "dump", "--json", "-p", str(target.pid))
        if done.returncode != 0:
            check(f"{mode} {turn}", False, done.stderr.strip())
            break
        devices = {d["cuda_index"]: d for d in json.loads(done.stdout)["devices"]}
        for of in truth["devices"]:
            found = devices.get(of["device"], {})
            wrong = same_counters(found.get("memory_stats") or {}, of["stats"])
            check(f"{mode} {turn} GPU {of['device']}: {len(of['stats'])} counters equal", not wrong, str(wrong or ""))
            if of.get("snapshot") is None:
                continue
            mine, theirs = flat(found.get("segments") or []), flat(of["snapshot"])
            count = sum(len(s[-1]) for s in theirs)
            check(f"{mode} {turn} GPU {of['device']}: {len(theirs)} segments, {count} blocks equal", mine == theirs,
                  "" if mine == theirs else f"{[m for m in mine if m not in theirs][:2]} / {[t for t in theirs if t not in mine][:2]}")
            driver = of["total"] - of["free"]
            if found.get("used"):
                print(f"     GPU {of['device']}: cudaMemGetInfo used {driver:,}; NVML used {found['used']:,}, reserved by "
                      f"PyTorch {found['reserved']:,}, outside PyTorch {found['outside_pytorch']}")
        print(f"     dump took {seconds * 1000:.0f} ms")
    target.end()


def training(arguments):
    out = arguments.out
    trace = os.path.join(out, "trace.bin")
    job = subprocess.Popen([*arguments.run_with, arguments.python, os.path.join(HERE, "tests/targets/train.py"),
                            "--seconds", str(arguments.seconds + 12), "--device", "cuda", *arguments.job],
                           stdout=subprocess.PIPE, text=True)
    for line in job.stdout:
        if line.startswith("step     1 "):
            break
    pid = str(job.pid)
    done, seconds = memspy(arguments, pid, "record", "-p", pid, "-d", str(arguments.seconds), "-r", str(arguments.rate),
                            "-o", trace, "--force")
    print(done.stderr)
    check("record 20 s", done.returncode == 0)
    done, seconds = memspy(arguments, pid, "dump", "-p", pid)
    print(done.stdout)
    check("dump of the running job", done.returncode == 0, f"{seconds * 1000:.0f} ms")
    done, _ = memspy(arguments, pid, "doctor", "-p", pid)
    print(done.stdout)
    said = job.stdout.read()
    job.wait(timeout=60)
    peak = {key: int(re.search(rf"{key} (\d+)", said).group(1)) for key in ("max_memory_allocated", "max_memory_reserved")}
    for words, name in ((["flame", trace, "-o", os.path.join(out, "flame.svg"), "--force"], "flame"),
                        (["flame", trace, "-f", "collapsed", "-o", os.path.join(out, "flame.txt"), "--force"], "flame text"),
                        (["lines", trace, "-o", os.path.join(out, "lines.txt"), "--force"], "lines"),
                        (["lines", trace, "--json", "-o", os.path.join(out, "lines.json"), "--force"], "lines json")):
        done, seconds = memspy(arguments, None, *words)
        check(name, done.returncode == 0, f"{seconds * 1000:.0f} ms {done.stderr.strip()}")
    with open(os.path.join(out, "lines.json")) as file:
        lines = json.load(file)
    found = {"max_memory_allocated": lines["peak_allocated"]["bytes"],
             "max_memory_reserved": lines["peak_reserved"]["bytes"]}
    for key, value in peak.items():
        check(f"{key} {value:,} equal", found[key] == value, f"memspy {found[key]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memspy", default=os.path.join(HERE, "target/release/memspy"))
    parser.add_argument("--python", default="python3")
    parser.add_argument("--run-with", type=str.split, default=[])
    parser.add_argument("--out", default="target/check-on-gpu")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--modes", default="plain,expandable,graph_pool,streams,init_only")
    parser.add_argument("job", nargs="*", help="more arguments for tests/targets/train.py, after --")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for mode in arguments.modes.split(","):
        standing_still(arguments, mode)
    training(arguments)
    print(f"{len(FAILED)} checks failed" if FAILED else "all checks passed")
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
