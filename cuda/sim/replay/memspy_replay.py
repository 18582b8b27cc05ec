"""Replays a recording's allocations through PyTorch's caching allocator, on the simulated device.

    memspy_replay.py FILE

FILE is a line of JSON, then two tables of 64-bit integers: codes and values. A code is a kind (its three
lowest bits) and the number of a block. What the allocator says of itself goes to standard output as JSON.
"""
import array
import ctypes
import json
import sys
import time

ALLOCATE, FREE, STREAM, POOL, EMPTY_CACHE, STEP, PEAK, BEGIN = range(8)
STATES = {"active_allocated": 0, "inactive": 2}  # all others wait for a stream


class _Device:
    """One device's allocator, its streams and its private pools."""

    def __init__(self, torch, setup):
        self.torch = torch
        torch.cuda.init()
        torch.cuda.current_stream()  # creates the context
        if setup["memory_fraction"]:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.streams = [0] + [_new_stream(torch) for _ in range(setup["streams"] - 1)]
        self.pools = {}
        self.inside = None
        self.kept = setup["blocks"] * [0]

    def enter(self, pool):
        """Further allocations are of this private pool; 0: of none."""
        if self.inside is not None:
            self.inside.__exit__(None, None, None)
            self.inside = None
        if pool:
            if pool not in self.pools:
                self.pools[pool] = self.torch.cuda.MemPool()
            self.inside = self.torch.cuda.use_mem_pool(self.pools[pool])
            self.inside.__enter__()

    def reading(self):
        torch = self.torch
        return {
            "reserved": torch.cuda.memory_reserved(),
            "allocated": torch.cuda.memory_allocated(),
            "segments": [_segment(segment) for segment in torch.cuda.memory_snapshot()],
        }

    def replay(self, codes, values, empties_at_steps):
        """Returns what was read at the marks."""
        torch = self.torch
        allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
        free = torch._C._cuda_cudaCachingAllocator_raw_delete
        no_memory = torch.cuda.OutOfMemoryError
        kept, stream = self.kept, 0
        result = {}
        for code, value in zip(codes, values):
            kind = code & 7
            if kind == ALLOCATE:
                try:
                    kept[code >> 3] = allocate(value, stream)
                except no_memory:
                    kept[code >> 3] = 0  # its free is left out
            elif kind == FREE:
                if kept[code >> 3]:
                    free(kept[code >> 3])
                    kept[code >> 3] = 0
            elif kind == STREAM:
                stream = self.streams[value]
            elif kind == POOL:
                self.enter(value)
            elif kind == EMPTY_CACHE or kind == STEP and empties_at_steps:
                torch.cuda.empty_cache()
            elif kind == PEAK:
                result["peak"] = self.reading()
            elif kind == BEGIN:
                torch.cuda.reset_peak_memory_stats()
                result["before"] = _counts(torch)
        self.enter(0)
        return result


def _new_stream(torch):
    """torch.cuda.Stream() has only 32."""
    stream = ctypes.c_void_p()
    torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(stream)))
    return stream.value


def _segment(segment):
    """[bytes, stream, small pool, expandable, private pool, [[state, bytes] of each block]]"""
    pool = tuple(segment.get("segment_pool_id", (0, 0)))
    return [
        segment["total_size"],
        segment["stream"],
        segment["segment_type"] == "small",
        bool(segment.get("is_expandable")),
        pool != (0, 0),
        [[STATES.get(block["state"], 1), block["size"]] for block in segment["blocks"]],
    ]


def _counts(torch):
    """What only grows; the driver's calls are counted since PyTorch 2.3."""
    stats = torch.cuda.memory_stats()
    return {
        "segments": stats["segment.all.allocated"],
        "driver_allocations": stats.get("num_device_alloc"),
        "driver_frees": stats.get("num_device_free"),
        "out_of_memory": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
    }


def main(path):
    codes, values = array.array("q"), array.array("q")
    with open(path, "rb") as file:
        setup = json.loads(file.readline())
        codes.fromfile(file, setup["events"])
        values.fromfile(file, setup["events"])
    import torch

    device = _Device(torch, setup)
    began = time.perf_counter()
    result = device.replay(codes, values, setup["empties_at_steps"])
    result["seconds"] = time.perf_counter() - began
    stats = torch.cuda.memory_stats()
    result["torch"] = torch.__version__
    result["reserved_peak"] = stats["reserved_bytes.all.peak"]
    result["allocated_peak"] = stats["allocated_bytes.all.peak"]
    result["after"] = _counts(torch)
    result["end"] = device.reading()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
