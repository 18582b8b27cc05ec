"""Situations whose memory is easily mistaken: python misleading.py KIND. Reads what is asked of it, line by line."""
import gc
import json
import os
import sys
import time

import torch
from torch import nn

MIB = 1 << 20


def told(**truth):
    print(json.dumps(truth), flush=True)
    print("READY", flush=True)


class Trial:
    """Drops out of sight as a cycle: it keeps a list of its own methods."""

    def __init__(self):
        self.model = nn.Linear(512, 512, bias=False).cuda()  # 1 MiB
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.callbacks = [self.on_step]

    def on_step(self):
        return self.model(torch.ones(4, 512, device="cuda")).mean()

    def run(self):
        self.callbacks[0]().backward()
        self.optimizer.step()


def trials():
    gc.collect()
    gc.disable()
    for _ in range(3):
        Trial().run()  # weights, gradients and two states of Adam: 4 MiB
    told(pid=os.getpid())


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x * 2
        ctx.scratch = [torch.empty_like(x)]
        ctx.result = result
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result


def outputs():
    gc.collect()
    gc.disable()
    x = torch.ones(1024, 256, device="cuda", requires_grad=True)  # 1 MiB
    for _ in range(4):
        KeepsOutput.apply(x)
    told(pid=os.getpid())
    return x


class Probe:
    def __init__(self):
        self.columns = []


def columns():
    """Every 32nd column of what was computed, as a view of all of it."""
    probe = Probe()
    for _ in range(6):
        computed = torch.ones(512, 1024, device="cuda") * 2  # 2 MiB
        probe.columns.append(computed.detach()[:, ::32])
    del computed
    shown = sum(c.numel() * c.element_size() for c in probe.columns)
    held = sum(c.untyped_storage().nbytes() for c in probe.columns)
    told(pid=os.getpid(), hidden=held - shown)
    return probe


@torch.no_grad()
def graphs():
    """A CUDA graph for each length, with private pools of their own."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    by_length = {}
    for length in (1024, 4096):
        given = torch.zeros(length, 512, device="cuda")
        model(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(given)
        by_length[length] = {"graph": graph, "given": given, "result": result}
    torch.cuda.empty_cache()
    pools, free = {}, 0
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        if pool != (0, 0):
            pools[pool] = pools.get(pool, 0) + segment["total_size"]
            free += sum(b["size"] for b in segment["blocks"] if b["state"] == "inactive")
    told(pid=os.getpid(), pools=sorted(pools.values(), reverse=True), free=free)
    return by_length


def forked():
    """A worker that was forked after CUDA had begun, as those of a DataLoader."""
    kept = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    child = os.fork()
    if child == 0:
        end = time.time() + 120
        while time.time() < end:
            time.sleep(0.05)
        os._exit(len(kept))
    told(pid=os.getpid(), child=child, bytes=sum(k.untyped_storage().nbytes() for k in kept))
    return kept


def on_cpu():
    """A job without a GPU, with a result that keeps its graph."""
    model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 8))
    loss = model(torch.ones(64, 256)).sum()
    told(pid=os.getpid(), weights=sum(p.numel() * p.element_size() for p in model.parameters()))
    return model, loss


def main():
    kept = globals()[sys.argv[1]]()
    for line in sys.stdin:
        if line.strip() == "collect":
            before = torch.cuda.memory_allocated()
            gc.collect()
            told(freed=before - torch.cuda.memory_allocated())
    del kept


if __name__ == "__main__":
    main()
