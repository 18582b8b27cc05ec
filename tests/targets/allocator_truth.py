"""Brings the CUDA caching allocator into a varied state and prints what PyTorch itself says about it.

    python tests/targets/allocator_truth.py MODE      (MODE: see MODES at the end, or --help)

Prints one line of JSON {"mode", "pid", "devices": [{"device", "stats", "snapshot", "free", "total"}]} and
READY. On the line "again" it allocates more and prints both again; nothing allocates in between.
"""
import argparse
import os
import random

import handshake

KIB, MIB = 1 << 10, 1 << 20


def settings_before_import(mode):
    """Allocator settings are read when torch is loaded; the SIM_* ones mean nothing to a real GPU."""
    allocator = {"expandable": "expandable_segments:True", "async_backend": "backend:cudaMallocAsync"}.get(mode)
    if allocator:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    if mode == "two_devices":
        os.environ.setdefault("SIM_CUDA_DEVICES", "2")
    if mode == "streams":
        # Work never finishes, so blocks used on another stream stay "pending free" while the test looks.
        os.environ.setdefault("SIM_CUDA_BUSY_QUERIES", "1000000000")


class Workload:
    """Holds tensors between rounds, so that blocks of several ages and sizes exist."""

    def __init__(self):
        self.kept = []
        self.random = random.Random(20240229)

    def pattern(self, device="cuda"):
        """Small, medium, large and odd sizes; frees every third, so that free blocks lie in between."""
        sizes = [1, 512, 513, 5000, 100 * KIB, MIB - 1, MIB, 3 * MIB, 11 * MIB, 30 * MIB, 64 * MIB + 7]
        tensors = [self.bytes(size, device) for size in sizes for _ in range(3)]
        tensors += [self.bytes(self.random.randrange(1, 4 * MIB), device) for _ in range(60)]
        self.kept += [tensor for index, tensor in enumerate(tensors) if index % 3]

    @staticmethod
    def bytes(size, device="cuda"):
        return torch.empty(size, dtype=torch.uint8, device=device)

    def plain(self):
        self.pattern()
        self.kept = self.kept[: len(self.kept) // 2 + 20]

    def two_devices(self):
        for device in range(torch.cuda.device_count()):
            self.pattern(f"cuda:{device}")
            if device == 0:
                del self.kept[::2]

    def graph_pool(self):
        self.plain()
        static = torch.zeros(2 * MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = static * 2 + 1
            scratch = self.bytes(5 * MIB)
            del scratch
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = [self.bytes(size) for size in (700 * KIB, 9 * MIB, 25 * MIB)]
            del pooled[1]
        self.kept += [graph, static, captured, pool, pooled]

    def streams(self):
        self.plain()
        for _ in range(3):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                on_stream = [self.bytes(6 * MIB), self.bytes(20 * KIB)]
            used_elsewhere = self.bytes(15 * MIB)
            used_elsewhere.record_stream(stream)
            del used_elsewhere  # freed, but not reusable before the stream has passed this point
            self.kept += [stream, on_stream]

    def init_only(self):
        torch.cuda.init()


def truth_of(device):
    free, total = torch.cuda.mem_get_info(device)
    answer = {"device": device, "stats": torch.cuda.memory_stats(device), "free": free, "total": total}
    try:
        answer["snapshot"] = [s for s in torch.cuda.memory_snapshot() if s["device"] == device]
    except RuntimeError as error:  # cudaMallocAsync has no snapshot
        answer["snapshot"], answer["snapshot_error"] = None, str(error).splitlines()[0]
    return answer


def truth(mode):
    devices = [] if mode == "none" else [truth_of(device) for device in range(torch.cuda.device_count())]
    return {"mode": mode, "pid": os.getpid(), "torch": torch.__version__, "devices": devices}


MODES = {
    "plain": Workload.plain,
    "expandable": Workload.plain,
    "two_devices": Workload.two_devices,
    "graph_pool": Workload.graph_pool,
    "streams": Workload.streams,
    "async_backend": Workload.plain,
    "init_only": Workload.init_only,
    "none": lambda workload: None,  # torch is loaded, CUDA never touched
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=sorted(MODES))
    MODE = parser.parse_args().mode
    settings_before_import(MODE)
    import torch

    WORKLOAD = Workload()
    MODES[MODE](WORKLOAD)
    handshake.ready(truth(MODE))
    for REQUEST in handshake.requests():
        if REQUEST == ["again"]:
            MODES[MODE](WORKLOAD)
        handshake.ready(truth(MODE))
