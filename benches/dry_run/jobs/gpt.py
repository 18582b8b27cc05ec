"""A decoder like GPT-2, 32-bit, AdamW."""
import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from decoder import Decoder, loss_of

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()

model = Decoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
for step in range(3):
    tokens = torch.randint(0, 50304, (args.batch, 513), device="cuda")
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
