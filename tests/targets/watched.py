"""Tensors that come and go when told, on the CPU first and on a GPU later.

    python tests/targets/watched.py

Begins with three tensors of [1000, 1000] and a view of one, all on the CPU. Requests: "gpu" makes one on the device,
"clear" drops those of the CPU; each is answered with the truth and READY.
"""
import gc

import handshake
import torch


def truth():
    """As gpu_mem_track and pytorch_memlab count: each tensor that Python has, views with what they show."""
    sums = {}
    for tensor in (o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)):
        of = sums.setdefault(str(tensor.device), {"tensors": 0, "elements": 0, "bytes": 0, "of_unknown_size": 0})
        of["tensors"] += 1
        of["elements"] += tensor.numel()
        of["bytes"] += tensor.numel() * tensor.element_size()
    return sums


def main():
    kept = [torch.zeros(1000, 1000) for _ in range(3)]
    views = [kept[0][:10]]
    on_gpu = []
    handshake.ready(truth())
    for request, *_ in handshake.requests():
        if request == "gpu":
            on_gpu.append(torch.zeros(1 << 20, device="cuda"))
            on_gpu.append(on_gpu[0].view(2, -1))
        else:
            kept.clear()
            views.clear()
        handshake.ready(truth())


if __name__ == "__main__":
    main()
