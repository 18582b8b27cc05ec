"""Allocates from stacks of every kind through the fake allocator, and writes down each with its own stack.

    python tests/targets/exact_stacks.py LIBRARY LOG [plain|deep|reuse|flood]

For any CPython from 3.8 on, standard library only. After READY it waits for a line, allocates, says DONE with how many
allocations it made, and waits again. Each line of LOG is JSON: address, size, native thread id, and the stack, innermost first,
of (name, file, line).
"""
import ctypes
import functools
import json
import sys
import threading
import time

import handshake

library = ctypes.CDLL(sys.argv[1])
library.fake_malloc.restype = ctypes.c_ulonglong
library.fake_malloc.argtypes = [ctypes.c_longlong]
library.fake_free.argtypes = [ctypes.c_ulonglong, ctypes.c_longlong]
log = open(sys.argv[2], "w")
writing = threading.Lock()
made = 0
FLOOD = 1_000_000


def stack_of(frame):
    frames = []
    while frame:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno or 0])
        frame = frame.f_back
    return frames


def allocate(size):
    global made
    stack = stack_of(sys._getframe()); address = library.fake_malloc(size)  # one line, so that both have it
    with writing:
        made += 1
        log.write(json.dumps([address, size, threading.get_native_id(), stack]) + "\n")
    library.fake_free(address, size)


def nested(depth, size):
    if depth:
        return nested(depth - 1, size)
    allocate(size)


def numbers(sizes):
    for size in sizes:
        allocate(size)
        yield size


def delegating(sizes):
    yield from numbers(sizes)


class Layer:
    def __call__(self, size):
        self.forward(size)

    def forward(self, size):
        allocate(size)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


@decorated
def through_decorator(size):
    [allocate(size + i) for i in range(2)]
    {i: allocate(size + i) for i in range(2)}


def many_ways(rounds):
    for i in range(rounds):
        nested(i % 110, 100 + i)
        for _ in delegating(range(1000, 1003)):
            allocate(2000 + i)
        list(map(allocate, (300, 301)))
        (lambda: allocate(400))()
        Layer()(500 + i)
        through_decorator(600)
        sorted([3, 1, 2], key=lambda x: allocate(700 + x) or x)
        exec("def inner(size):\n    allocate(size)\ninner(800)", {"allocate": allocate})
        try:
            allocate(900)
            raise ValueError
        except ValueError:
            allocate(901)

        class Body:
            allocate(902)


def reuse(count):
    """Code objects that live for one call, the next at the same address as the last."""
    for i in range(count):
        name = "once_%d" % i
        scope = {"allocate": allocate}
        exec(compile("\n" * (i % 50) + "def %s(size):\n    allocate(size)\n%s(%d)" % (name, name, 1000 + i), "<cell %d>" % i, "exec"), scope)
        del scope


def main():
    global made
    handshake.ready()
    handshake.hold()
    kind = sys.argv[3] if len(sys.argv) > 3 else "plain"
    if kind == "plain":
        spinning = True

        def spin():
            while spinning:
                sum(range(100))
        spinner = threading.Thread(target=spin, name="spinner")
        spinner.start()
        threads = [threading.Thread(target=many_ways, args=(30,), name="worker-%d" % i) for i in range(4)]
        for thread in threads:
            thread.start()
        many_ways(115)
        library.fake_in_c_thread(500)
        for thread in threads:
            thread.join()
        spinning = False
        spinner.join()
    elif kind == "deep":
        sys.setrecursionlimit(2000)
        for depth in (100, 150, 200, 500):
            nested(depth, depth)
    elif kind == "flood":
        started = time.perf_counter()
        library.fake_in_c_thread(FLOOD)
        made += FLOOD
        print("%d a second" % (2 * FLOOD / (time.perf_counter() - started)), flush=True)
    else:
        reuse(2500)
    log.close()
    print("DONE %d" % made, flush=True)
    handshake.hold()


main()
