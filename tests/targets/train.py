"""Trains a small GPT-style language model on synthetic text: the job that the demo records.

    python tests/targets/train.py [--steps N | --seconds S] [--device auto|cuda|cpu]      Ctrl-C ends it earlier

An ordinary training script that knows nothing of memspy. It runs on a GPU, on the simulated one
(scripts/with-sim) and on the CPU.
"""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class SyntheticText(Dataset):
    """Token sequences with a pattern a model can learn: each token is a function of the two before it."""

    def __init__(self, vocabulary, context, length=100_000):
        self.vocabulary = vocabulary
        self.context = context
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        first = torch.arange(self.context + 1, dtype=torch.long)
        tokens = (first * (1 + index % 7) + index) % self.vocabulary
        return tokens[:-1], tokens[1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(batch, length, self.heads, -1).transpose(1, 2)
        k = k.view(batch, length, self.heads, -1).transpose(1, 2)
        v = v.view(batch, length, self.heads, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        return self.dropout(self.down(hidden))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.feed_forward(self.norm2(x))
        return x


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def compute_loss(model, tokens, targets):
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_step(model, optimizer, tokens, targets):
    optimizer.zero_grad(set_to_none=True)
    loss = compute_loss(model, tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, batches, device):
    model.eval()
    losses = [compute_loss(model, tokens.to(device), targets.to(device)).item() for tokens, targets in batches]
    model.train()
    return sum(losses) / len(losses)


def endless(loader):
    while True:
        yield from loader


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--seconds", type=float, help="train for this long instead of a number of steps")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--print-every", type=int, default=10)
    parser.add_argument("--evaluate-every", type=int, default=50)
    return parser.parse_args()


def main():
    args = parse_arguments()
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    data = SyntheticText(args.vocabulary, args.context)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True, pin_memory=device == "cuda")
    batches = endless(loader)
    held_out = [next(batches) for _ in range(2)]

    model = LanguageModel(args.vocabulary, args.context, args.width, heads=8, layers=args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"pid {os.getpid()}: {parameters / 1e6:.1f} M parameters on {device}", flush=True)

    started = time.monotonic()
    step = 0
    try:
        while time.monotonic() - started < args.seconds if args.seconds else step < args.steps:
            step += 1
            tokens, targets = next(batches)
            loss = train_step(model, optimizer, tokens.to(device), targets.to(device))
            if step == 1 or step % args.print_every == 0:
                print(f"step {step:5d}  loss {loss:.4f}", flush=True)
            if step % args.evaluate_every == 0:
                print(f"step {step:5d}  held-out loss {evaluate(model, held_out, device):.4f}", flush=True)
    except KeyboardInterrupt:
        print("ended early", flush=True)

    elapsed = time.monotonic() - started
    print(f"{step} steps in {elapsed:.1f} s")
    if device == "cuda":
        print(f"max_memory_allocated {torch.cuda.max_memory_allocated()}")
        print(f"max_memory_reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
