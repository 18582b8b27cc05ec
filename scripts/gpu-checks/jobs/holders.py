"""The job of the check holders: trains a GPT-like model that needs at least so many GiB.

    python jobs/holders.py GIB VOCABULARY WIDTH LAYERS LENGTH

Requests: `stand` prints memory_allocated() with a graph, gradients and optimizer state alive; `run
train` and `run allocate` work until the next line, and print their steps a second.
"""
import sys
import threading
import time

import torch
from torch import nn

from gpt import Gpt

gib = float(sys.argv[1])
vocabulary, width, layers, length = map(int, sys.argv[2:])
model = Gpt(vocabulary, width, 16, layers, is_tied=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def forward(batch):
    ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def step(batch):
    loss = forward(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def fitting_batch():
    """The smallest batch whose activations need that much."""
    step(1)
    loss = forward(1)
    one = torch.cuda.memory_allocated()
    del loss
    free = torch.cuda.memory_allocated()
    return max(1, int((gib * 2**30 - free) / (one - free)) + 1)


def run(kind):
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
    steps, start = 0, time.perf_counter()
    while not end.is_set():
        if kind == "train":
            step(1)
        else:
            kept = [torch.empty(1000 + i, device="cuda") for i in range(200)]
        steps += 1
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - start)


batch = fitting_batch()
optimizer.zero_grad(set_to_none=True)
step(batch)
# Some Python objects, as in real jobs.
objects = [[i] for i in range(100_000)]
print("READY", flush=True)
for line in sys.stdin:
    request, *kind = line.split()
    if request == "stand":
        # A graph, gradients and optimizer state at once.
        forward(1).backward()
        loss = forward(batch)
        torch.cuda.synchronize()
        print(torch.cuda.memory_allocated(), flush=True)
    elif request == "run":
        loss = None
        print(run(*kind), flush=True)
