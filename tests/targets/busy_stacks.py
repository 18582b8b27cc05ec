"""Threads that never hold still, for torn samples and for timing: every stack they can have is known.

    python tests/targets/busy_stacks.py [--threads N] [--depth N] [--steady]

Thread K runs level_0 -> level_1 -> ... of its own: a sample is whole if and only if the levels follow each
other without a gap, outermost first, under worker(). Churning (the default), the depth changes all the
time; with --steady every thread spins on one line of the deepest level, so the stack never changes while
the thread runs. Pure Python, 3.8 and newer; READY when all threads are busy; ends when stdin closes.
"""
import argparse
import json
import os
import sys
import threading
import time

LEVEL = """
def level_{number}(depth):
    if depth > {number}:
        return level_{next}(depth)
    return {number}
"""
LAST_CHURNING = """
def level_{number}(depth):
    return {number}
"""
LAST_STEADY = """
def level_{number}(depth):
    started.release()
    while True: pass
"""


def levels(depth, steady):
    """A chain of `depth` functions, each calling the next one."""
    source = "".join(LEVEL.format(number=number, next=number + 1) for number in range(depth - 1))
    source += (LAST_STEADY if steady else LAST_CHURNING).format(number=depth - 1)
    namespace = {"started": started}
    exec(compile(source, "levels_of_busy_stacks.py", "exec"), namespace)
    return namespace["level_0"]


def worker(first_level, depth):
    first_level(depth)  # in steady mode this never returns
    started.release()
    while True:
        for deepest in range(depth):
            first_level(deepest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=20, help="frames below worker()")
    parser.add_argument("--steady", action="store_true")
    args = parser.parse_args()
    sys.setrecursionlimit(max(1000, args.depth + 100))
    sys.setswitchinterval(0.0005)  # let the threads take turns often
    for number in range(args.threads):
        arguments = (levels(args.depth, args.steady), args.depth)
        threading.Thread(target=worker, args=arguments, name="busy-%d" % number, daemon=True).start()
    for _ in range(args.threads):
        started.acquire()
    print(json.dumps({"pid": os.getpid(), "threads": args.threads, "depth": args.depth, "steady": args.steady}))
    print("READY", flush=True)
    while sys.stdin.readline():
        time.sleep(0)
    os._exit(0)


started = threading.Semaphore(0)

if __name__ == "__main__":
    main()
