"""The job of the check iterations: a transformer with fused AdamW.

    python jobs/iterations.py FOLDER     FOLDER: that of handshake.py

The request `train EPOCHS STEPS` prints epoch, step and peak of each step.
"""
import json
import sys

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import handshake

width = 512
layer = nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True)
model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def train(epochs, steps):
    found = []
    for epoch in range(epochs):
        for step in range(steps):
            torch.cuda.reset_peak_memory_stats()
            loss = model(torch.randn(8, 64 + 16 * (step * 7 % 11), width, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
            found.append([epoch, step, torch.cuda.max_memory_allocated()])
    return found


train(1, 3)
handshake.ready()
for request, *numbers in handshake.requests():
    print(json.dumps(train(*map(int, numbers))), flush=True)
