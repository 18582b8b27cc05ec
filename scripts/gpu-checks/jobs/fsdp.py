"""The job of the check fsdp: a rank of FSDP2 that trains a decoder with random weights.

    torchrun --nproc-per-node N jobs/fsdp.py FOLDER [OPTION ...]

It trains until FOLDER/end is there. Then all ranks stand still, each writes FOLDER/truth-RANK.json, and they wait for
FOLDER/seen. FOLDER/training comes after the second step.
"""
import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard


class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(torch.nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(Block(width, max(width // 128, 1)) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make_model(options, device):
    with torch.device("meta"):
        model = Decoder(options.words, options.width, options.layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device=device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.to_local(), std=0.02)
    return model, parameters


kept = []


def keep_outputs(megabytes, device):
    """What only one rank does: it keeps something in each step, up to a bound."""
    if len(kept) < 8:
        kept.append(torch.ones(megabytes * 524288, dtype=torch.bfloat16, device=device))


def load_long_batch(device):
    """Larger than any card."""
    return torch.empty(1 << 40, dtype=torch.uint8, device=device)


def step(model, optimizer, tokens):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def goes_on(number, rank, folder):
    """The same answer on every rank: rank 0 looks, the others ask it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(f"step {number}", "ends" if (folder / "end").exists() else "goes on")
    return store.get(f"step {number}") == b"goes on"


def end(rank, folder, truth):
    store = dist.distributed_c10d._get_default_store()
    torch.cuda.synchronize()
    time.sleep(1)  # NCCL's own thread frees what a collective held
    stats = torch.cuda.memory_stats()
    truth |= {"pid": os.getpid(), "peak": torch.cuda.max_memory_allocated(), "allocated": torch.cuda.memory_allocated(),
              "reserved": torch.cuda.memory_reserved(), "allocations": stats["allocation.all.allocated"]}
    unfinished = folder / f"truth-{rank}.tmp"
    unfinished.write_text(json.dumps(truth))
    unfinished.rename(folder / f"truth-{rank}.json")
    while not (folder / "seen").exists():
        time.sleep(0.05)
    # A store ends with rank 0.
    store.set(f"heard by {rank}", "")
    if rank == 0:
        store.wait([f"heard by {other}" for other in range(dist.get_world_size())])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--odd", type=int, help="this rank keeps outputs")
    parser.add_argument("--keeps", type=int, default=256, metavar="MIB", help="so many in each of eight steps")
    parser.add_argument("--dies", type=int, help="this rank is killed in the fifth step")
    parser.add_argument("--full", type=int, help="this rank has no memory left in the fifth step")
    options = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    model, parameters = make_model(options, device)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = []
    while goes_on(len(steps), rank, options.folder):
        began = time.time()
        step(model, optimizer, torch.randint(options.words, (options.batch, options.length), device=device))
        if rank == options.odd:
            keep_outputs(options.keeps, device)
        torch.cuda.synchronize()
        steps.append((began, time.time() - began))
        if len(steps) == 2:
            (options.folder / f"pid-{rank}").write_text(str(os.getpid()))
        if len(steps) == 5 and rank == options.dies:
            os.kill(os.getpid(), 9)
        if len(steps) == 5 and rank == options.full:
            load_long_batch(device)
    end(rank, options.folder, {"rank": rank, "parameters": parameters, "steps": steps})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
