"""A training loop whose peak lies in a phase of its own choice: python peak_phase.py KIND.

Waits for a line, trains, and prints {"phase": the phase with the highest level, "peak": bytes, "temporary": what the optimizer's
step had beside what was there before it}. Ends with its input.
"""
import json
import os
import sys

import torch
from torch import nn


def layers(count, width=1024):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(count))).cuda()


class Phases:
    """The highest level of each phase, by the allocator."""

    def __init__(self):
        self.highest, self.temporary = {}, 0

    def during(self, name, work):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = work()
        highest = torch.cuda.max_memory_allocated()
        self.highest[name] = max(highest, self.highest.get(name, 0))
        if name == "optimizer":
            self.temporary = highest - before
        return result


def main():
    kind = sys.argv[1]
    rows = 4096 if kind in ("backward", "forward") else 8
    print(json.dumps({"pid": os.getpid()}), flush=True)
    print("READY", flush=True)
    sys.stdin.readline()
    model = layers(6)
    if kind in ("foreach", "single"):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=kind == "foreach")
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = Phases()
    for _ in range(4):
        if kind == "forward":
            with torch.no_grad():
                phases.during("forward", lambda: model(torch.ones(rows, 1024, device="cuda")))
            continue
        loss = phases.during("forward", lambda: model(torch.ones(rows, 1024, device="cuda")).mean())
        phases.during("backward", loss.backward)
        del loss
        phases.during("optimizer", optimizer.step)
        optimizer.zero_grad()
    phase = max(phases.highest, key=phases.highest.get)
    print(json.dumps({"phase": phase, "peak": phases.highest[phase], "temporary": phases.temporary}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
