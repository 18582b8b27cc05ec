"""A job with many Python objects, for the time that it stands still when they are read.

    python tests/targets/large_heap.py [--modules N] [--objects N] [--device cuda|cpu]

Prints how many objects the collector tracks, then READY. After a line it trains (allocating and letting go of objects and
tensors) until the next line comes or the pipe is closed; then it prints the bytes allocated on the device.
"""
import argparse
import gc

import handshake
import torch
from torch import nn


class Record:
    """What a data set keeps of a sample."""

    def __init__(self, number):
        self.number = number
        self.path = f"data/{number:09}.png"
        self.labels = [number, number + 1]
        self.box = {"left": number, "right": (number, number)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", type=int, default=0)
    parser.add_argument("--objects", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    words = parser.parse_args()
    gc.disable()
    model = nn.Sequential(*(nn.Linear(1, 1, device=words.device) if n % 2 else nn.ReLU() for n in range(words.modules)))
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(words.device)
    optimizer = torch.optim.AdamW(head.parameters())
    samples = []
    while len(gc.get_objects()) < words.objects:
        samples.extend(Record(n) for n in range(len(samples), len(samples) + 10_000))
        gc.collect()  # Stops tracking what holds nothing that could be part of a cycle.
    gc.enable()
    batch = torch.ones(32, 64, device=words.device)
    handshake.ready({"objects": len(gc.get_objects())})
    for _ in handshake.requests():
        for _ in handshake.until_asked():
            metrics = {"losses": [], "batches": [Record(n) for n in range(100)]}
            for _ in range(4):
                loss = head(batch).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                metrics["losses"].append(loss.detach())
        allocated = torch.cuda.memory_allocated() if words.device == "cuda" else 0
        print(allocated, flush=True)
    del model, samples


if __name__ == "__main__":
    main()
