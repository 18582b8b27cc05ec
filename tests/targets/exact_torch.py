"""Trains on request, and says what the allocator itself counted and holds: the truth for exact recordings.

    python tests/targets/exact_torch.py [--device cuda|cpu] [--width N]

After READY the test writes requests; each is answered with one line of JSON:
    train [STEPS]   trains so many steps (default 5) from a fresh peak, and tells the counters before and after,
                    the peak, and the blocks that are live
    keep [BYTES]    allocates a tensor of so many bytes and keeps it
    drop            lets all of these go
    threads [N]     so many threads allocate and free at once
    snapshot        tells also the segments of torch.cuda.memory._snapshot()
"""
import argparse
import json
import threading

import handshake
import torch
from torch import nn


class Scale(torch.autograd.Function):
    """A function with a backward of its own, which allocates."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        return gradient * 2 + x * 0


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = Scale.apply(layer(x))
        return x


def step(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def counters():
    stats = torch.cuda.memory_stats()
    return {key: stats[key] for key in stats if key.endswith((".allocated", ".freed", ".current", ".peak"))}


def live_blocks():
    return [[block["address"], block["requested_size"], block["size"]]
            for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
            if block["state"] == "active_allocated"]


def allocate_in_threads(count):
    def work(number):
        held = [torch.empty(1000 * (number + 1) + i, device="cuda") for i in range(200)]
        del held
    threads = [threading.Thread(target=work, args=(i,), name=f"allocator-{i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    model = Model(args.width).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 16, args.width, device="cuda")
    for _ in range(2):
        step(model, optimizer, batch)
    kept = []
    handshake.ready()
    for request, *argument in handshake.requests():
        number = int(argument[0]) if argument else 5
        torch.cuda.reset_peak_memory_stats()
        before = counters()
        if request == "train":
            for _ in range(number):
                step(model, optimizer, batch)
        elif request == "keep":
            kept.append(torch.empty(number, dtype=torch.uint8, device="cuda"))
        elif request == "drop":
            kept.clear()
        elif request == "threads":
            allocate_in_threads(number)
        truth = {"before": before, "after": counters(), "peak": torch.cuda.max_memory_allocated(), "live": live_blocks()}
        if request == "snapshot":
            truth["segments"] = torch.cuda.memory._snapshot()["segments"]
        print(json.dumps(truth), flush=True)


if __name__ == "__main__":
    main()
