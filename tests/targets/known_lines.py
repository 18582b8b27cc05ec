"""Allocates known amounts on known lines, over and over, and says beforehand what a line report must show.

    python tests/targets/known_lines.py [--pause MS] [--device cuda:0]

Prints {"lines": {name: {"line", "function", "bytes"}}, "peak_bytes", "peak_line", "floor_bytes"} and READY,
then repeats its pattern until stdin closes and prints what torch.cuda measured.
Each line stands on the stack for --pause milliseconds before and after it allocates, and the state holds
still meanwhile, so a sampler sees every one of them at work.
"""
import argparse
import json
import os
import select
import sys
import time

import handshake
import torch

MIB = 1 << 20


def megabytes(count):
    """uint8, in whole MiB: PyTorch's rounding to 512 bytes changes nothing."""
    settle()
    tensor = torch.empty(count * MIB, dtype=torch.uint8, device=DEVICE)
    settle()
    return tensor


def make_weights():
    return megabytes(32)  # line: weights 32


def forward():
    activations = []
    for _ in range(4):
        activations.append(megabytes(16))  # line: activations 64
    return activations


def backward(activations):
    gradients = megabytes(32)  # line: gradients 32
    scratch = megabytes(128)  # line: scratch 128
    del scratch
    activations.clear()
    settle()
    return gradients


def step():
    activations = forward()
    gradients = backward(activations)
    update = megabytes(8)
    del gradients, update


def settle():
    time.sleep(PAUSE)


def known_lines():
    """Reads the figures off the comments above, so that they cannot drift from the code."""
    marks = handshake.marked_lines(__file__, r"  # line: (\w+) (\d+)$")
    return {
        mark.group(1): {"line": number, "function": function, "bytes": int(mark.group(2)) * MIB} for number, function, mark in marks
    }


def closed(stream):
    """Whether the test has closed stdin; a line it wrote is swallowed."""
    return bool(select.select([stream], [], [], 0)[0]) and not stream.readline()


def main():
    lines = known_lines()
    weights = make_weights()
    peak = sum(line["bytes"] for line in lines.values())
    handshake.ready({"pid": os.getpid(), "file": os.path.abspath(__file__), "lines": lines, "peak_bytes": peak,
                     "peak_line": "scratch", "floor_bytes": lines["weights"]["bytes"]})
    steps = 0
    while not closed(sys.stdin):
        step()
        steps += 1
    print(json.dumps({"steps": steps, "max_memory_allocated": torch.cuda.max_memory_allocated(),
                      "memory_allocated": torch.cuda.memory_allocated()}), flush=True)
    del weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=20, help="milliseconds")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    PAUSE, DEVICE = arguments.pause / 1000, arguments.device
    main()
