"""Models whose loss is kept: what trumpy (0.1.2) says the backward pass needs, entry by entry, and what it really keeps.

    python tests/targets/oracle_trumpy.py mlp|cnn|transformer|odd|sliced|embedded|resnet50 [--device cpu|cuda]

Prints {"memory_for_backward", "entries": [[data_ptr, bytes, node class]], "graph", "excluding"} and READY; `graph` is the
complete walk of `scene_graphs.py`, `excluding` its bytes without the storages of parameters, and of those and
buffers. resnet50 is the example of its README: 1,383,169,024 bytes. The rule is run in a fork, so that its look at
the graph leaves no objects behind.
"""
import argparse

import handshake
import scene_graphs
import scene_truth
import torch
import trumpy_scenes
from torch import nn
from trumpy import get_tensors_saved_for_backward, memory_for_backward


class Odd(nn.Module):
    """Operations that keep vectors of tensors, which trumpy does not see, and views."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        x = x @ self.weight
        parts = torch.cat([x, x.sin()]) + torch.stack([x, x]).sum(0).repeat(2, 1)
        picked = parts[torch.tensor([0, 2], device=x.device)]
        return picked.exp().log_softmax(1).max(1).values.prod() + x[1:].std() + torch.einsum("ij,kj->", x, x)


def odd():
    net = Odd()
    return net, lambda: net(torch.randn(6, 6)).sum()


def sliced():
    """trumpy counts what the slice shows: 40 bytes of the 4000 that it keeps."""
    net = nn.Linear(10, 1, bias=False)
    large = torch.randn(100, 10)
    return net, lambda: net(large[:1]).sum()


def embedded():
    """Buffers that are saved, and one parameter that is used twice."""
    net = nn.Sequential(nn.Embedding(30, 8), nn.LayerNorm(8), nn.Flatten(), nn.BatchNorm1d(40), nn.Linear(40, 2))
    return net, lambda: (net(torch.arange(20).reshape(4, 5)) * net[4].weight.sum()).sum()


SCENES = ("mlp", "cnn", "transformer", "odd", "sliced", "embedded", "resnet50")


def by_its_rule(net, loss):
    entries = get_tensors_saved_for_backward(net, loss)
    return {"memory_for_backward": memory_for_backward(net, loss),
            "entries": [[at, tensor.numel() * tensor.element_size(), name.rsplit("::", 1)[-1]]
                        for at, (tensor, name) in entries.items()]}


def complete(net, loss):
    graph = scene_graphs.of([loss.grad_fn])
    at = lambda tensors: {t.untyped_storage().data_ptr() for t in tensors}  # noqa: E731
    without = lambda known: sum(size for place, size in graph["storages"] if place not in known)  # noqa: E731
    parameters, buffers = at(net.parameters()), at(net.buffers())
    return {"graph": graph, "excluding": {"parameters": without(parameters),
                                          "parameters_and_buffers": without(parameters | buffers)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.device(args.device):
        if hasattr(trumpy_scenes, args.scene):
            net, loss = getattr(trumpy_scenes, args.scene)()
        else:
            net, run = globals()[args.scene]()
            loss = run()
    truth = {"scene": args.scene, "loss": id(loss), "loss_bytes": loss.numel() * loss.element_size(), "cuda": scene_truth.cuda()}
    truth.update(scene_truth.in_child(by_its_rule, net, loss))
    truth.update(scene_truth.in_child(complete, net, loss))
    handshake.ready(truth)
    handshake.hold()


if __name__ == "__main__":
    main()
