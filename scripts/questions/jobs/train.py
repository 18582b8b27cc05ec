"""Trains a language model for some steps.

    python train.py [--batch N] [--checkpointing] [--steps N]
"""
import argparse

import torch
from gpt import GPT
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--checkpointing", action="store_true", help="compute activations again instead of keeping them")
args = parser.parse_args()


def train_step(model, optimizer):
    tokens = torch.randint(0, 32000, (args.batch, 513), device="cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


model = GPT(layers=12, width=768, heads=12, checkpointing=args.checkpointing).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(args.steps):
    train_step(model, optimizer)
    print(f"step {step}", flush=True)
