"""Memory of the CUDA driver without PyTorch: 300 MiB, taken at the word `go`."""
import ctypes

import handshake

cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
handshake.ready()
for _ in handshake.requests():
    cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(300 << 20))
    print("HELD", flush=True)
