"""A small training job for 'memspy dry-run': 100 MiB of weights, and activations that grow with the batch."""
import argparse
import os
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1024)
parser.add_argument("--scale", type=int, help="the batch in units of 512")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--sized-by-values", action="store_true")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--exit", type=int, default=0)
args = parser.parse_args()
args.batch = args.scale * 512 if args.scale else args.batch

if "LOCAL_RANK" in os.environ:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    args.batch *= 1 + int(os.environ["LOCAL_RANK"])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(25))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # the activations
        if args.sized_by_values:
            x = x[x.sum(1) > 0]  # as many rows as are positive
        return x


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(args.steps):
    x = torch.randn(args.batch, 1024, device="cuda")
    loss = model(x).pow(2).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if args.fail:
        raise ValueError("something else")
print("truth", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), flush=True)
sys.exit(args.exit)
