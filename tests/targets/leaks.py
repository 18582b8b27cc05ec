"""A training loop that leaks in one of the ways in which real ones do.

    python tests/targets/leaks.py

Each request is the names of leaks: what the last ones held is given up, the loop goes on with the new ones, and READY is printed
when these have leaked a little. Every leak keeps about 1 MiB a step.
"""
import functools
import gc
import queue
import select
import sys
import time
import types

import handshake
import torch
from torch import nn

# Optimizers import the compiler, which is half of the heap; nothing here needs it, and looks are as fast again without.
compiler = types.ModuleType("torch._dynamo")
compiler.graph_break = lambda *args, **kwargs: None
compiler.disable = lambda function=None, *args, **kwargs: function
sys.modules["torch._dynamo"] = torch._dynamo = compiler

ROWS = 64
# IPython's dictionary of results has two names, this one first.
_oh = {}
Out = _oh
FEATURE_CACHE = {}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=256, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Metrics:
    """Keeps what a trainer shows at the end of an epoch."""

    def __init__(self):
        self.outputs = []

    def update(self, output):
        self.outputs.append(output)


class Session:
    def __init__(self):
        self.layers = [{"keys": torch.zeros(128, 512, device="cuda"), "values": torch.zeros(128, 512, device="cuda")}
                       for _ in range(2)]


@functools.lru_cache(maxsize=None)
def positions(step):
    return torch.zeros(1 << 18, device="cuda") + step


def make_counter():
    seen = []

    def count(x):
        seen.append(x.detach().repeat(4, 4))
        return len(seen)

    return count


class Ring:
    """An object that refers to itself."""

    def __init__(self):
        self.buffer = torch.zeros(1 << 18, device="cuda")
        self.itself = self


def fails(x):
    workspace = torch.zeros(1 << 18, device="cuda")
    raise ValueError(workspace.shape)


class Trainer:
    def __init__(self):
        self.model = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.old_optimizers = []
        self.val_losses = []
        self.metrics = Metrics()
        self.sessions = {}
        self.errors = []
        self.count = None
        self.hook = None
        self.bank = nn.Module()
        self.storages = []
        self.queued = queue.SimpleQueue()
        self.step = 0

    def train(self):
        x = torch.zeros(ROWS, 256, device="cuda") + 1
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def clear(self):
        for name in [name for name in globals() if name.strip("_0123456789") == "" and name.count("_") == 1]:
            del globals()[name]
        for kept in (Out, FEATURE_CACHE, self.val_losses, self.metrics.outputs, self.sessions, self.errors,
                     self.old_optimizers, self.storages):
            kept.clear()
        positions.cache_clear()
        self.count = None
        if self.hook:
            self.hook.remove()
            self.hook = None
        self.bank, self.queued = nn.Module(), queue.SimpleQueue()
        gc.enable()
        gc.collect()

    def leak(self, kind):
        x = torch.zeros(ROWS, 256, device="cuda") + 1
        if kind == "losses":
            self.val_losses.append(self.model(x).square().mean())
        elif kind == "outputs":
            self.metrics.update(self.model(x.repeat(4, 1)).detach().repeat(4, 1))
        elif kind == "cache":
            FEATURE_CACHE[f"image-{self.step}"] = {"features": torch.zeros(1 << 18, device="cuda")}
        elif kind == "sessions":
            self.sessions[f"user-{self.step}"] = Session()
        elif kind == "closure":
            self.count = self.count or make_counter()
            self.count(x)
        elif kind == "lru_cache":
            positions(self.step)
        elif kind == "hook":
            if self.hook is None:
                kept = []
                self.hook = self.model.layers[1].act.register_forward_hook(
                    lambda module, args, output: kept.append(output.detach().repeat(4, 1)))
        elif kind == "traceback":
            try:
                fails(x)
            except ValueError as error:
                self.errors.append(error)
        elif kind == "notebook":
            # IPython's three names for the result of a cell.
            Out[self.step] = torch.zeros(1 << 18, device="cuda")
            globals()[f"_{self.step}"] = globals()["_"] = Out[self.step]
        elif kind == "numbered":
            self.bank.register_buffer(f"queue_{self.step}", torch.zeros(1 << 18, device="cuda"))
        elif kind == "storages":
            self.storages.append(torch.zeros(1 << 18, device="cuda").untyped_storage())
        elif kind == "queued":
            self.queued.put(functools.partial(print, torch.zeros(1 << 18, device="cuda")))
        elif kind == "cycles":
            gc.disable()
            Ring()
        elif kind == "optimizer":
            if self.step % 4 == 0:
                self.old_optimizers.append(self.optimizer)
                self.optimizer = torch.optim.AdamW(self.model.parameters())


def main():
    trainer = Trainer()
    kinds, since = [], 0
    handshake.ready()
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            trainer.clear()
            kinds, since = line.split(), 0
        trainer.train()
        for kind in kinds:
            trainer.leak(kind)
        since += 1
        if since == 8 and kinds:
            handshake.ready()
        # As a job that computes on a GPU; nothing else makes it slow on a simulated one.
        time.sleep(0.06)


if __name__ == "__main__":
    main()
