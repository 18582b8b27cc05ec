"""Trains a language model, and remembers the last logits of each step for a plot."""
import time

import torch
from gpt import GPT
from torch.nn import functional as F


def next_batch():
    time.sleep(0.05)  # from the disk
    return torch.randint(0, 8000, (8, 129)).cuda()


def train_step(tokens):
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append({"loss": loss.item(), "logits": logits[:, -1].detach()})


model = GPT(words=8000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []
for step in range(1_000_000):
    train_step(next_batch())
    if step % 20 == 0:
        print(f"step {step}", flush=True)
