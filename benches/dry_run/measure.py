#!/usr/bin/env python3
"""Runs a training script unchanged and appends a JSON line with the memory that it took.

    measure.py [--limit BYTES] OUT SCRIPT [ARGUMENT ...]

With a limit the caching allocator refuses to take more, as on a smaller card.
"""
import ctypes
import json
import os
import runpy
import sys
import time
import traceback


class Process(ctypes.Structure):
    """nvmlProcessInfo_t since NVML 11."""

    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong),
                ("instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


def process_bytes(device):
    """What NVML, and so nvidia-smi, says that this process holds; None: it does not say."""
    import torch

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        return None
    handle, count = ctypes.c_void_p(), ctypes.c_uint(256)
    properties = torch.cuda.get_device_properties(device)
    address = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    if nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(handle)):
        return None
    processes = (Process * 256)()
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes):
        return None
    found = [p.bytes for p in processes[: count.value] if p.pid == os.getpid()]
    if not found and count.value == 1:  # in another namespace of pids
        found = [processes[0].bytes]
    return found[0] if found and found[0] < 1 << 60 else None


def failing_lines(error, script):
    """The innermost line of the script, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(script)))
    own = [frame for frame in frames if os.path.abspath(frame.filename).startswith(folder) and
           not frame.filename.endswith("measure.py")]
    return [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in ([own[-1]] if own else []) + [frames[-1]]]


def main():
    words = sys.argv[1:]
    limit = None
    if words[0] == "--limit":
        limit, words = int(words[1]), words[2:]
    out, script = words[0], words[1]
    sys.argv = words[1:]
    began = time.time()
    import torch

    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    row = {"job": os.path.basename(script).removesuffix(".py"), "arguments": words[2:], "limit": limit}
    try:
        runpy.run_path(script, run_name="__main__")
    except torch.cuda.OutOfMemoryError as error:
        row["oom"] = failing_lines(error, script)
        row["message"] = str(error).split(". ")[0]
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        device = torch.cuda.current_device()
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        row |= {
            "allocated": stats["allocated_bytes.all.peak"],
            "requested": stats["requested_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.peak"],
            "reserved_now": stats["reserved_bytes.all.current"],
            "process": process_bytes(device),
            "device_used": total - free,
            "allocations": stats["allocation.all.allocated"],
            "rank": os.environ.get("RANK"),
            "device": torch.cuda.get_device_name(device),
        }
    row |= {"seconds": round(time.time() - began, 2), "torch": torch.__version__}
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")
    os._exit("error" in row)  # without waiting for process groups


if __name__ == "__main__":
    main()
