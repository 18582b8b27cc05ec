"""A heap that is hard to read: several interpreters, and a collector at work.

    python tests/targets/heap_trouble.py

Prints the ids of a list and an object in it that another interpreter made, or null where there can be none, then READY.
After a line it says READY again out of the middle of a collection, and after another one when that is over.
"""
import gc
import json
import os

import handshake

SCRIPT = """
import json, os
class Made:
    pass
held = [Made()]
os.write(%d, json.dumps([id(held), id(held[0])]).encode())
"""


def of_another_interpreter():
    """What another interpreter made, and something that keeps that one."""
    try:
        import _interpreters as interpreters
    except ImportError:
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            return None, None
    try:
        other = interpreters.create("legacy")
    except TypeError:
        other = interpreters.create()
    reading, writing = os.pipe()
    interpreters.run_string(other, SCRIPT % writing)
    return other, json.loads(os.read(reading, 1000))


def hold(phase, info):
    if phase == "start":
        handshake.ready()
        handshake.hold()


def main():
    keeps, ids = of_another_interpreter()
    gc.disable()
    handshake.ready(ids)
    handshake.hold()
    gc.callbacks.append(hold)
    gc.collect()
    gc.callbacks.clear()
    handshake.ready()
    handshake.hold()
    del keeps


if __name__ == "__main__":
    main()
