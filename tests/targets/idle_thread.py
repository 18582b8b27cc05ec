"""Allocates without pause in the main thread while a thread named "idler" waits.

    python tests/targets/idle_thread.py

READY once both run; ends when stdin closes. 64 MiB stay, and between 0 and 16 MiB come and go.
"""
import select
import sys
import threading
import time

import handshake
import torch


def idle():
    threading.Event().wait()


def megabytes(count):
    return torch.empty(count << 20, dtype=torch.uint8, device="cuda")


def work():
    kept = []
    for _ in range(16):
        kept.append(megabytes(1))
        spin()


def spin():
    until = time.monotonic() + 0.002
    while time.monotonic() < until:
        pass


if __name__ == "__main__":
    threading.Thread(target=idle, name="idler", daemon=True).start()
    weights = megabytes(64)
    handshake.ready()
    while not select.select([sys.stdin], [], [], 0)[0]:
        work()
