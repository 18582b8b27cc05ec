"""Leaves holes in PyTorch's cache, and says what `torch.cuda.empty_cache()` then really returns.

    python tests/targets/empty_cache.py [SETTING]      (SETTING: of PYTORCH_CUDA_ALLOC_CONF)

For each pattern: one line of JSON {"pattern", "reserved"} and READY; on a line from the test it empties the cache and
prints the bytes that the allocator gave back.
"""
import os
import sys

import handshake

KIB, MIB = 1 << 10, 1 << 20


def many(sizes, device="cuda"):
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]


def large_holes():
    """Holes that begin and end anywhere in the granules of 20 MiB."""
    kept = many(n * MIB for n in (30, 70, 15, 90, 5))
    del kept[3], kept[1]
    return kept


def aligned_holes():
    kept = many(n * MIB for n in (20, 40, 20, 60, 20))
    del kept[3], kept[1]
    return kept


def holes_within_granules():
    """Large enough for a granule, but none lies wholly in it."""
    kept = many(n * MIB for n in (10, 25, 10, 35, 20))
    del kept[3], kept[1]
    return kept


def small_holes():
    """Runs of free blocks in the small pool, whose granules have 2 MiB."""
    kept = many([300 * KIB] * 60)
    del kept[45:52], kept[5:33]
    return kept


def free_ends():
    kept = many([50 * MIB, 10 * MIB, 50 * MIB]) + many([900 * KIB] * 9)
    del kept[5:], kept[2], kept[0]
    return kept


def streams():
    """Each stream has segments of its own."""
    kept = []
    for _ in range(2):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            mine = many(n * MIB for n in (30, 70, 15)) + many([500 * KIB] * 20)
        del mine[8:20], mine[1]
        kept += [stream, mine]
    return kept


def pending():
    """Freed while another stream may still use it: emptying the cache waits for that."""
    stream = torch.cuda.Stream()
    kept = many(n * MIB for n in (25, 70, 25, 12))
    kept[1].record_stream(stream)
    del kept[1]
    del kept[1]
    return [stream, kept]


def pool_in_use():
    """What is free in the pool of a `MemPool` or a CUDA graph stays there."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = many(n * MIB for n in (30, 70, 15))
    del kept[1]
    return [pool, kept]


def pool_without_graph():
    """Tensors of a CUDA graph that is gone: its pool is emptied like the others."""
    static = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = many(n * MIB for n in (30, 70, 15)) + [static * 2]
    del graph, kept[1], static
    return kept


PATTERNS = [large_holes, aligned_holes, holes_within_granules, small_holes, free_ends, streams, pending, pool_in_use,
            pool_without_graph]


def main():
    for pattern in PATTERNS:
        kept = pattern()
        reserved = torch.cuda.memory_reserved()
        handshake.ready({"pattern": pattern.__name__, "reserved": reserved})
        handshake.hold()
        torch.cuda.empty_cache()
        print(reserved - torch.cuda.memory_reserved(), flush=True)
        if pattern is not PATTERNS[-1]:  # which PyTorch itself may fail to clean up
            del kept
            torch.cuda.empty_cache()
    handshake.ready({"pattern": None})
    handshake.hold()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = sys.argv[1]
    # Work on other streams does not finish before it is waited for.
    os.environ.setdefault("SIM_CUDA_BUSY_QUERIES", "1000000000")
    import torch

    main()
