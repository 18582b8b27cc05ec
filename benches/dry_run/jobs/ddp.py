"""The decoder on two GPUs, DistributedDataParallel."""
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from decoder import Decoder, loss_of

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Decoder().cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
for step in range(3):
    tokens = torch.randint(0, 50304, (4, 513), device="cuda")
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
