"""Answers prompts one after the other. The first one is long."""
import time

import torch
from gpt import GPT


@torch.no_grad()
def answer(model, length):
    return model(torch.randint(0, 32000, (8, length), device="cuda")).argmax(-1).cpu()


model = GPT(width=1024, layers=24, heads=16).cuda().eval()
for number in range(1_000_000):
    answer(model, 2048 if number == 0 else 32)
    print(f"prompt {number}", flush=True)
    time.sleep(0.2)
