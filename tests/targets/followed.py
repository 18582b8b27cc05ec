"""Jobs whose memory has a known maker, for following the allocator.

    python tests/targets/followed.py sleepy   sleeps in one function, allocates 16 MiB in another, in turn
    python tests/targets/followed.py train    a small transformer trains; PyTorch's own memory history is the truth

READY when CUDA is in use; at a line on standard input the job begins, and READY again when it stands still. Then it prints
{"allocated", "allocations", "frees", "line", "stacks"}: live bytes, PyTorch's counts, the line that allocates (sleepy), and
(train) [[bytes, [[file, line], ...]], ...] with the innermost frame first, without frames where C++ threads allocated. Ends
when stdin closes.
"""
import json
import sys
import time

import torch
from torch import nn

kept = []


def load_batch():
    time.sleep(0.1)


def keep():
    kept.append(torch.empty(16 << 20, dtype=torch.uint8, device="cuda"))


def sleepy():
    for _ in range(25):
        load_batch()
        keep()


def train():
    torch.cuda.memory._record_memory_history(enabled="state", stacks="python")
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(13):
        loss = model(torch.randn(8, 64, 256, device="cuda")).square().mean()
        if step == 12:
            return loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def live_stacks():
    stacks = []
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                stacks.append([block["size"], [[f["filename"], f["line"]] for f in block.get("frames", [])]])
    return stacks


def main():
    torch.zeros(1, device="cuda")
    print("READY", flush=True)
    sys.stdin.readline()
    held = {"sleepy": sleepy, "train": train}[sys.argv[1]]()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    print(json.dumps({
        "allocated": torch.cuda.memory_allocated(),
        "allocations": stats["allocation.all.allocated"],
        "frees": stats["allocation.all.freed"],
        "line": keep.__code__.co_firstlineno + 1,
        "file": __file__,
        "stacks": live_stacks() if sys.argv[1] == "train" else [],
    }))
    print("READY", flush=True)
    sys.stdin.readline()
    del held


if __name__ == "__main__":
    main()
