"""Lets physical memory go under PyTorch's allocator, as the sleep modes of vLLM and torch_memory_saver do.

    python tests/targets/asleep.py

Prints {"reserved", "allocated"} and READY; "sleep" on standard input unmaps all expandable segments and gives their memory back to the
driver (while the allocator counts it as reserved as before), and prints how many bytes that were; then READY.
"""
import ctypes
import json
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import handshake
import torch

MIB = 1 << 20
CHUNK = 2 * MIB


def sleep(driver):
    unmapped = 0
    for segment in torch.cuda.memory_snapshot():
        start, size = segment["address"], segment["total_size"]
        handles = {}
        for address in range(start, start + size, CHUNK):
            handle = ctypes.c_ulonglong()
            assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
            handles.setdefault(handle.value, 0)
            handles[handle.value] += 1
        assert driver.cuMemUnmap(ctypes.c_ulonglong(start), ctypes.c_size_t(size)) == 0
        for handle, retained in handles.items():
            for _ in range(retained + 1):  # what was retained here, and what PyTorch has
                assert driver.cuMemRelease(ctypes.c_ulonglong(handle)) == 0
        unmapped += size
    return unmapped


def main():
    weights = [torch.empty(300 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    handshake.ready({"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()})
    driver = ctypes.CDLL("libcuda.so.1")
    for name, *_ in handshake.requests():
        if name == "sleep":
            handshake.ready(sleep(driver))
        else:
            handshake.ready()
    # Nothing of it can be freed any more: the memory is not the allocator's.
    os._exit(0 if weights else 1)


if __name__ == "__main__":
    main()
