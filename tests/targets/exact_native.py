"""Allocates large and small tensors through a known C function between two Python functions, and in a backward pass.

    python tests/targets/exact_native.py

After READY it works once for each line that it reads, and prints what the allocator counted before and after as a line of JSON. With a number in
the line it allocates so many large tensors one after the other instead.
"""
import json

import handshake
import torch

LARGE = 8 << 20
held = []


def key(size):
    return allocate(size)


def allocate(size):  # On 3.11 and newer it runs in the same call of the interpreter as key().
    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return size


def through_sorted():
    return sorted([LARGE, 2048], key=key)


def square(x):
    return (x.mul(x)).sum()


def work():
    through_sorted()
    x = torch.ones(LARGE // 4, device="cuda", requires_grad=True)
    square(x).backward()
    held.append(x)


def many(count):
    for _ in range(count):
        torch.empty(LARGE, dtype=torch.uint8, device="cuda")


def counters():
    stats = torch.cuda.memory_stats()
    return {key: stats[key] for key in stats if key.endswith((".allocated", ".freed"))}


def main():
    x = torch.ones(64, device="cuda", requires_grad=True)
    square(x).backward()
    handshake.ready()
    for _, *count in handshake.requests():
        held.clear()
        before = counters()
        if count:
            many(int(count[0]))
        else:
            work()
        print(json.dumps({"before": before, "after": counters()}), flush=True)


main()
