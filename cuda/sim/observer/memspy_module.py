"""One forward and backward pass of a module: `memspy dry-run --module FILE:NAME --input SHAPE`."""
import importlib
import importlib.util
import json
import os
import socket
import sys

import torch


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


def size(count):
    """As memspy writes it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024


def bytes_of(some):
    return size(sum(tensor.nbytes for tensor in some))


def refuse(text):
    """Tells memspy what is wrong with its arguments: one line, instead of one here and one there."""
    report = {"event": "refused", "pid": os.getpid(), "rank": None, "torch": torch.__version__, "steps": 0, "out_of_memory": 0,
              "error": text, "devices": [], "marks": [], "reads": []}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["MEMSPY_DRY_RUN"])
        connection.sendall(json.dumps(report).encode() + b"\n")
        connection.recv(1)
    os._exit(1)


def main():
    place, *shapes = sys.argv[1:]
    try:
        module = made(place)
        inputs = [sample(text) for text in shapes]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        refuse(f"--module {place} --input {' '.join(shapes)}: {type(error).__name__}: {error}")
    some = torch.zeros(64, 64, device="cuda")
    torch.nn.functional.linear(some, some, some[0])  # cuBLAS's work spaces are not the module's
    before = torch.cuda.memory_allocated()
    results = forward(module, inputs)
    kept = torch.cuda.memory_allocated() - before
    print(f"parameters and buffers  {bytes_of([*module.parameters(), *module.buffers()])}")
    if not results:
        return print("no result depends on a parameter: there is no backward pass", flush=True)
    backward(results)
    print(f"kept for backward       {size(kept)}")
    print(f"gradients               {bytes_of(it.grad for it in module.parameters() if it.grad is not None)}", flush=True)


for function in (made, sample, forward, backward, main):  # their lines are shown without memspy's folder
    function.__code__ = function.__code__.replace(co_filename=os.path.basename(__file__))
main()
