"""Backward passes of many kinds, and the truth about each autograd node: its class and where it was created.

    python tests/targets/exact_backward.py SCENE      SCENE: plain, checkpoint, reentrant, double, threads

The truth comes from PyTorch's anomaly mode, which keeps the Python stack of every forward call. After READY it waits for a
line, trains, and prints one line of JSON: the different pairs of a node's class and its stack, outermost frame first.
"""
import json
import re
import sys
import threading
import warnings

import handshake
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        y = x.sin()
        context.save_for_backward(x, y)
        return y * 2

    @staticmethod
    def backward(context, gradient):
        x, _ = context.saved_tensors
        return gradient * x.cos() * 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = F.dropout(F.softmax(q @ k.transpose(-2, -1), -1), 0.1)
        x = x + self.out((weights @ v).contiguous())
        hidden = F.gelu(self.inner(x))
        return x + self.outer(hidden).clamp_(min=-9)


class Model(nn.Module):
    def __init__(self, scene, width=32):
        super().__init__()
        self.scene = scene
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            if self.scene in ("checkpoint", "reentrant"):
                x = checkpoint(block, x, use_reentrant=self.scene == "reentrant")
            else:
                x = block(x)
        return Sine.apply(x)


def traceback_of(node):
    """The stack of the forward call; of nodes made by other nodes, that of the node that made them."""
    while node is not None:
        lines = node.metadata.get("traceback_")
        if lines:
            found = [FRAME.search(line) for line in lines]
            return [[m[1], int(m[2]), m[3].splitlines()[0]] for m in found if m]
        node = node.metadata.get("parent_")
    return None


def nodes_of(root):
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(next_node for next_node, _ in node.next_functions)
    return seen


def note(root, truth):
    for node in nodes_of(root):
        frames = traceback_of(node)
        if frames:
            truth.add(json.dumps([node.name().split("::")[-1], frames]))


def loss_of(model, x, scene, truth):
    out = model(x)
    if scene == "double":
        note(out.grad_fn, truth)
        gradient, = torch.autograd.grad(out.sum(), x, create_graph=True)
        return gradient.pow(2).mean()
    return out.square().mean()


def train(model, x, scene, steps, truth):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        loss = loss_of(model, x, scene, truth)
        note(loss.grad_fn, truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main():
    scene = sys.argv[1]
    count = 2 if scene == "threads" else 1
    models = [Model(scene).cuda() for _ in range(count)]
    batches = [torch.randn(4, 8, 32, device="cuda", requires_grad=True) for _ in range(count)]
    for model, x in zip(models, batches):
        loss_of(model, x, scene, set()).backward()
    handshake.ready()
    handshake.hold()
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    truth = set()
    if count == 1:
        train(models[0], batches[0], scene, 3, truth)
    else:
        threads = [threading.Thread(target=train, args=(model, x, scene, 3, truth)) for model, x in zip(models, batches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(json.dumps([json.loads(pair) for pair in truth]), flush=True)
    handshake.hold()


main()
