"""Checks and measures owner snapshots on a machine with a real GPU. Needs no Rust.

    python scripts/check-holders-on-gpu.py MEMSPY [--gib N] [--looks N] [--kills N]

A training job of N GiB or more (GPT-like, AdamW, live activations) runs in its own process; MEMSPY
attaches late. Sums: while the job is paused, categories add up to memory_allocated(); prints the
part with a name or node. Load: snapshots at full speed, none of which may be inconsistent.
Kills: MEMSPY is killed at random moments of a snapshot, and the job continues. Cost: the stop, the
whole command, and the job's iterations per second with snapshots at 1 % of the time.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

JOB = r'''
import sys, threading, torch
from torch import nn
gib = float(sys.argv[1])
width, heads, length = 2048, 16, 1024
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed = nn.Embedding(50304, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(width, 50304, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
model = Model(12).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = 1
def forward(batch):
    ids = torch.randint(0, 50304, (batch, length), device="cuda")
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
def step(batch):
    loss = forward(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
step(1)
loss = forward(1)
one = torch.cuda.memory_allocated()
loss = None
free = torch.cuda.memory_allocated()
batch = max(1, int((gib * 2**30 - free) / (one - free)) + 1)
optimizer.zero_grad(set_to_none=True)
step(batch)
# Some Python objects, as in real jobs.
objects = [[i] for i in range(100_000)]
print("READY", flush=True)
steps = 0
stop = False
def listen():
    global stop
    sys.stdin.readline()
    stop = True
for line in sys.stdin:
    word = line.split()
    if word[0] == "stand":
        # A graph, gradients and optimizer state at once.
        forward(1).backward()
        loss = forward(batch)
        torch.cuda.synchronize()
        print(torch.cuda.memory_allocated(), flush=True)
    elif word[0] == "run":
        loss = None
        end = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
        steps = 0
        import time
        start = time.perf_counter()
        while not end.is_set():
            if word[1] == "train":
                step(1)
            else:
                kept = [torch.empty(1000 + i, device="cuda") for i in range(200)]
            steps += 1
        torch.cuda.synchronize()
        print(steps / (time.perf_counter() - start), flush=True)
'''


class Job:
    def __init__(self, gib):
        self.process = subprocess.Popen([sys.executable, "-c", JOB, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "READY"

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return float(self.process.stdout.readline())


def look(memspy, pid, *words):
    started = time.perf_counter()
    done = subprocess.run([memspy, "tensors", "--json", "-p", str(pid), *words], capture_output=True, text=True)
    took = time.perf_counter() - started
    return (json.loads(done.stdout) if done.returncode == 0 else None), took, done.stderr.strip()


PARTS = ["parameters", "buffers", "gradients", "optimizer_state", "saved_for_backward", "other_tensors", "rounding", "in_no_tensor"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--gib", type=float, default=20)
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    args = parser.parse_args()
    job = Job(args.gib)
    pid = job.process.pid

    job.ask("stand")
    allocated = int(job.answer())
    seen, took, said = look(args.memspy, pid)
    sums = seen["devices"]["cuda:0"]
    total = sum(sums[part] for part in PARTS)
    print(f"{'equal' if total == allocated == sums['allocated'] else 'DIFFERENT'}: parts {total:,}, blocks {sums['allocated']:,}, "
          f"memory_allocated {allocated:,} ({allocated / 2**30:.1f} GiB)")
    for part in PARTS:
        print(f"    {part:20} {sums[part]:>16,} {100 * sums[part] / allocated:7.3f} %")
    explained = allocated - sums["unnamed"] - sums["in_no_tensor"]
    print(f"with a name, a node or a cause: {100 * explained / allocated:.3f} %")
    print(f"pause {seen['pause_seconds'] * 1e3:.1f} ms for {seen['objects']:,} objects; whole command {took * 1e3:.0f} ms", flush=True)
    text = subprocess.run([args.memspy, "tensors", "-p", str(pid), "--limit", "12"], capture_output=True, text=True).stdout
    print(text)
    print(subprocess.run([args.memspy, "graph", "-p", str(pid)], capture_output=True, text=True).stdout[:1500], flush=True)

    for kind in ("train", "allocate"):
        job.ask(f"run {kind}")
        pauses, wrong, refused, attempts = [], 0, 0, []
        for _ in range(args.looks if kind == "train" else args.looks // 2):
            seen, took, said = look(args.memspy, pid)
            if seen is None:
                refused += 1
                print("refused:", said)
                continue
            sums = seen["devices"]["cuda:0"]
            wrong += sum(sums[part] for part in PARTS) != sums["allocated"]
            pauses.append(seen["pause_seconds"] * 1e3)
        job.ask("end")
        rate = job.answer()
        print(f"{kind}: {len(pauses)} looks, {wrong} inconsistent, {refused} refused; pause median {statistics.median(pauses):.1f} ms, "
              f"largest {max(pauses):.1f} ms; the job at {rate:.2f} steps/s", flush=True)

    job.ask("run train")
    killed = 0
    for _ in range(args.kills):
        process = subprocess.Popen([args.memspy, "tensors", "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.005, 0.12))
        if process.poll() is None:
            process.kill()
            killed += 1
        process.wait()
    time.sleep(0.05)
    stopped = []
    for task in os.listdir(f"/proc/{pid}/task"):
        state = open(f"/proc/{pid}/task/{task}/stat").read().rsplit(")", 1)[1].split()[0]
        if state in "Tt":
            stopped.append(task)
    job.ask("end")
    print(f"killed {killed} of {args.kills}: {len(stopped)} threads left standing; the job at {job.answer():.2f} steps/s", flush=True)

    rates = {"alone": [], "looks": []}
    for _ in range(3):
        for kind in rates:
            job.ask("run train")
            end = time.perf_counter() + 4
            while time.perf_counter() < end:
                if kind == "looks":
                    seen, took, said = look(args.memspy, pid)
                    # Stopped for at most 1 % of the time.
                    time.sleep(max(0, 99 * seen["pause_seconds"] - took))
                else:
                    time.sleep(0.1)
            job.ask("end")
            rates[kind].append(job.answer())
    alone, looks = (statistics.median(rates[kind]) for kind in ("alone", "looks"))
    print(f"looks at 1 % of the time: x{looks / alone:.3f} of {alone:.2f} steps/s")


if __name__ == "__main__":
    main()
