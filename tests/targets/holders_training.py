"""A training loop that never pauses for anybody, and a log of what was true in each of its iterations.

    python tests/targets/holders_training.py LOG [--device cuda|cpu] [--iters-per-second N] [--accumulate N]
                                                 [--iterations N] [--look-every N]

Trains a transformer with AdamW in epochs of 10 iterations; the variables `epoch` and `i` of `train` are where it is,
`optimizer.state[...]["step"]` counts optimizer steps, `scheduler.last_epoch` too. READY comes after the first
iteration. It ends after `--iterations`, or when a line or the end of input arrives. Each iteration is a line of LOG:
    {"iteration", "epoch", "i", "step", "started", "ended", "loss", "allocated", "reserved", "max_allocated"}
with times in seconds of CLOCK_MONOTONIC and, on a GPU, bytes at its end; the peak is of this iteration alone with
`--reset-peak`, else of the process so far. Every `--look-every` iterations a fork says the bytes of each category
at two points: "forward" (the graph is alive) and "end"; such iterations are longer by tenths of a second.
"""
import argparse
import json
import os
import select
import sys
import time

import handshake
import scene_truth
import torch
from torch import nn
from torch.nn import functional as F

PER_EPOCH = 10


class Model(nn.Module):
    def __init__(self, width, layers, vocabulary=500):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", torch.zeros(64, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Log:
    """Lines that a reader sees whole as soon as they are written."""

    def __init__(self, path):
        self.file = open(path, "w", buffering=1)

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")


def memory(device, reset):
    if device != "cuda":
        return {}
    answer = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
              "max_allocated": torch.cuda.max_memory_allocated()}
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return answer


def steps_of(optimizer):
    state = next(iter(optimizer.state.values()), None)
    return 0 if state is None else int(state["step"].item())


def asked_to_end():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def train(model, optimizer, scheduler, log, args):
    done = 0
    for epoch in range(1_000_000):
        for i in range(PER_EPOCH):
            started = time.monotonic()
            looks = {}
            look = bool(args.look_every) and done % args.look_every == 0
            tokens = torch.randint(500, (args.batch, args.length), device=args.device)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            if look:
                looks["forward"] = {"at": time.monotonic(), "by_category": scene_truth.in_child(scene_truth.categories)}
            loss.backward()
            if (done + 1) % args.accumulate == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            del loss
            if look:
                looks["end"] = {"at": time.monotonic(), "by_category": scene_truth.in_child(scene_truth.categories)}
            if args.iters_per_second:
                time.sleep(max(0.0, started + 1 / args.iters_per_second - time.monotonic()))
            log.write(iteration=done, epoch=epoch, i=i, step=steps_of(optimizer), started=started, ended=time.monotonic(),
                      loss=value, **memory(args.device, args.reset_peak), **({"looks": looks} if look else {}))
            done += 1
            if done == 1:
                handshake.ready({"pid": os.getpid(), "device": args.device, "per_epoch": PER_EPOCH})
            if done == args.iterations or asked_to_end():
                return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", metavar="LOG", help="where to write what was true, as JSON lines")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--iters-per-second", type=float, help="at most; as fast as it goes by default")
    parser.add_argument("--accumulate", type=int, default=1, help="iterations for each step of the optimizer")
    parser.add_argument("--iterations", type=int, help="end after so many")
    parser.add_argument("--look-every", type=int, default=0, help="iterations between looks at the categories; 0: never")
    parser.add_argument("--reset-peak", action="store_true", help="make the peak that of each iteration")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(args.width, args.layers).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999 ** step)
    done = train(model, optimizer, scheduler, Log(args.log), args)
    print(json.dumps({"iterations": done, "steps": steps_of(optimizer)}), flush=True)


if __name__ == "__main__":
    main()
