"""A program that comes to PyTorch and to CUDA only when told.

    python tests/targets/late_cuda.py

Requests: "import" loads PyTorch, "use" allocates 48 MiB on the device; each is answered with READY.
"""
import handshake


def load():
    global torch
    import torch


def use():
    return torch.empty(48 << 20, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    handshake.ready()
    for request, *_ in handshake.requests():
        if request == "import":
            load()
        elif request == "use":
            kept = use()
        handshake.ready()
