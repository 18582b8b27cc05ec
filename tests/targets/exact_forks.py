"""Forks and executes while it is recorded, and goes on allocating.

    python tests/targets/exact_forks.py

After READY: the first line written lets it fork three children, of which one becomes another program, and then allocate
100 tensors; it says how many children ended well. The second line makes it another program itself.
"""
import os

import handshake
import torch

held = [torch.empty(1_000_000, device="cuda")]
handshake.ready()
handshake.hold()
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        made = [[0] * 1000 for _ in range(100)]
        if number == 0:
            os.execvp("true", ["true"])
        os._exit(0)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children), flush=True)
held += [torch.empty(1000 + i, device="cuda") for i in range(100)]
print("ALLOCATED", flush=True)
handshake.hold()
os.execvp("sleep", ["sleep", "1"])
