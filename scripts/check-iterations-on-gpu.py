"""Checks the iterations of exact recordings on a machine with a real GPU. Needs no Rust.

    python scripts/check-iterations-on-gpu.py MEMSPY [--steps N] [--only short,compiled]

short: iterations of 1 to 2 ms in tests/targets/iterations_truth.py, counted by a local, nested or
global variable and by Adam's counter, and a chain with known intermediate gradients. Compares each
iteration with PyTorch's own peak. Training: a transformer with fused AdamW, whose counter is on the
GPU, counted by its loop's variables. compiled: an owner snapshot of a model run by torch.compile,
with and without CUDA graphs: sums, bytes in graph pools, and how long the job was stopped.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

FOLDER = tempfile.mkdtemp(prefix="memspy-check-")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGETS = os.path.join(ROOT, "tests", "targets")

TRAINING = r'''
import json, sys, torch
from torch import nn
sys.path.insert(0, sys.argv[1])
import handshake
width = 512
layer = nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True)
model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
def train(epochs, steps):
    found = []
    for epoch in range(epochs):
        for step in range(steps):
            torch.cuda.reset_peak_memory_stats()
            loss = model(torch.randn(8, 64 + 16 * (step * 7 % 11), width, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
            found.append([epoch, step, torch.cuda.max_memory_allocated()])
    return found
train(1, 3)
handshake.ready()
for request, *numbers in handshake.requests():
    print(json.dumps(train(*map(int, numbers))), flush=True)
'''


class Job:
    def __init__(self, command):
        self.process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = []
        while not self.said or "READY" not in self.said[-1]:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"{command[0]} ended: {self.process.wait()}")
            self.said.append(line)

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def recorded(memspy, job, words, request):
    """The job's output, and its iterations according to memspy."""
    trace = os.path.join(FOLDER, f"{time.monotonic_ns()}.bin")
    recording = subprocess.Popen([memspy, "record", "--exact", "-p", str(job.process.pid), "-o", trace, *words],
                                 stderr=subprocess.PIPE, text=True)
    for line in recording.stderr:
        if "probes are in place" in line:
            break
    truth = job.ask(request)
    recording.terminate()
    said = recording.communicate()[1]
    done = subprocess.run([memspy, "iterations", "--json", trace], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{request}: {done.stderr} {said}")
    return truth, json.loads(done.stdout)["iterations"]


def compare(name, truth, rows, what="peak_allocated"):
    """The truth maps (epoch, step) to a number."""
    known = {(row["epoch"], row["step"]): row for row in rows if row["steps"] == 1}
    exact = {key: row for key, row in known.items() if row["peak_is_exact"]}
    both = [key for key in truth if key in exact]
    wrong = [(key, exact[key][what], truth[key]) for key in both if exact[key][what] != truth[key]]
    print(f"{name:38} {len(truth):5} iterations, {len(both):5} exact, {len(wrong)} wrong {wrong[:3]}", flush=True)


def short(memspy, steps):
    job = Job([os.path.join(TARGETS, "iterations_truth.py")])
    loop = ("--iter-var", "step", "--epoch-var", "epoch")
    number = ("--iter-var", "counted")
    for name, words, request, width in [
        ("local variable, 4 epochs", loop, f"local 4 {steps}", 3), ("nested loops, 4 epochs", loop, f"nested 4 {steps}", 3),
        ("global variable", number, f"named {steps}", 3), ("Adam's counter", ("--owners=5",), f"optimizer {4 * steps}", 3),
        ("intermediate gradients", number, f"backward {steps}", 0),
    ]:
        truth, rows = recorded(memspy, job, words, request)
        if width:
            compare(name, {(epoch, step): peak for epoch, step, peak in truth}, rows)
        else:
            compare(name + ": peaks", {(None, step): peak for step, peak, _ in truth}, rows)
            compare(name, {(None, step): held for step, _, held in truth}, rows, "intermediate_gradients")
    job.end()
    job = Job(["-c", TRAINING, TARGETS])
    begin = time.monotonic()
    truth, rows = recorded(memspy, job, ("--iter-var", "train:step", "--epoch-var", "epoch"), f"train 5 {steps}")
    rate = 5 * steps / (time.monotonic() - begin)
    compare(f"training, at least {rate:.0f} steps/s", {(epoch, step): peak for epoch, step, peak in truth}, rows)
    job.end()


def compiled(memspy):
    for backend in ("aot_eager", "cudagraphs"):
        job = Job([os.path.join(TARGETS, "compiled.py"), backend])
        truth = json.loads(job.said[-2])
        done = subprocess.run([memspy, "tensors", "-p", str(job.process.pid), "--json"], capture_output=True, text=True)
        look = json.loads(done.stdout)
        sums = look["devices"]["cuda:0"]
        print(f"{backend}: kept by the graph {look['saved_for_backward']['all']} = {truth['graph']['bytes']}, in pools "
              f"{sums['in_graph_pools']} = {truth['in_pools']}, elsewhere {sums['elsewhere']}; {done.stderr.strip()}", flush=True)
        job.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="short,compiled")
    arguments = parser.parse_args()
    memspy = os.path.abspath(arguments.memspy)
    if "short" in arguments.only:
        short(memspy, arguments.steps)
    if "compiled" in arguments.only:
        compiled(memspy)


if __name__ == "__main__":
    main()
