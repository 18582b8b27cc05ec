"""Data-parallel training. Rank 0 also validates, and keeps what it predicted.

    torchrun --nproc-per-node 2 ranks.py
"""
import os

import torch
import torch.distributed as dist
from gpt import GPT
from torch.nn import functional as F

rank, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
torch.cuda.set_device(rank % cards)
# NCCL wants a GPU for each rank.
dist.init_process_group("nccl" if cards > 1 else "gloo")
model = GPT(words=8000).cuda()
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters())
predicted = []


@torch.no_grad()
def validate():
    for _ in range(4):
        tokens = torch.randint(0, 8000, (8, 512), device="cuda")
        predicted.append(model(tokens))


for step in range(60):
    tokens = torch.randint(0, 8000, (8, 129), device="cuda")
    loss = F.cross_entropy(parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 20 == 19:
        validate()
    if step % 20 == 0:
        print(f"step {step}", flush=True)
dist.destroy_process_group()
