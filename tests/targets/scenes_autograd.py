"""Scenes of autograd: what graphs keep, in every way in which they keep it."""
import scene_graphs
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpointed


class Cube(torch.autograd.Function):
    """Keeps an input, an intermediate, and one tensor that autograd does not know of."""

    @staticmethod
    def forward(context, x):
        square = x * x
        context.save_for_backward(x, square, None)
        context.beside = x * 3
        return square * x

    @staticmethod
    def backward(context, gradient):
        _, square, _ = context.saved_tensors
        return gradient * 3 * square


class Several(torch.autograd.Function):
    """Keeps its outputs."""

    @staticmethod
    def forward(context, x, y):
        total, product = x + y, x * y
        context.save_for_backward(total, product)
        return total, product

    @staticmethod
    def backward(context, of_total, of_product):
        return of_total + of_product, of_total


def custom_function(device, show):
    leaf = torch.randn(6, 50, device=device, requires_grad=True)
    total, product = Several.apply(Cube.apply(leaf), leaf * 2)
    loss = total.sum() + product.exp().sum()
    show("leaf", "loss")


def blocks(device):
    make = lambda: nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))  # noqa: E731
    return nn.ModuleList(make() for _ in range(2)).to(device)


def checkpoint(device, show, reentrant=False):
    model = blocks(device)
    start = torch.randn(4, 32, device=device, requires_grad=True)
    with scene_graphs.Hooks() as hooks:
        x = start
        for block in model:
            x = checkpointed(block, x, use_reentrant=reentrant)
        loss = x.square().mean()
    show("model", "start", "loss", packed=hooks.packed)


def reentrant(device, show):
    """The graph within is not built before backward; the inputs are kept by a function written in Python."""
    checkpoint(device, show, reentrant=True)


def save_on_cpu(device, show):
    """What is kept lies in main memory, in tuples that hooks hold; pinned where there is a GPU."""
    model = blocks(device)[0]
    batch = torch.randn(4, 32, device=device)
    with scene_graphs.Hooks() as hooks, torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
        loss = model(batch).sum()
    show("model", "batch", "loss", packed=hooks.packed)


def double_backward(device, show):
    """A gradient with a graph of its own."""
    weight = torch.randn(8, 8, device=device, requires_grad=True)
    inner = (weight @ weight).tanh().sum()
    first, = torch.autograd.grad(inner, weight, create_graph=True)
    penalty = first.square().sum()
    show("weight", "inner", "first", "penalty")


def after_backward(device, show):
    """Two graphs: one is spent, so that its nodes keep nothing; one is kept by `retain_graph`. A gradient of a tensor
    that is no leaf."""
    model = blocks(device)[0]
    batch = torch.randn(4, 32, device=device)
    middle = model[1](model[0](batch))
    middle.retain_grad()
    spent = model[2](middle).sum()
    spent.backward()
    kept = model(batch).square().sum()
    kept.backward(retain_graph=True)
    show("model", "batch", "middle", "spent", "kept")


def modified(device, show):
    """A saved tensor that was changed in place since: backward would fail, but its memory is kept."""
    leaf = torch.randn(100, device=device, requires_grad=True)
    squared = leaf.exp()
    loss = squared.square().sum()
    with torch.no_grad():
        squared.mul_(2)
    show("leaf", "squared", "loss")


def lost(device, show):
    """The "failed example" of pytorch_memlab's README: `inp * (inp + 2)` is kept by the graph, and by no variable."""
    linear = nn.Linear(1024, 1024).to(device)
    inp = torch.ones(512, 1024, device=device)
    out = linear(inp * (inp + 2)).mean()
    show("linear", "inp", "out")


SCENES = (custom_function, checkpoint, reentrant, save_on_cpu, double_backward, after_backward, modified, lost)
