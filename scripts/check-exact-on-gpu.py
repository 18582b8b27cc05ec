"""Checks exact recordings on a machine with a real GPU and measures their cost. Needs no Rust.

    python scripts/check-exact-on-gpu.py MEMSPY [--rounds N] [--seconds S]
        [--only equal,server,driver,native,cost]

equal: a training job (transformer, conv net, DataLoader workers) records itself with MEMSPY and
compares events, frees, bytes, the peak and segments with PyTorch's own counters.
server: four threads allocate and free without pause. Three recordings of 10 s start and end while
they rest, one starts while they work; compares live bytes, peak and totals with PyTorch's own.
driver: cuda/workloads/driver_api.c, and CuPy if installed, without PyTorch.
native: the same jobs with native frames: the named operators, the unknown part, and the cost.
cost: iterations per second of a 12-layer transformer, in one process, in turns: alone, under
MEMSPY, and under PyTorch's own memory history.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch
from torch import nn

FOLDER = tempfile.mkdtemp(prefix="memspy-check-")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Recording:
    """A memspy that records a process; its probes are placed after construction."""

    def __init__(self, memspy, words=(), pid=None):
        self.memspy = memspy
        self.trace = os.path.join(FOLDER, f"{time.monotonic_ns()}.bin")
        self.said = []
        command = [memspy, "record", "--exact", "-p", str(pid or os.getpid()), "-o", self.trace, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if "probes are in place" in line:
                return
        raise SystemExit("memspy did not attach: " + " | ".join(self.said))

    def attach_ms(self):
        return int(re.search(r"after (\d+) ms", " ".join(self.said)).group(1))

    def stop(self):
        started = time.perf_counter()
        self.process.send_signal(2)
        self.said += self.process.stderr.read().splitlines()
        self.process.wait()
        self.detach_ms = (time.perf_counter() - started) * 1e3
        return "\n".join(self.said)

    def total(self, *words):
        command = [self.memspy, "flame", self.trace, "-f", "collapsed", "-o", "-", *words]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sum(int(line.rsplit(" ", 1)[1]) for line in out.splitlines()), out

    def events(self):
        said = "\n".join(self.said)
        number = lambda what: int(re.search(rf"([\d,]+) {what}", said).group(1).replace(",", ""))
        return {what: number(what) for what in ("allocations", "frees", "lost")}


def transformer(width=512, layers=12):
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda(), lambda: torch.randn(8, 64, width, device="cuda")


def conv_net():
    blocks = []
    for i in range(6):
        blocks += [nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*blocks).cuda(), lambda: torch.randn(8, 3, 64, 64, device="cuda")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return torch.full((64,), float(index))


def step(model, optimizer, batch):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def check(name, ours, truth):
    print(f"{'equal' if ours == truth else 'DIFFERENT':9} {name}: memspy {ours:,}, PyTorch {truth:,}", flush=True)


def equalities(memspy, words=("--backward-lines",)):
    for name, make in (("transformer", transformer), ("conv net", conv_net)):
        torch.cuda.empty_cache()
        model, batch = make()
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, batch())
        loader = iter(torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2))
        torch.cuda.synchronize()
        recording = Recording(memspy, words)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        end = time.perf_counter() + 5
        while time.perf_counter() < end:
            next(loader)
            step(model, optimizer, batch())
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
        peak = torch.cuda.max_memory_allocated()
        time.sleep(1.5)
        said = recording.stop()
        grown = lambda key: after[key] - before[key]
        events = recording.events()
        check(f"{name}: allocations", events["allocations"], grown("allocation.all.allocated") + grown("segment.all.allocated"))
        check(f"{name}: frees", events["frees"], grown("allocation.all.freed") + grown("segment.all.freed"))
        check(f"{name}: bytes at the peak", recording.total()[0], peak)
        segments = recording.total("--memory", "driver", "--total-allocated")[0] if grown("segment.all.allocated") else 0
        check(f"{name}: bytes of new segments", segments, grown("reserved_bytes.all.allocated"))
        size = os.path.getsize(recording.trace)
        count = events["allocations"] + events["frees"]
        nodes = recording.total("--total-allocated")[1].count("[backward of]")
        print(f"          {count:,} events in 5 s, {events['lost']} lost, {size / count:.2f} bytes an event in the trace, "
              f"attach {recording.attach_ms()} ms, end {recording.detach_ms:.0f} ms, {nodes} stacks of backward with their forward line")
        print("          " + "\n          ".join(l.strip() for l in said.splitlines() if "exact (" in l or "warning" in l))
        if "--native" in words:
            native_frames(recording)
        del loader


def native_frames(recording):
    stacks = [line.rsplit(" ", 1) for line in recording.total("--total-allocated")[1].splitlines()]
    all_bytes = sum(int(size) for _, size in stacks)
    share = lambda has: sum(int(size) for stack, size in stacks if has(stack)) / all_bytes
    operators = re.compile(r"at::_ops::(\w+)::call")
    names = sorted({name for stack, _ in stacks for name in operators.findall(stack)})
    print(f"          bytes with native frames {share(lambda s: 'CachingAllocator' in s):.1%}, with an operator "
          f"{share(operators.search):.1%}, below an autograd function {share(lambda s: '::evaluate_function' in s):.1%}, "
          f"unknown in part {share(lambda s: 'native frames unknown' in s):.1%}")
    print("          reasons:", sorted({part for stack, _ in stacks for part in stack.split(";") if "native frames unknown" in part}))
    print(f"          {len(names)} operators:", " ".join(names), flush=True)


class Server:
    """Threads that answer requests of any size without pause and keep some of the answers."""

    def __init__(self, threads=4):
        self.works, self.resting = threading.Event(), threading.Barrier(threads + 1)
        self.shared, self.lock = [], threading.Lock()
        for number in range(threads):
            threading.Thread(target=self.serve, args=(number,), name=f"worker-{number}", daemon=True).start()

    def serve(self, number):
        dice = random.Random(number)
        weight = torch.randn(1024, 1024, device="cuda")
        while True:
            self.works.wait()
            kept = []
            while self.works.is_set():
                batch = torch.empty(dice.randrange(16, 4096), 1024, device="cuda")
                kept.append((batch @ weight).relu() * 2)
                kept.append(torch.empty(dice.randrange(1, 40 << 20), dtype=torch.uint8, device="cuda"))
                while len(kept) > 8:
                    kept.pop(dice.randrange(len(kept)))
                with self.lock:  # another thread frees it
                    self.shared.append(kept.pop())
                    del self.shared[:-6]
            del batch
            kept.clear()
            self.resting.wait()

    def rest(self):
        self.works.clear()
        self.resting.wait()


def server(memspy):
    threads = Server()
    threads.works.set()
    time.sleep(1)
    threads.rest()
    for number in range(4):
        is_busy = number == 3
        threads.shared.clear()
        if is_busy:
            threads.works.set()
            time.sleep(1)
        recording = Recording(memspy)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        threads.works.set()
        time.sleep(10)
        threads.rest()
        after = torch.cuda.memory_stats()
        time.sleep(1.5)
        said = recording.stop()
        name = f"server, {'begun at work' if is_busy else 'recording'} {number + 1}"
        command = [memspy, "lines", "--json", recording.trace]
        exact = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        grown = lambda key: after[key] - before[key]
        rate = grown("allocated_bytes.all.allocated") / 10 / 1e9
        print(f"          {name}: {grown('allocation.all.allocated') / 10:,.0f} allocations and {rate:.1f} GB a second")
        if not is_busy:
            check(f"{name}: allocations", recording.events()["allocations"],
                  grown("allocation.all.allocated") + grown("segment.all.allocated"))
            check(f"{name}: total bytes allocated", recording.total("--total-allocated")[0], grown("allocated_bytes.all.allocated"))
            check(f"{name}: peak", exact["peak_allocated"]["bytes"], after["allocated_bytes.all.peak"])
            check(f"{name}: bytes of the stacks at the peak", recording.total()[0], after["allocated_bytes.all.peak"])
            # Blocks older than the recording are not in its final state.
            check(f"{name}: live bytes", recording.total("--at", "end")[0] + before["allocated_bytes.all.current"],
                  after["allocated_bytes.all.current"])
        off = exact["exact"]
        print(f"          compared {off['comparisons']} times, equal {off['comparisons_equal']}; bytes {off['bytes_compared']} times, off {off['bytes_off']}")
        print("          " + "\n          ".join(l.strip() for l in said.splitlines() if "exact (" in l or "warning" in l), flush=True)


def driver(memspy):
    program = os.path.join(FOLDER, "driver_api")
    source = os.path.join(ROOT, "cuda/workloads/driver_api.c")
    subprocess.run(["cc", "-O1", "-o", program, source, "-ldl", "-lpthread"], check=True)
    target = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in target.stdout:
        if line.startswith("READY"):
            break
    recording = Recording(memspy, pid=target.pid)
    target.stdin.write("go\n")
    target.stdin.flush()
    told = []
    for line in target.stdout:
        if line.startswith("DONE"):
            break
        told.append(line.split())
    recording.stop()
    target.stdin.close()
    target.wait()
    print("skipped by the driver:", [t[1] for t in told if t[0] == "skipped"])
    for kind in ("driver", "physical", "managed", "pinned"):
        truth = sum(int(t[3]) for t in told if t[:2] == ["alloc", kind])
        if truth:
            total, text = recording.total("--memory", kind, "--total-allocated")
            check(f"C program: {kind} bytes", total, truth)
    print("          " + text.splitlines()[0])
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed: not checked")
        return
    recording = Recording(memspy)
    held = [cupy.empty(1 << 24, dtype=cupy.uint8) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    recording.stop()
    print("CuPy:", recording.total("--memory", "driver")[1].splitlines()[:3], len(held))


def cost(memspy, rounds, seconds, is_native):
    model, make_batch = transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = make_batch()
    for _ in range(20):
        step(model, optimizer, batch)

    def window():
        torch.cuda.synchronize()
        first = torch.cuda.memory_stats()["allocation.all.allocated"]
        started = time.perf_counter()
        count = 0
        while time.perf_counter() - started < seconds:
            step(model, optimizer, batch)
            count += 1
        torch.cuda.synchronize()
        spent = time.perf_counter() - started
        return count / spent, (torch.cuda.memory_stats()["allocation.all.allocated"] - first) / spent

    def exact(*words):
        def run():
            recording = Recording(memspy, words)
            time.sleep(0.3)
            used = processor_seconds(recording.process.pid)
            started = time.perf_counter()
            rate = window()[0]
            used = (processor_seconds(recording.process.pid) - used) / (time.perf_counter() - started)
            peak = re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{recording.process.pid}/status").read())[1]
            said = next(line.strip() for line in recording.stop().splitlines() if "exact (" in line)
            notes[words] = f"{used:.1%} of a processor, {int(peak) // 1024} MiB; {said}"
            return rate
        return run

    def history(stacks):
        def run():
            torch.cuda.memory._record_memory_history(stacks=stacks)
            rate = window()[0]
            torch.cuda.memory._record_memory_history(enabled=None)
            return rate
        return run

    notes = {}
    modes = {
        "nothing": lambda: window()[0],
        "history python": history("python"),
        "history all": history("all"),
        "exact": exact(),
        "exact frees maps": exact("--frees", "snapshots"),
        "exact frees stacks": exact("--frees", "stacks"),
        "exact stacks from 1M": exact("--stacks-from", "1M"),
        "exact stacks every 16M": exact("--stacks-every", "16M"),
        "exact stacks from 1M, frees maps": exact("--stacks-from", "1M", "--frees", "snapshots"),
        "exact backward lines": exact("--backward-lines"),
    }
    if is_native:
        modes = {"nothing": modes["nothing"], "exact": modes["exact"]} | {
            f"exact native from {size}": exact("--native", "--native-from", size) for size in ("1M", "64K", "1")}
    ratios = {name: [] for name in modes}
    for _ in range(rounds):
        for name, run in modes.items():
            before, allocations = window()
            during = run()
            after, _ = window()
            ratios[name].append(during / ((before + after) / 2))
    print(f"{after:.1f} iterations and {allocations:,.0f} allocations a second without anything")
    for name, all_of in ratios.items():
        print(f"{name:34} x{statistics.median(all_of):.3f}   ({min(all_of):.3f}-{max(all_of):.3f})", flush=True)
    for words, note in notes.items():
        print(f"    {' '.join(words) or '--exact'}: {note}", flush=True)


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="equal,server,driver,native,cost")
    args = parser.parse_args()
    parts = args.only.split(",")
    print(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "gpu": torch.cuda.get_device_name(),
                      "kernel": os.uname().release}))
    if "equal" in parts:
        equalities(args.memspy)
    if "server" in parts:
        server(args.memspy)
    if "driver" in parts:
        driver(args.memspy)
    if "cost" in parts:
        cost(args.memspy, args.rounds, args.seconds, False)
    if "native" in parts:
        equalities(args.memspy, ("--native", "--native-from", "1"))
        cost(args.memspy, args.rounds, args.seconds, True)


if __name__ == "__main__":
    main()
