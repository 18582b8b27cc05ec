#!/usr/bin/env python3
"""Prints what PyTorch allocates for single convolutions and recurrent layers, one JSON line each.

    probe.py > OUT          on a real GPU, and on the simulated device: the difference is cuDNN's work space

Each line has the shape and the sizes of all allocations, in order, of a first and a second forward and
backward pass. The first lines say what a process holds on the device after each stage of its life.
"""
import json
import sys

import torch
from torch import nn


def allocations(action):
    """The sizes that `action` allocates, in order."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(context=None, max_entries=100000)
    result = action()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    return result, [entry["size"] for entry in trace if entry["action"] == "alloc"]


def outside():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def say(**row):
    print(json.dumps(row), flush=True)


def stages():
    first = outside()  # the context is made by this call
    yield "context", first
    torch.zeros(1000, device="cuda")
    yield "first kernel", outside()
    a = torch.randn(256, 256, device="cuda", requires_grad=True)
    yield "random numbers", outside()
    (a @ a).sum().backward()
    yield "matrix product", outside()
    (a.bfloat16() @ a.bfloat16()).sum().backward()
    yield "matrix product, bf16", outside()
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    yield "attention, bf16", outside()
    q = torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    yield "attention", outside()
    nn.functional.cross_entropy(a, torch.zeros(256, dtype=torch.long, device="cuda")).backward()
    yield "cross entropy", outside()
    x = torch.randn(4, 16, 32, 32, device="cuda")
    nn.Conv2d(16, 16, 3).cuda()(x).sum().backward()
    yield "convolution", outside()
    nn.BatchNorm2d(16).cuda()(x).sum().backward()
    yield "batch normalisation", outside()
    nn.LSTM(64, 64).cuda()(torch.randn(5, 4, 64, device="cuda"))[0].sum().backward()
    yield "recurrent layer", outside()
    optimizer = torch.optim.AdamW([a])
    optimizer.step()
    yield "optimizer", outside()
    torch.fft.fft(a.detach())
    yield "Fourier transform", outside()
    torch.linalg.inv(a.detach() + torch.eye(256, device="cuda"))
    yield "linear algebra", outside()


# in, out, kernel, stride, padding, groups, height, width
CONVOLUTIONS_2D = [
    (3, 64, 7, 2, 3, 1, 224, 224), (64, 64, 1, 1, 0, 1, 56, 56), (64, 64, 3, 1, 1, 1, 56, 56),
    (64, 256, 1, 1, 0, 1, 56, 56), (256, 64, 1, 1, 0, 1, 56, 56), (256, 128, 1, 1, 0, 1, 56, 56),
    (128, 128, 3, 2, 1, 1, 56, 56), (128, 512, 1, 1, 0, 1, 28, 28), (256, 512, 1, 2, 0, 1, 56, 56),
    (128, 128, 3, 1, 1, 1, 28, 28), (256, 256, 3, 2, 1, 1, 28, 28), (512, 1024, 1, 2, 0, 1, 28, 28),
    (256, 256, 3, 1, 1, 1, 14, 14), (256, 1024, 1, 1, 0, 1, 14, 14), (1024, 256, 1, 1, 0, 1, 14, 14),
    (512, 512, 3, 2, 1, 1, 14, 14), (512, 512, 3, 1, 1, 1, 7, 7), (512, 2048, 1, 1, 0, 1, 7, 7),
    (1024, 2048, 1, 2, 0, 1, 14, 14), (3, 768, 16, 16, 0, 1, 224, 224), (3, 128, 3, 1, 1, 1, 64, 64),
    (128, 128, 3, 1, 1, 1, 64, 64), (128, 256, 3, 1, 1, 1, 32, 32), (256, 256, 3, 1, 1, 1, 32, 32),
    (384, 384, 3, 1, 1, 1, 16, 16), (768, 384, 3, 1, 1, 1, 16, 16), (128, 128, 3, 2, 1, 1, 64, 64),
    (128, 3, 3, 1, 1, 1, 64, 64), (3, 64, 3, 1, 1, 1, 128, 128), (64, 128, 3, 1, 1, 1, 64, 64),
    (128, 256, 3, 1, 1, 1, 32, 32), (96, 96, 3, 1, 1, 96, 56, 56), (384, 384, 7, 1, 3, 384, 14, 14),
    (256, 256, 3, 1, 1, 32, 28, 28), (3, 32, 5, 1, 2, 1, 32, 32), (64, 64, 5, 1, 2, 1, 32, 32), (16, 32, 3, 1, 1, 1, 512, 512),
]
# in, out, kernel, stride, padding, groups, length
CONVOLUTIONS_1D = [
    (1, 512, 10, 5, 0, 1, 80000), (512, 512, 3, 2, 0, 1, 15999), (512, 512, 2, 2, 0, 1, 499),
    (80, 768, 3, 1, 1, 1, 3000), (768, 768, 3, 2, 1, 1, 3000), (768, 768, 128, 1, 64, 16, 249), (64, 64, 3, 1, 1, 1, 16000),
]
# kind, input, hidden, layers, bidirectional, projection, steps, batch
RECURRENT = [
    ("LSTM", 256, 512, 1, False, 0, 64, 32), ("LSTM", 256, 512, 2, False, 0, 64, 32), ("LSTM", 650, 650, 3, False, 0, 128, 64),
    ("LSTM", 128, 128, 1, True, 0, 20, 16), ("LSTM", 512, 512, 2, True, 0, 100, 8), ("LSTM", 1024, 1024, 4, False, 0, 32, 128),
    ("LSTM", 64, 64, 1, False, 0, 200, 256), ("LSTM", 256, 512, 1, False, 128, 64, 32), ("LSTM", 256, 512, 1, False, 0, 1, 32),
    ("LSTM", 256, 512, 1, False, 0, 128, 32), ("LSTM", 256, 512, 1, False, 0, 64, 64), ("LSTM", 512, 512, 1, False, 0, 64, 32),
    ("LSTM", 256, 1024, 1, False, 0, 64, 32), ("LSTM", 256, 512, 3, False, 0, 64, 32),
    ("GRU", 256, 512, 1, False, 0, 64, 32), ("GRU", 256, 512, 2, False, 0, 64, 32), ("GRU", 512, 512, 2, True, 0, 60, 48),
    ("GRU", 512, 1024, 2, False, 0, 49, 48), ("GRU", 128, 128, 1, True, 0, 20, 16), ("GRU", 256, 512, 1, False, 0, 128, 32),
    ("RNN", 256, 512, 1, False, 0, 64, 32), ("RNN", 256, 512, 2, True, 0, 64, 32),
]
# query and key lengths, heads, width of a head, batch, causal
ATTENTION = [(512, 512, 12, 64, 8, True), (1024, 1024, 12, 64, 8, True), (197, 197, 12, 64, 48, False), (256, 256, 12, 64, 32, False),
             (1024, 1024, 8, 32, 32, False), (128, 384, 12, 64, 8, False), (2048, 2048, 32, 128, 1, True)]


def passes(module, inputs, output=lambda y: y):
    found = {}
    for turn in ("first", "second"):
        y, found[f"{turn} forward"] = allocations(lambda: output(module(inputs)))
        gradient = torch.zeros_like(y)
        _, found[f"{turn} backward"] = allocations(lambda: y.backward(gradient))
        del y
    return found


def convolutions(dtype, channels_last, batches):
    for batch in batches:
        for row in CONVOLUTIONS_2D + CONVOLUTIONS_1D:
            before, after, kernel, stride, padding, groups, *size = row
            if len(size) == 1 and channels_last:
                continue
            kind = nn.Conv2d if len(size) == 2 else nn.Conv1d
            module = kind(before, after, kernel, stride, padding, groups=groups, bias=False).cuda().to(dtype)
            inputs = torch.zeros(batch, before, *size, device="cuda", dtype=dtype)
            if channels_last:
                module, inputs = module.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
            inputs.requires_grad_()
            say(kind="convolution", dtype=str(dtype), channels_last=channels_last, batch=batch, shape=row, **passes(module, inputs))


def main():
    torch.backends.cudnn.benchmark = "benchmark" in sys.argv
    properties = torch.cuda.get_device_properties(0)
    say(kind="device", name=properties.name, torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
        total=properties.total_memory, free_at_start=torch.cuda.mem_get_info()[0])
    for name, held in stages():
        say(kind="stage", stage=name, outside=held)
    for dtype, channels_last, batches in ((torch.float32, False, (1, 8, 32, 64)), (torch.bfloat16, True, (8, 64)),
                                          (torch.bfloat16, False, (8, 64)), (torch.float32, True, (32,))):
        convolutions(dtype, channels_last, batches)
    for dtype in (torch.float32, torch.bfloat16):
        for name, before, hidden, layers, both, projection, steps, batch in RECURRENT:
            words = {"proj_size": projection} if projection else {}
            module = getattr(nn, name)(before, hidden, layers, bidirectional=both, **words).cuda().to(dtype)
            inputs = torch.zeros(steps, batch, before, device="cuda", dtype=dtype, requires_grad=True)
            say(kind="recurrent", dtype=str(dtype), shape=[name, before, hidden, layers, both, projection, steps, batch],
                **passes(module, inputs, lambda y: y[0]))
    for dtype in (torch.float32, torch.bfloat16):
        for queries, keys, heads, width, batch, causal in ATTENTION:
            query = torch.zeros(batch, heads, queries, width, device="cuda", dtype=dtype, requires_grad=True)
            key = torch.zeros(batch, heads, keys, width, device="cuda", dtype=dtype, requires_grad=True)
            attend = lambda q: nn.functional.scaled_dot_product_attention(q, key, key, is_causal=causal)
            say(kind="attention", dtype=str(dtype), shape=[queries, keys, heads, width, batch, causal], **passes(attend, query))
    say(kind="stage", stage="end", outside=outside())


if __name__ == "__main__":
    main()
