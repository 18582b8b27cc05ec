"""Leaks 1 MiB a step under names that a shell would take apart, and says READY after some steps.

    python tests/targets/shell_names.py
"""
import time

import handshake
import torch

kept = {}


def keep(step):
    kept["it's $HOME; `step` %d" % step] = torch.zeros(1 << 18, device="cuda")


def main():
    for step in range(100_000):
        keep(step)
        if step == 8:
            handshake.ready()
        time.sleep(0.05)


main()
