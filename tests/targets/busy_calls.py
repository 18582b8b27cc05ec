"""A thread that calls through C all the time, as modules of PyTorch do: through `__call__`, `map` and `sum`, from several functions at one depth.

    python tests/targets/busy_calls.py

In between it computes checksums for some microseconds each. Prints {"pid", "calls": [[caller, callee], ...]}, then READY; ends when stdin closes.
Pure Python, 3.8 and newer.
"""
import json
import os
import sys
import threading
import zlib

DATA = b"x" * 20_000
CALLS = [
    ["<module>", "main"],
    ["main", "__call__"],
    ["__call__", "wrapped"],
    ["wrapped", "call_impl"],
    ["call_impl", "outer"],
    ["call_impl", "inner"],
    ["outer", "__call__"],
    ["outer", "filtered"],
    ["outer", "compute_loss"],
    ["outer", "checksum"],
    ["outer", "<genexpr>"],
    ["<genexpr>", "checksum"],
    ["filtered", "__call__"],
    ["filtered", "checksum"],
    ["compute_loss", "__call__"],
    ["compute_loss", "sample"],
]


class Module:
    def __call__(self, *args, **words):
        return self.wrapped(*args, **words)

    def wrapped(self, *args, **words):
        return self.call_impl(*args, **words)

    def call_impl(self, *args, **words):
        return self.forward(*args, **words)


class Inner(Module):
    def inner(self, x):
        zlib.crc32(DATA)
        return x

    forward = inner


class Sampler:
    def sample(self, x):
        first = zlib.crc32(DATA)
        return zlib.crc32(DATA) + first + x

    __call__ = sample


class Outer(Module):
    def __init__(self):
        self.module, self.sampler = Inner(), Sampler()

    def outer(self, x):
        self.module(x)
        for _ in range(2):
            self.filtered(x)
        x = self.compute_loss(x, x, x)
        list(map(self.checksum, (1, 2)))
        return x + sum(self.checksum(i) for i in range(3))

    forward = outer

    def checksum(self, x):
        return zlib.crc32(DATA) & x

    def filtered(self, x):
        x = self.module(x)
        return list(map(self.checksum, (x, 2)))

    def compute_loss(self, x, y, z):
        return self.sampler(x) + self.module(y)


def main():
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    module = Outer()
    print(json.dumps({"pid": os.getpid(), "calls": CALLS}))
    print("READY", flush=True)
    while True:
        module(1)


if __name__ == "__main__":
    main()
