"""A loop in code that is in no file, as a notebook runs it: compiled from text that only `linecache` has."""
import linecache

import handshake
import torch

NAME = "/tmp/ipykernel_1/2718281828.py"
CELL = """\
def cell(count):
    kept = []
    for i in range(count):
        kept.append(torch.zeros(1000, 1000, device="cuda"))  # a line of a cell
        pause(0.002)
    return kept
"""


def main():
    import time
    linecache.cache[NAME] = (len(CELL), None, CELL.splitlines(True), NAME)
    scope = {"torch": torch, "pause": time.sleep}
    exec(compile(CELL, NAME, "exec"), scope)
    torch.zeros(1, device="cuda")
    handshake.ready()
    for _ in handshake.requests():
        scope["cell"](100)
        print("DONE", flush=True)


if __name__ == "__main__":
    main()
