"""Compiles, runs and drops one cell after the other, as a notebook does: code objects, and their names, lie
where those of dropped cells lay.

    python tests/targets/reused_code.py [--free]

Cell N is file "<cell N>" with function cell_N. By default it prints the address of the cell's code object,
then READY, and stands still inside cell_N until a line comes in; with --free it runs as fast as it can
after READY. Ends when stdin closes. Pure Python, 3.8 and newer.
"""
import gc
import itertools
import os
import sys
import threading

# Without a GIL code objects die only in a collection.
COLLECT = "t" in sys.abiflags


def stand_still():
    print("READY", flush=True)
    if not sys.stdin.readline():
        os._exit(0)


def run(number, inside):
    code = compile("def cell_%d():\n    inside()\ncell_%d()" % (number, number), "<cell %d>" % number, "exec")
    print(id(code)) if inside is stand_still else None
    namespace = {"inside": inside}
    exec(code, namespace)
    namespace.clear()  # the function and its globals refer to each other
    del code
    if COLLECT and inside is stand_still:
        gc.collect()


def work():
    """Some cells are over before a reader can look twice, some last a little."""
    return sum(range(next(LENGTHS)))


LENGTHS = itertools.cycle([300, 300, 3000, 10000, 30000])


def main():
    free = sys.argv[1:] == ["--free"]
    if free:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        print("READY", flush=True)
    for number in itertools.count():
        run(number, work if free else stand_still)


if __name__ == "__main__":
    main()
