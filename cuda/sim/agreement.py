#!/usr/bin/env python3
"""Prints the memory figures of a few training jobs, to compare the simulated device with a real one.

    python cuda/sim/agreement.py > real.json                        on a machine with a GPU
    scripts/with-sim python cuda/sim/agreement.py --against real.json      here

Every job runs in a process of its own, three training steps each; the comparison is the table in README.md.
"""
import argparse
import json
import subprocess
import sys

KEYS = {
    "allocations": "allocation.all.allocated",
    "allocated peak": "allocated_bytes.all.peak",
    "requested peak": "requested_bytes.all.peak",
    "reserved peak": "reserved_bytes.all.peak",
    "segments peak": "segment.all.peak",
}


def mlp():
    import torch
    from torch import nn

    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, lambda: torch.randn(512, 1024, device="cuda")


def convolutions():
    import torch
    from torch import nn

    model, width = [], 3
    for channels in (64, 128, 256):
        model += [nn.Conv2d(width, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
        width = channels
    model = nn.Sequential(*model, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, lambda: torch.randn(32, 3, 128, 128, device="cuda")


def transformer():
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    return model, torch.optim.AdamW(model.parameters()), lambda: torch.randn(16, 256, 512, device="cuda")


def transformer_bf16():
    import torch

    model, optimizer, batch = transformer()

    def autocast(inputs):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(inputs)

    return autocast, optimizer, batch


def lstm():
    import torch
    from torch import nn

    network = nn.LSTM(256, 512, 2, batch_first=True).cuda()
    return lambda x: network(x)[0], torch.optim.Adam(network.parameters()), lambda: torch.randn(32, 64, 256, device="cuda")


JOBS = [mlp, convolutions, transformer, transformer_bf16, lstm]


def measure(job):
    import torch

    model, optimizer, batch = job()
    for _ in range(3):
        optimizer.zero_grad()
        model(batch()).float().pow(2).mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    figures = {name: stats[key] for name, key in KEYS.items()}
    figures["outside PyTorch"] = total - free - stats["reserved_bytes.all.current"]
    figures["device"] = torch.cuda.get_device_name()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=[job.__name__ for job in JOBS], help="measure this one, here")
    parser.add_argument("--against", type=argparse.FileType(), help="the other machine's output")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(measure(globals()[args.job])))
        return
    here = {}
    for job in JOBS:
        output = subprocess.run([sys.executable, __file__, "--job", job.__name__], check=True, capture_output=True, text=True)
        here[job.__name__] = json.loads(output.stdout.splitlines()[-1])
    if not args.against:
        print(json.dumps(here, indent=1))
        return
    other = json.load(args.against)
    print("| job | figure | here | there | difference |\n|---|---|---|---|---|")
    for job, figures in here.items():
        for name, value in figures.items():
            if name == "device":
                continue
            there = other[job][name]
            difference = "equal" if value == there else f"{100 * (value - there) / there:+.1f} %"
            print(f"| {job} | {name} | {value:,} | {there:,} | {difference} |")


if __name__ == "__main__":
    main()
