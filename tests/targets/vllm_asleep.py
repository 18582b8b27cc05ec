"""Sleeps as vLLM does, with a module of its own that has the shape of vLLM's allocator (vLLM itself is not needed).

    python tests/targets/vllm_asleep.py

Prints {"reserved", "tags": {tag: bytes}} and READY. Lines on standard input:
    sleep            unmaps all memory and keeps a copy of the weights, as `LLM.sleep(level=1)` does
    sleep_cache      unmaps the cache only: what is left asleep by `wake_up(tags=["weights"])`
    damage WHAT      `entry`, `tag`, `dict` or `class`: what is kept gets another shape
    forget           there is no instance
each is answered by READY. One of them is for a process: nothing maps the memory again.
"""
import ctypes
import dataclasses
import os
import sys
import types

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import handshake
import torch

MIB = 1 << 20
CHUNK = 2 * MIB
# Tensors of each tag; the cache is larger than all that a process has outside PyTorch.
SIZES = {"weights": [300 * MIB] * 4, "kv_cache": [1500 * MIB] * 8}


@dataclasses.dataclass
class AllocationData:
    handle: tuple
    tag: str
    cpu_backup_tensor: "torch.Tensor | None" = None


class CuMemAllocator:
    instance = None

    def __init__(self):
        self.pointer_to_data = {}
        self.current_tag = "default"


def module():
    """`vllm.device_allocator.cumem`, with the class in it."""
    parents = ["vllm", "vllm.device_allocator", "vllm.device_allocator.cumem"]
    for name in parents:
        sys.modules[name] = types.ModuleType(name)
    cumem = sys.modules[parents[-1]]
    for member in (CuMemAllocator, AllocationData):
        member.__module__ = parents[-1]
        setattr(cumem, member.__name__, member)
    return cumem


def unmap(driver, start, size):
    handles = {}
    for address in range(start, start + size, CHUNK):
        handle = ctypes.c_ulonglong()
        assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
        handles[handle.value] = handles.get(handle.value, 0) + 1
    assert driver.cuMemUnmap(ctypes.c_ulonglong(start), ctypes.c_size_t(size)) == 0
    for handle, retained in handles.items():
        for _ in range(retained + 1):  # what was retained here, and what PyTorch has
            assert driver.cuMemRelease(ctypes.c_ulonglong(handle)) == 0


def damage(what, cumem, allocator):
    first = next(iter(allocator.pointer_to_data), None)
    if what == "entry":
        allocator.pointer_to_data[first].handle = (0, 1)
    elif what == "tag":
        allocator.pointer_to_data[first].tag = 7
    elif what == "dict":
        allocator.pointer_to_data = []
    elif what == "class":
        del cumem.CuMemAllocator


def main():
    cumem = module()
    allocator = cumem.CuMemAllocator()
    cumem.CuMemAllocator.instance = allocator
    kept = []
    for tag, sizes in SIZES.items():
        for size in sizes:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            kept.append(tensor)
            handle = (0, size, tensor.data_ptr(), 0x5555_0000_0000 + len(kept))
            allocator.pointer_to_data[tensor.data_ptr()] = AllocationData(handle, tag)
    driver = ctypes.CDLL("libcuda.so.1")
    tags = {tag: sum(sizes) for tag, sizes in SIZES.items()}
    handshake.ready({"reserved": torch.cuda.memory_reserved(), "tags": tags})
    for name, *words in handshake.requests():
        if name in ("sleep", "sleep_cache"):
            for address, data in allocator.pointer_to_data.items():
                if name == "sleep" and data.tag == "weights":
                    data.cpu_backup_tensor = torch.empty(data.handle[1], dtype=torch.uint8)
                if name == "sleep" or data.tag == "kv_cache":
                    unmap(driver, address, data.handle[1])
        elif name == "damage":
            damage(words[0], cumem, allocator)
        elif name == "forget":
            cumem.CuMemAllocator.instance = None
        handshake.ready()
    # Nothing of it can be freed any more: the memory is not the allocator's.
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
