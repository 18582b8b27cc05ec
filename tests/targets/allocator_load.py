"""Puts the CUDA caching allocator under load, one request per line on stdin, READY after each.

    python tests/targets/allocator_load.py

Requests: truth | oom | reset_peak | reset_accumulated | hold BLOCKS | pluggable
          churn SECONDS BLOCKS | train SECONDS
"truth" prints what PyTorch says, as allocator_truth.py does. "churn" replaces one of BLOCKS blocks after
the other without pause; "train" runs a small network's training steps. Both print READY at once, then
work, and print {"allocations", "seconds"} and READY at the end.
"""
import gc
import time

import allocator_truth
import handshake
import torch

allocator_truth.torch = torch
kept = []


def byte_tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def hold(blocks):
    kept.clear()
    kept.extend(byte_tensor(1000 + index % 4000) for index in range(blocks))


def churn(until, blocks):
    """Allocation number N has SIZES[N % 5] + N % 4096 bytes, and the last `blocks` of them are alive."""
    sizes = [1000, 40_000, 500_000, 3 << 20, 25 << 20]
    ring = [None] * blocks
    count = 0
    while time.perf_counter() < until:
        for _ in range(100):
            ring[count % blocks] = byte_tensor(sizes[count % 5] + count % 4096)
            count += 1


def train(until):
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 1024, device="cuda")
    while time.perf_counter() < until:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    del model, optimizer, layers
    gc.collect()


def timed(work, seconds, *rest):
    allocations = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
    before, start = allocations(), time.perf_counter()
    handshake.ready()
    work(start + float(seconds), *rest)
    handshake.ready({"allocations": allocations() - before, "seconds": time.perf_counter() - start})


def oom():
    try:
        byte_tensor(1 << 45)
    except torch.OutOfMemoryError:
        handshake.ready()


def pluggable():
    """Puts an allocator of the program's own in place; its functions are never called."""
    library = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
    new = torch.cuda.memory.CUDAPluggableAllocator(library, "cudaMalloc", "cudaFree")
    torch.cuda.memory.change_current_allocator(new)
    kept.append(new)
    handshake.ready()


if __name__ == "__main__":
    handshake.ready()
    for name, *words in handshake.requests():
        if name == "truth":
            handshake.ready(allocator_truth.truth("load"))
        elif name == "hold":
            hold(int(words[0]))
            handshake.ready()
        elif name == "churn":
            timed(churn, words[0], int(words[1]))
        elif name == "train":
            timed(train, words[0])
        elif name == "oom":
            oom()
        elif name == "pluggable":
            pluggable()
        else:
            getattr(torch.cuda, {"reset_peak": "reset_peak_memory_stats",
                                 "reset_accumulated": "reset_accumulated_memory_stats"}[name])()
            handshake.ready()
