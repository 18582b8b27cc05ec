"""A 12-layer transformer training loop that measures its own speed in windows, for side-by-side overhead runs.

    python tests/targets/transformer12.py [--device cuda|cpu] [--layers N] [--width N] ...

After READY the test writes requests; each is answered with one line of JSON:
    window [SECONDS]            trains that long (default 2) and prints iterations and allocations per second
    history python|all|off      switches PyTorch's own memory history, the yardstick to compare with
    dump                        how long _snapshot() and pickling of that history take, and how many bytes and entries it has
    memlab on|off               switches pytorch_memlab's line profiler on the function of one iteration
One process measures with and without a profiler in turn, so a slow machine cannot pass for a slow profiler.
"""
import argparse
import json
import os
import pickle
import time

import handshake
import torch
from torch import nn


def build(args):
    layer = nn.TransformerEncoderLayer(args.width, args.heads, 4 * args.width, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False),
                          nn.Linear(args.width, args.width)).to(args.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def iteration(model, optimizer, batch):
    output = model(batch)
    loss = (output - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def allocations(device):
    return torch.cuda.memory_stats()["allocation.all.allocated"] if device == "cuda" else 0


def window(model, optimizer, batch, device, seconds):
    first_allocation = allocations(device)
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < seconds:
        iteration(model, optimizer, batch)
        count += 1
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    return {"iterations": count, "seconds": elapsed, "iterations_per_s": count / elapsed,
            "allocations_per_s": (allocations(device) - first_allocation) / elapsed}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()

    model, optimizer = build(args)
    batch = torch.randn(args.batch, args.length, args.width, device=args.device)
    for _ in range(3):  # the first iterations allocate the optimizer's state and the workspaces
        iteration(model, optimizer, batch)
    handshake.ready({"pid": os.getpid(), "device": args.device, "layers": args.layers})

    number = 0
    memlab = None
    for request, *argument in handshake.requests():
        if request == "window":
            seconds = float(argument[0]) if argument else 2.0
            answer = {"window": number, **window(model, optimizer, batch, args.device, seconds)}
            number += 1
        elif request == "history":
            mode = argument[0]
            if mode == "off":
                torch.cuda.memory._record_memory_history(enabled=None)
            else:
                torch.cuda.memory._record_memory_history(stacks=mode)
            answer = {"history": mode}
        elif request == "dump":
            started = time.perf_counter()
            snapshot = torch.cuda.memory._snapshot()
            taken = time.perf_counter()
            size = len(pickle.dumps(snapshot))
            answer = {"snapshot_s": taken - started, "pickle_s": time.perf_counter() - taken, "bytes": size,
                      "entries": sum(map(len, snapshot["device_traces"]))}
        elif request == "memlab" and argument[0] == "on":
            from pytorch_memlab import LineProfiler

            memlab = LineProfiler(iteration)
            memlab.enable()
            answer = {"memlab": "on"}
        elif request == "memlab":
            memlab.disable()
            answer = {"memlab": len(memlab._raw_line_records)}
        else:
            answer = {"unknown request": request}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
