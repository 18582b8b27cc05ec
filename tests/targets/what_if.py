"""A job that fragments PyTorch's cache, with a second stream, for 'memspy what-if'. Prints PyTorch's own peak."""
import json
import random
import sys
import time

import torch

random.seed(3)
waits_for_word = "--wait" in sys.argv
has_history = "--history" in sys.argv  # on one stream: a trace of it has one snapshot, at the end
side = torch.cuda.current_stream() if has_history else torch.cuda.Stream()
if has_history:
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=1_000_000)
kept, lengths = [], []


def allocate(mib):
    return torch.empty(int(mib * (1 << 20)), dtype=torch.uint8, device="cuda")


def work(ticks):
    for tick in range(ticks):
        if len(kept) < 10 and random.random() < 0.5:
            kept.append([allocate(random.uniform(0.3, 30)) for _ in range(8)])
            lengths.append(random.randint(3, 25))
        for number, blocks in enumerate(kept):  # grows by concatenation, as a cache of keys and values does
            kept[number] = [torch.cat([block, block.new_empty(1 << 16)]) for block in blocks]
            lengths[number] -= 1
        for _ in range(6):
            with torch.cuda.stream(side):
                sent = allocate(random.uniform(1, 40))
            sent.record_stream(torch.cuda.current_stream())
            del sent
        for number in reversed([n for n, left in enumerate(lengths) if left < 0]):
            del kept[number], lengths[number]
        if tick == ticks // 2:
            torch.cuda.empty_cache()


allocate(1)
time.sleep(1)  # memspy finds the allocator's counters
work(40)
time.sleep(1)  # it reads the segments, which tell the streams
if waits_for_word:
    print("READY", flush=True)
    sys.stdin.readline()
    if not has_history:
        torch.cuda.reset_peak_memory_stats()
work(80)
time.sleep(1)
stats = torch.cuda.memory_stats()
print(json.dumps({name: stats[f"{name}_bytes.all.peak"] for name in ("reserved", "allocated")}), flush=True)
if waits_for_word:
    sys.stdin.readline()
