"""Tensors that are far from every variable, or that only C code or the stack of a running function leads to, and their names.

    python tests/targets/far_names.py

Prints {"names": {id: name}, "addresses": {address: name}} and READY.
"""
import concurrent.futures
import ctypes
import queue
import signal
import sys
import threading

import handshake
import torch
from torch.utils.dlpack import to_dlpack

NAMES, ADDRESSES = {}, {}
# A queue of C has had a list of items up to 3.12.
ITEMS = ".<items>" if sys.version_info < (3, 13) else ""
# ctypes tells where it keeps objects since 3.13; the work of a pool has other attributes since 3.14, and names are qualified since 3.11.
OBJECT = "<object>" if sys.version_info < (3, 13) else "_objects"
ARGUMENT = ".args[0]" if sys.version_info < (3, 14) else ".task[1][0]"
HANDLER = "handler" if sys.version_info < (3, 11) else "handler_that_keeps.<locals>.handler"


def named(name):
    """A tensor that should be called so."""
    tensor = torch.zeros(1 << 17, device="cuda")
    NAMES[id(tensor)] = name
    return tensor


class Part:
    """An object with attributes."""


def far_from_any_variable():
    """What ten attributes, a key and an index lead to."""
    names = ["trainer", "loop", "epoch", "batch", "progress", "state", "results", "store", "metrics", "val"]
    root = last = Part()
    for name in names:
        setattr(last, name, Part())
        last = getattr(last, name)
    path = ".".join(["main: root", *names])
    # Small results, each of which keeps a graph.
    weight = torch.ones(1 << 17, device="cuda", requires_grad=True)
    last.losses = [(weight * 2).exp().sum() for _ in range(20)]
    NAMES.update({id(loss): f"{path}.losses[{n}]" for n, loss in enumerate(last.losses)})
    last.items = {"loss": [named(path + '.items["loss"][0]'), named(path + '.items["loss"][1]')]}
    return root


class Loader:
    """Yields batches, and keeps them."""

    def __init__(self):
        self.seen = []

    def __iter__(self):
        while True:
            self.seen.append({"input": named(f'main: <stack>.<items>.<locals>.self.seen[{len(self.seen)}]["input"]')})
            yield self.seen[-1]["input"].shape


def handler_that_keeps():
    """Only the table of signal handlers in C has the function; the variables that its tensors are in are its own."""
    kept = [named(f"no variable: <function {HANDLER}>.__closure__[0].cell_contents[0]")]
    signal.signal(signal.SIGUSR1, lambda *_: None)

    def handler(*_):
        return kept

    signal.signal(signal.SIGUSR1, handler)


def in_capsules():
    """DLPack capsules that nobody has taken: of a tensor, and of one whose strides are made others for it, in C++ alone, as older
    versions of PyTorch do with all."""
    tensors = [torch.zeros(1 << 17, device="cuda"), torch.zeros(1, 1 << 17, device="cuda")]
    ADDRESSES.update({tensor.data_ptr(): f"main: capsules[{n}]" for n, tensor in enumerate(tensors)})
    return [to_dlpack(tensor) for tensor in tensors]


def main():
    root = far_from_any_variable()
    handler_that_keeps()
    capsules = in_capsules()
    items, started, blocked = queue.SimpleQueue(), threading.Event(), threading.Event()
    for n in range(3):
        items.put(None)
    for n in range(7):
        items.put(named(f"main: items{ITEMS}[{n + 3}]"))
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(lambda: (started.set(), blocked.wait()))
    started.wait()
    for n in range(2):
        pool.submit(print, named(f"main: pool._work_queue{ITEMS}[{n}]{ARGUMENT}"))
    wrapped = ctypes.py_object(named(f"main: wrapped.{OBJECT}"))
    array = (ctypes.py_object * 4)()
    array[2] = named(f'main: array.{OBJECT}["2"]')
    for number, _ in enumerate(Loader()):
        if number == 2:
            handshake.ready({"names": NAMES, "addresses": ADDRESSES})
            handshake.hold()
            blocked.set()
            return root, capsules, items, wrapped, array


if __name__ == "__main__":
    main()
