"""Loops whose every allocation tells by its size which step it belongs to, through the fake allocator.

    python tests/targets/counted_steps.py LIBRARY

For any CPython from 3.8 on, standard library only. After READY each line names a loop: `local`, `closed` (the step is in a
cell) or `named` (a global variable); it is answered by DONE with the allocations made. A size is epoch * 2^20 plus the last
20 bits of the step, which has two digits of 30 bits in the last epochs. Size 2^40 is between the loops.
"""
import ctypes
import sys
import threading
import time

import handshake

library = ctypes.CDLL(sys.argv[1])
library.fake_malloc.restype = ctypes.c_ulonglong
library.fake_malloc.argtypes = [ctypes.c_longlong]
library.fake_free.argtypes = [ctypes.c_ulonglong, ctypes.c_longlong]
EPOCHS, STEPS = 6, 60
BETWEEN = 1 << 40
counted = 0
made = 0


def begin(epoch):
    return 1 << 33 if epoch >= EPOCHS - 2 else 250


def allocate(size):
    global made
    library.fake_free(library.fake_malloc(size), size)
    made += size != BETWEEN


def pause():
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass


def validate(epoch, first):
    # As many variables as `epoch_of`: numbers where its step was.
    for number in range(9000, 9050):
        allocate(BETWEEN)
    return number


def on_other_thread(size):
    thread = threading.Thread(target=allocate, args=(size,))
    thread.start()
    thread.join()


def epoch_of(epoch, first):
    for step in range(first, first + STEPS):
        size = (epoch << 20) + (step & 0xFFFFF)
        allocate(size)
        pause()
        if step % 10 == 0:
            on_other_thread(size)
        allocate(size)


def local():
    for epoch in range(EPOCHS):
        epoch_of(epoch, begin(epoch))
        validate(epoch, 0)


def closed():
    for epoch in range(EPOCHS):
        for step in range(begin(epoch), begin(epoch) + STEPS):
            pause()
            (lambda: allocate((epoch << 20) + (step & 0xFFFFF)))()


def named():
    global counted
    for epoch in range(EPOCHS):
        for counted in range(begin(epoch), begin(epoch) + STEPS):
            pause()
            allocate((counted & 0xFFFFF))
            globals()["later_%d" % counted] = None  # The dictionary grows, and moves.


if __name__ == "__main__":
    handshake.ready()
    for loop, in handshake.requests():
        made = 0
        {"local": local, "closed": closed, "named": named}[loop]()
        print("DONE", made, flush=True)
