"""A larger decoder with activation checkpointing, pure bf16, SGD."""
import sys
from pathlib import Path

import torch
import torch.utils.checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
from decoder import Decoder, loss_of

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Decoder(layers=24, width=1024, heads=16, checkpoint=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    tokens = torch.randint(0, 50304, (16, 1025), device="cuda")
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
