"""One forward and backward pass of a module: `memspy dry-run --module FILE:NAME --input SHAPE`."""
import importlib
import importlib.util
import os
import sys

import torch

GIB = 1 << 30


def made(place):
    """What NAME of a file, or of an importable module, makes."""
    source, name = place.rsplit(":", 1)
    if source.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(source)))
        source = os.path.splitext(os.path.basename(source))[0]
    found = getattr(importlib.import_module(source), name)
    with torch.device("cuda"):
        return (found if isinstance(found, torch.nn.Module) else found()).cuda()


def sample(text):
    """Zeros of a shape such as 8x3x224x224, or 8x512:int64."""
    shape, _, dtype = text.partition(":")
    return torch.zeros([int(size) for size in shape.split("x")], dtype=getattr(torch, dtype or "float32"), device="cuda")


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def forward(module, inputs):
    return [result for result in tensors(module(*inputs)) if result.requires_grad]


def backward(results):
    sum(result.float().sum() for result in results).backward()


def main():
    place, *shapes = sys.argv[1:]
    module = made(place)
    inputs = [sample(text) for text in shapes]
    one = torch.zeros(1, 1, device="cuda")
    torch.nn.functional.linear(one, one, one[0])  # cuBLAS's work spaces are not the module's
    before = torch.cuda.memory_allocated()
    results = forward(module, inputs)
    kept = torch.cuda.memory_allocated() - before
    if results:
        backward(results)
    weights = [*module.parameters(), *module.buffers()]
    gradients = [it.grad for it in module.parameters() if it.grad is not None]
    print(f"parameters and buffers  {sum(it.nbytes for it in weights) / GIB:.3f} GiB")
    print(f"kept for backward       {kept / GIB:.3f} GiB")
    print(f"gradients               {sum(it.nbytes for it in gradients) / GIB:.3f} GiB", flush=True)


for function in (made, sample, forward, backward, main):  # their lines are shown without memspy's folder
    function.__code__ = function.__code__.replace(co_filename=os.path.basename(__file__))
main()
