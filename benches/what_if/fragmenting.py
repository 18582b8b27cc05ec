"""fragmenting.py JOB OUT: a job that fragments PyTorch's cache; appends PyTorch's own figures to OUT.

lengths    training on sequences of very different lengths
cache      requests whose keys and values grow by concatenation and end at different times
pictures   training on pictures of different sizes, with features kept for a while
"""
import json
import os
import random
import sys

import torch
from torch import nn


def lengths():
    width = 1024
    layers = [nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True) for _ in range(6)]
    net, head = nn.ModuleList(layers).cuda(), nn.Linear(width, 16000).cuda()
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()])
    for _ in range(60):
        x = torch.randn(8, random.choice([96, 160, 288, 416, 544, 736, 928]), width, device="cuda")
        for layer in net:
            x = layer(x)
        target = torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long, device="cuda")
        nn.functional.cross_entropy(head(x).flatten(0, 1), target).backward()
        optimizer.step()
        optimizer.zero_grad()


def cache():
    def state():
        return torch.zeros(1, 16, random.randint(64, 900), 128, device="cuda", dtype=torch.half)

    live = []
    for _ in range(900):
        if len(live) < 12 and random.random() < 0.3:
            live.append([random.randint(20, 120), [state() for _ in range(24)]])
        for request in live:
            request[0] -= 1
            request[1] = [torch.cat([old, old.new_zeros(1, 16, 8, 128)], 2) for old in request[1]]
        live = [request for request in live if request[0] > 0]


def pictures():
    relu = nn.ReLU()
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), relu, nn.Conv2d(64, 64, 3, padding=1), relu,
        nn.Conv2d(64, 128, 3, stride=2, padding=1), relu, nn.Conv2d(128, 256, 3, stride=2, padding=1),
    ).cuda()  # fmt: skip
    optimizer, bank = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), []
    for _ in range(150):
        height, width = random.randint(10, 40) * 16, random.randint(10, 40) * 16
        features = net(torch.randn(random.randint(1, 8), 3, height, width, device="cuda"))
        features.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.append(features.detach()[:1].clone())
        if len(bank) > 40:
            bank.pop(random.randrange(len(bank)))


def main(job, out):
    random.seed(5)
    torch.manual_seed(5)
    {"lengths": lengths, "cache": cache, "pictures": pictures}[job]()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    row = {
        "job": job,
        "settings": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "memory": torch.cuda.get_device_properties(0).total_memory,
    }
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
