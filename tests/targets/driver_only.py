"""Memory of the CUDA driver without PyTorch: 300 MiB, taken at the word `go`.

    python tests/targets/driver_only.py [--importing]

With --importing the first libraries of PyTorch are there, as while it is imported.
"""
import ctypes
import importlib.util
import os
import sys

import handshake

if "--importing" in sys.argv:
    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    ctypes.CDLL(f"{folder}/lib/libc10.so")
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
handshake.ready()
for _ in handshake.requests():
    cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(300 << 20))
    print("HELD", flush=True)
