"""A job whose objects are damaged on request, as a stray pointer of C would, and made whole again.

    python tests/targets/heap_damage.py [--objects N]

After READY: `damage SEED N` writes to N words of tensors, lists, dictionaries and what these lead to; `sized` makes a list as
long as a mapping of a gigabyte; `classes` makes 5,000 classes bases of each other; `misfits N` gives N of 60 tensors another number of elements than their sizes; `whole` undoes it. Each is answered by READY. Nothing runs on what is damaged: it only waits.
"""
import argparse
import ctypes
import gc
import mmap
import random

import handshake
import torch
from torch import nn

WORD = 8
MAP_NORESERVE = 0x4000  # Linux; not in `mmap` before Python 3.13.
HUGE = [1 << 20, 1 << 26, (1 << 26) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]


def word_at(address):
    return int.from_bytes(ctypes.string_at(address, WORD), "little")


class Damage:
    """What was written where, to be taken back."""

    def __init__(self):
        self.before = []

    def write(self, address, word):
        self.before.append((address, ctypes.string_at(address, WORD)))
        ctypes.memmove(address, (word & (1 << 64) - 1).to_bytes(WORD, "little"), WORD)

    def undo(self):
        while self.before:
            ctypes.memmove(*self.before.pop(), WORD)


def places(tensors, lists, dicts):
    """Where a stray word would hurt: addresses and numbers of words."""
    for tensor in tensors:
        head = id(tensor) + 16
        pointers = [word_at(head), word_at(head + WORD)]
        impl = next(p for p in pointers if p > 1 << 16 and p % WORD == 0)
        yield impl, 24
        # Its storage, and what autograd knows of it.
        for offset in (3, 4):
            part = word_at(impl + WORD * offset)
            if part > 1 << 16 and part % WORD == 0:
                yield part, 12
    for held in lists:
        yield id(held) + 16, 3
        yield word_at(id(held) + 24), min(len(held), 64)
    for held in dicts:
        yield id(held) + 16, 4
        yield word_at(id(held) + 32), 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=20_000)
    words = parser.parse_args()
    gc.disable()
    large = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    large_at = ctypes.addressof(ctypes.c_char.from_buffer(large))
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))).to("cuda")
    loss = model(torch.ones(4, 16, device="cuda")).pow(2).sum()
    tensors = [torch.ones(64, device="cuda") for _ in range(50)] + list(model.parameters()) + [loss]
    odd = [torch.ones(123, 77, device="cuda") for _ in range(60)]
    lists = [[tensors[n % 50], [n]] for n in range(words.objects)]
    dicts = [{"tensor": tensors[n % 50], n: lists[n]} for n in range(words.objects // 4)]
    known = list(places(tensors, lists[:200], dicts[:200]))
    objects = [id(thing) for thing in [*tensors, *lists[:50], *dicts[:50]]]
    damage = Damage()
    handshake.ready({"allocated": torch.cuda.memory_allocated()})
    for request in handshake.requests():
        if request[0] == "damage":
            chance = random.Random(int(request[1]))
            for _ in range(int(request[2])):
                address, count = chance.choice(known)
                word = chance.choice([
                    chance.getrandbits(64), chance.getrandbits(46), chance.randrange(64), chance.choice(HUGE),
                    chance.choice(objects), chance.choice(objects) + 8 * chance.randrange(64),
                    large_at + 8 * chance.randrange(1 << 26), chance.choice(known)[0], 0,
                ])
                damage.write(address + WORD * chance.randrange(count), word)
        elif request[0] == "misfits":
            for tensor in odd[: int(request[1])]:
                impl = next(places([tensor], [], []))[0]
                number = [n for n in range(32) if word_at(impl + WORD * n) == tensor.numel()]
                assert len(number) == 1, number
                damage.write(impl + WORD * number[0], tensor.numel() + 1)
        elif request[0] == "classes":
            # Each has the next one in its `__mro__`, and the last one the first.
            classes = [type("Link", (), {}) for _ in range(5000)]
            first = classes[0]()
            following = [*map(id, classes[1:]), id(classes[0])]
            for known, after in zip(map(id, classes), following):
                damage.write(word_at(known + 344) + 24 + WORD, after)
        elif request[0] == "sized":
            damage.write(id(lists[0]) + 16, 1 << 26)
            damage.write(id(lists[0]) + 24, large_at)
            damage.write(id(lists[0]) + 32, 1 << 26)
        else:
            damage.undo()
        handshake.ready()


if __name__ == "__main__":
    main()
