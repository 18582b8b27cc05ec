"""The job of the check devices: trains with a fixed seed and logs each loss bit by bit.

    python jobs/devices.py STEPS GIB LOG

Requests: `truth` prints what torch.cuda says, `run` trains and prints DONE.
"""
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn

from gpt import Gpt

VOCABULARY, LENGTH = 4096, 128
steps, gib, log = int(sys.argv[1]), float(sys.argv[2]), open(sys.argv[3], "w", buffering=1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
model = Gpt(VOCABULARY, 512, 8, 6, dropout=0.1).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
# Contents that must survive; the log ends with their checksum.
ballast = torch.randint(0, 2**31, (max(1, int(gib * 2**30 / 8)),), device="cuda")
data = torch.randint(0, VOCABULARY, (64, 16, LENGTH + 1))


def step(number):
    ids = data[number % 64].cuda()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


log.write(f"{step(0).hex()}\n")
torch.cuda.synchronize()
print("READY", flush=True)
for line in sys.stdin:
    if line.strip() == "truth":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        print(f"{torch.cuda.memory_reserved()} {torch.cuda.memory_allocated()} {free} {total} {properties.total_memory}", flush=True)
    elif line.strip() == "run":
        for number in range(1, steps):
            log.write(f"{step(number).hex()} {time.monotonic()}\n")
        total = sum(p.double().sum().item() for p in model.parameters())
        log.write(f"weights {float(total).hex()} ballast {ballast.sum().item()}\n")
        print("DONE", flush=True)
