"""100,000 events of a job: PyTorch's own snapshot and pickle in the process, against memspy from outside.

    scripts/with-sim python benches/history.py [MEMSPY]      MEMSPY: default target/release/memspy

Times `torch.cuda.memory._snapshot()` and `pickle.dump`, `memspy history` of the same ring, and `memspy export -f memory-viz` of an
exact recording of the same allocations (that needs root). Prints a line for each, medians of 3.
"""
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch

EVENTS = 100_000
DEPTH = 20


def allocate(depth):
    if depth:
        return allocate(depth - 1)
    return torch.empty(4096, dtype=torch.uint8, device="cuda")


def timed(what, work):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(f"{what}: {statistics.median(times) * 1000:,.0f} ms", flush=True)
    return statistics.median(times)


def main():
    memspy = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/release/memspy")
    stacks = os.environ.get("MEMSPY_STACKS", "all")
    folder = tempfile.mkdtemp()
    trace, out = os.path.join(folder, "run.bin"), os.path.join(folder, "out")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks=stacks)
    words = [memspy, "record", "--exact", "-p", str(os.getpid()), "-o", trace]
    recorder = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    print(recorder.stderr.readline().strip())
    start = time.perf_counter()
    for _ in range(EVENTS // 3 + 1):  # an allocation is one event, a free is two
        allocate(DEPTH)
    print(f"the job made {EVENTS:,} events in {time.perf_counter() - start:.1f} s")
    recorder.send_signal(signal.SIGINT)
    recorder.communicate()

    def dump():
        with open(out, "wb") as file:
            pickle.dump(snapshot, file)

    snapshot = torch.cuda.memory._snapshot()
    print(f"{sum(map(len, snapshot['device_traces'])):,} events in the snapshot, stacks={stacks!r}")
    own = timed("torch: _snapshot()", torch.cuda.memory._snapshot) + timed("torch: pickle.dump", dump)

    def run(*words):
        subprocess.run([memspy, *words, "--force", "-o", out], check=True, stderr=subprocess.DEVNULL)

    for what, words in [
        ("memspy history", ["history", "-p", str(os.getpid())]),
        ("memspy export -f memory-viz", ["export", trace, "-f", "memory-viz", "--at", "end"]),
    ]:
        took = timed(what, lambda words=words: run(*words))
        print(f"  {own / took:.1f} times as fast as torch, {os.path.getsize(out) / 1e6:.1f} MB")


main()
