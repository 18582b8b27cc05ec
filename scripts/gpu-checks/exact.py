"""Exact recordings: counts and bytes against PyTorch's own, and their cost.

equal: a training job (transformer, conv net, DataLoader workers) records itself with memspy and
compares events, frees, bytes, the peak and segments with PyTorch's own counters.
server: four threads allocate and free without pause. Three recordings of 10 s start and end while
they rest, one starts while they work; compares live bytes, peak and totals with PyTorch's own.
driver: cuda/workloads/driver_api.c, and CuPy if installed, without PyTorch.
native: the same jobs with native frames: the named operators, the unknown part, and the cost.
cost: iterations per second of a 12-layer transformer, in one process, in turns: alone, under
memspy, and under PyTorch's own memory history.
"""
import json
import os
import random
import re
import statistics
import subprocess
import threading
import time

import torch
from torch import nn

import harness
from harness import FOLDER, ROOT, Job, print_machine, run


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="equal,server,driver,native,cost")


class Recording(harness.Recording):
    """An exact recording of this process, or of another one."""

    def __init__(self, memspy, *words, pid=None):
        super().__init__(memspy, pid or os.getpid(), "--exact", *words)
        self.attach_ms = self.number(r"after (\d+) ms")

    def stop(self):
        started = time.perf_counter()
        said = super().stop()
        self.detach_ms = (time.perf_counter() - started) * 1e3
        return said

    def events(self):
        """PyTorch's; the driver's stand behind them."""
        return {what: self.number(rf"([\d,]+) {what}") for what in ("allocations", "frees", "lost")}

    def print_said(self):
        lines = [line.strip() for line in self.said if "exact (" in line or "warning" in line]
        print("          " + "\n          ".join(lines), flush=True)


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


def equalities(args, verdicts, *words):
    for name, make in (("transformer", transformer), ("conv net", conv_net)):
        torch.cuda.empty_cache()
        model, batch = make()
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, batch())
        loader = iter(torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2))
        torch.cuda.synchronize()
        recording = Recording(args.memspy, *words)
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
        recording.stop()
        grown = lambda key: after[key] - before[key]
        events = recording.events()
        verdicts.equal(f"{name}: allocations", events["allocations"], grown("allocation.all.allocated"))
        verdicts.equal(f"{name}: frees", events["frees"], grown("allocation.all.freed"))
        verdicts.equal(f"{name}: bytes at the peak", recording.total(), peak)
        segments = recording.total("--memory", "driver", "--total-allocated") if grown("segment.all.allocated") else 0
        verdicts.equal(f"{name}: bytes of new segments", segments, grown("reserved_bytes.all.allocated"))
        size = os.path.getsize(recording.trace)
        count = events["allocations"] + events["frees"]
        nodes = sum("[backward of]" in stack for stack, _ in recording.collapsed("--total-allocated"))
        print(f"          {count:,} events in 5 s, {events['lost']} lost, {size / count:.2f} bytes an event in the trace, "
              f"attach {recording.attach_ms} ms, end {recording.detach_ms:.0f} ms, {nodes} stacks of backward with their forward line")
        recording.print_said()
        if "--native" in words:
            native_frames(recording)
        del loader


def native_frames(recording):
    stacks = recording.collapsed("--total-allocated")
    all_bytes = sum(size for _, size in stacks)
    share = lambda has: sum(size for stack, size in stacks if has(stack)) / all_bytes
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


def server(args, verdicts):
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
        recording = Recording(args.memspy)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        threads.works.set()
        time.sleep(10)
        threads.rest()
        after = torch.cuda.memory_stats()
        time.sleep(1.5)
        recording.stop()
        name = f"server, {'begun at work' if is_busy else 'recording'} {number + 1}"
        exact = json.loads(run(args.memspy, "lines", "--json", recording.trace).stdout)
        grown = lambda key: after[key] - before[key]
        rate = grown("allocated_bytes.all.allocated") / 10 / 1e9
        print(f"          {name}: {grown('allocation.all.allocated') / 10:,.0f} allocations and {rate:.1f} GB a second")
        if not is_busy:
            verdicts.equal(f"{name}: allocations", recording.events()["allocations"], grown("allocation.all.allocated"))
            verdicts.equal(f"{name}: total bytes allocated", recording.total("--total-allocated"), grown("allocated_bytes.all.allocated"))
            verdicts.equal(f"{name}: peak", exact["peak_allocated"]["bytes"], after["allocated_bytes.all.peak"])
            verdicts.equal(f"{name}: bytes of the stacks at the peak", recording.total(), after["allocated_bytes.all.peak"])
            # Blocks older than the recording are not in its final state.
            verdicts.equal(f"{name}: live bytes", recording.total("--at", "end") + before["allocated_bytes.all.current"],
                           after["allocated_bytes.all.current"])
        off = exact["exact"]
        print(f"          compared {off['comparisons']} times, equal {off['comparisons_equal']}; bytes {off['bytes_compared']} times, off {off['bytes_off']}")
        recording.print_said()


def driver(args, verdicts):
    program = os.path.join(FOLDER, "driver_api")
    source = os.path.join(ROOT, "cuda/workloads/driver_api.c")
    subprocess.run(["cc", "-O1", "-o", program, source, "-ldl", "-lpthread"], check=True)
    job = Job([program])
    recording = Recording(args.memspy, pid=job.pid)
    job.say("go")
    truths = [line.split() for line in job.until("DONE")]
    recording.stop()
    job.end()
    print("skipped by the driver:", [words[1] for words in truths if words[0] == "skipped"])
    for kind in ("driver", "physical", "managed", "pinned"):
        truth = sum(int(words[3]) for words in truths if words[:2] == ["alloc", kind])
        if truth:
            stacks = recording.collapsed("--memory", kind, "--total-allocated")
            verdicts.equal(f"C program: {kind} bytes", sum(size for _, size in stacks), truth)
            print(f"          {stacks[0]}")
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed: not checked")
        return
    recording = Recording(args.memspy)
    held = [cupy.empty(1 << 24, dtype=cupy.uint8) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    recording.stop()
    print("CuPy:", recording.collapsed("--memory", "driver")[:3], len(held))


def cost(args, is_native):
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
        while time.perf_counter() - started < args.seconds:
            step(model, optimizer, batch)
            count += 1
        torch.cuda.synchronize()
        spent = time.perf_counter() - started
        return count / spent, (torch.cuda.memory_stats()["allocation.all.allocated"] - first) / spent

    def exact(*words):
        def during():
            recording = Recording(args.memspy, *words)
            time.sleep(0.3)
            used = processor_seconds(recording.process.pid)
            started = time.perf_counter()
            rate = window()[0]
            used = (processor_seconds(recording.process.pid) - used) / (time.perf_counter() - started)
            peak = re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{recording.process.pid}/status").read())[1]
            said = next(line.strip() for line in recording.stop().splitlines() if "exact (" in line)
            notes[words] = f"{used:.1%} of a processor, {int(peak) // 1024} MiB; {said}"
            return rate
        return during

    def history(stacks):
        def during():
            torch.cuda.memory._record_memory_history(stacks=stacks)
            rate = window()[0]
            torch.cuda.memory._record_memory_history(enabled=None)
            return rate
        return during

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
    for _ in range(args.rounds):
        for name, during in modes.items():
            before, allocations = window()
            rate = during()
            after, _ = window()
            ratios[name].append(rate / ((before + after) / 2))
    print(f"{after:.1f} iterations and {allocations:,.0f} allocations a second without anything")
    for name, all_of in ratios.items():
        print(f"{name:34} x{statistics.median(all_of):.3f}   ({min(all_of):.3f}-{max(all_of):.3f})", flush=True)
    for words, note in notes.items():
        print(f"    {' '.join(words) or '--exact'}: {note}", flush=True)


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(args, verdicts):
    print_machine()
    parts = args.only.split(",")
    if "equal" in parts:
        equalities(args, verdicts, "--backward-lines")
    if "server" in parts:
        server(args, verdicts)
    if "driver" in parts:
        driver(args, verdicts)
    if "cost" in parts:
        cost(args, False)
    if "native" in parts:
        equalities(args, verdicts, "--native", "--native-from", "1")
        cost(args, True)
