"""A thread that calls short functions as fast as it can, each from a line of its own: a sample that pairs
a function with another one's line is of no instant.

    python tests/targets/busy_pairs.py [--threads N]

With --threads so many threads do it, all with the same functions, and the main thread waits. Prints {"pid", "caller", "pairs": [[line, callee], ...]}, then READY once it spins; ends
when stdin closes. Pure Python, 3.8 and newer.
"""
import json
import os
import sys
import threading


def one():
    return 1


def two(value=None):
    return value


def three():
    return two_deep()


def two_deep():
    return 3


class Four:
    def four(self):
        return self

    @property
    def five(self):
        return 5


def six(values):
    for value in values:
        yield value


def spin():
    instance = Four()
    numbers = (1, 2)
    while True:
        one()
        two()
        three()
        instance.four()
        instance.five
        for _ in six(numbers):
            one()
        sorted(numbers, key=two)


def main():
    first = spin.__code__.co_firstlineno
    pairs = [
        [first + 4, "one"],
        [first + 5, "two"],
        [first + 6, "three"],
        [first + 7, "four"],
        [first + 8, "five"],
        [first + 9, "six"],
        [first + 10, "one"],
        [first + 11, "two"],
    ]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(json.dumps({"pid": os.getpid(), "caller": "spin", "pairs": pairs}))
    if sys.argv[1:2] == ["--threads"]:
        threads = [threading.Thread(target=spin, daemon=True) for _ in range(int(sys.argv[2]))]
        for thread in threads:
            thread.start()
        print("READY", flush=True)
        threads[0].join()
    print("READY", flush=True)
    spin()


if __name__ == "__main__":
    main()
