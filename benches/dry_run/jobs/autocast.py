"""The decoder in bf16 autocast, fused AdamW, clipped gradients, two micro-batches."""
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from decoder import Decoder, loss_of

model = Decoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
for step in range(3):
    for micro in range(2):
        tokens = torch.randint(0, 50304, (8, 1025), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, tokens) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
