"""A job with known tensors on the GPU that crashes in a known place: for core files.

    python tests/targets/crashed.py FOLDER

Prints one line of JSON with what PyTorch says of itself, and READY. On the line "abort" it aborts, with a core file in
FOLDER where the kernel writes one into the working directory.
"""
import os
import resource
import sys
import threading

import handshake
import torch

MIB = 1 << 20
WEIGHTS = {"first": torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda"),
           "second": torch.zeros(5 * MIB + 7, dtype=torch.uint8, device="cuda")}


def command_line():
    with open("/proc/self/cmdline", encoding="utf-8") as file:
        return file.read().split("\0")[:-1]


def truth():
    python = sys.version.split()[0] + ("t" if "t" in sys.abiflags else "")
    return {"pid": os.getpid(), "python": python, "torch": torch.__version__, "argv": command_line(),
            "stats": torch.cuda.memory_stats(), "snapshot": torch.cuda.memory_snapshot(),
            "weights": {name: [tensor.data_ptr(), tensor.nbytes] for name, tensor in WEIGHTS.items()},
            "thread": threading.get_native_id()}


def inner(request, activation):
    if request == ["abort"]:
        os.abort()


def outer():
    activation = torch.ones(7 * MIB, dtype=torch.uint8, device="cuda")
    scratch = torch.ones(20 * MIB, dtype=torch.uint8, device="cuda")
    del scratch  # It stays in the allocator's cache.
    handshake.ready(truth())
    for request in handshake.requests():
        inner(request, activation)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    threading.Thread(target=threading.Event().wait, name="waits-for-ever", daemon=True).start()
    outer()
