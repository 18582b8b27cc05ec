"""A model that torch.compile runs, with fake tensors and private pools left behind, and what is true of its memory.

    python tests/targets/compiled.py BACKEND          aot_eager, or cudagraphs: replays a CUDA graph

One line of JSON, with the loss of a forward pass alive: what its graph keeps, the fake tensors, the allocator's bytes, and
the bytes of tensors that lie in a private pool where the allocator has no block in use.
"""
import bisect
import gc
import sys

import handshake
import scene_graphs
import scene_truth
import torch
from torch import nn


def look(loss):
    """Called in a fork: makes no call to CUDA."""
    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    fakes = [t for t in tensors if type(t).__name__ == "FakeTensor"]
    storages = {}
    for tensor in (t for t in tensors if type(t).__name__ != "FakeTensor" and t.is_cuda):
        whole = tensor.untyped_storage()
        storages[whole.data_ptr()] = max(whole.nbytes(), storages.get(whole.data_ptr(), 0))
    return {"graph": scene_graphs.of([loss.grad_fn]), "fakes": len(fakes), "storages": sorted(storages.items()),
            "fake_bytes": sum(t.untyped_storage().nbytes() for t in fakes)}


def in_pools(storages):
    """Bytes of the storages that lie in segments of private pools and in no block that is in use."""
    segments = torch.cuda.memory_snapshot()
    used = sorted((b["address"], b["address"] + b["size"]) for s in segments for b in s["blocks"] if b["state"] != "inactive")
    pools = [(s["address"], s["address"] + s["total_size"]) for s in segments if tuple(s["segment_pool_id"]) != (0, 0)]
    starts = [start for start, _ in used]

    def is_used(address):
        before = bisect.bisect_right(starts, address) - 1
        return before >= 0 and address < used[before][1]

    lying = [size for at, size in storages if any(b <= at < e for b, e in pools) and not is_used(at)]
    return sum(lying)


def main():
    torch.manual_seed(0)
    width = 512
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(4))).cuda()
    run = torch.compile(model, backend=sys.argv[1])
    optimizer = torch.optim.AdamW(model.parameters())

    def forward():
        torch.compiler.cudagraph_mark_step_begin()
        return run(torch.randn(256, width, device="cuda")).square().mean()

    for _ in range(4):
        forward().backward()
        optimizer.step()
        optimizer.zero_grad()
    loss = forward()
    truth = scene_truth.in_child(look, loss)
    truth["in_pools"] = in_pools(truth["storages"])
    truth["allocated"] = torch.cuda.memory_allocated()
    handshake.ready(truth)
    handshake.hold()


if __name__ == "__main__":
    main()
