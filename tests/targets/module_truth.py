"""Trains a step on request, and says how many bytes each module's call allocated by the allocator's own counters.

    python tests/targets/module_truth.py

After READY the test writes a line. The job moves its model to the GPU, runs it forward and backward, and prints one
line of JSON: by module (its path; the model's class for the model itself) what the calls of it, not of modules in it,
allocated in all, and what of it is live; the bytes of its parameters; and the peak that the allocator counted, which is
now. Then it waits.
"""
import json

import handshake
import torch
from torch import nn

WIDTH = 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * 1.5


class Truth:
    """What each call of a module allocates, without the calls in it, and whose the live blocks are."""

    def __init__(self, model):
        self.allocated, self.owners, self.open = {}, {}, []
        self.count, self.seen = self.counted(), self.live()
        for path, module in model.named_modules():
            name = path or type(module).__name__
            module.register_forward_pre_hook(lambda *_, name=name: self.observe(lambda: self.open.append(name)))
            module.register_forward_hook(lambda *_: self.observe(self.open.pop))

    @staticmethod
    def counted():
        return torch.cuda.memory_stats()["allocated_bytes.all.allocated"]

    @staticmethod
    def live():
        return {block["address"]: block["size"] for segment in torch.cuda.memory_snapshot()
                for block in segment["blocks"] if block["state"] == "active_allocated"}

    def observe(self, then=lambda: None):
        """What happened since the last time was done by the innermost open call."""
        name = self.open[-1] if self.open else "[outside modules]"
        count, live = self.counted(), self.live()
        self.allocated[name] = self.allocated.get(name, 0) + count - self.count
        self.owners = {at: owner for at, owner in self.owners.items() if at in live}
        self.owners.update({at: name for at in live if at not in self.seen})
        self.count, self.seen = count, live
        then()

    def held(self):
        sums = {}
        for at, name in self.owners.items():
            sums[name] = sums.get(name, 0) + self.seen[at]
        return sums


def rounded(bytes):
    return (bytes + 511) // 512 * 512


def main():
    model = Model()
    tokens = torch.randint(0, 50, (64, 8))
    torch.zeros(1, device="cuda")
    handshake.ready()
    handshake.hold()
    tokens = tokens.cuda()
    model.cuda()
    truth = Truth(model)
    result = model(tokens)
    most = result.detach().repeat(8, 1, 1)  # the peak is now
    truth.observe()
    parameters = {path or type(module).__name__: sum(rounded(p.nbytes) for p in module.parameters(recurse=False))
                  for path, module in model.named_modules()}
    print(json.dumps({"allocated": truth.allocated, "held": truth.held(), "parameters": parameters,
                      "peak": torch.cuda.max_memory_allocated()}), flush=True)
    handshake.hold()
    del result, most


if __name__ == "__main__":
    main()
