"""The model of Pytorch-Memory-Utils' README, and what its modelsize_estimate says of it.

    python tests/targets/oracle_modelsize.py [--device cpu|cuda] [--model readme|mixed|frozen|middle|nested|unordered]

Params 0.450304 M, intermediate variables 336.089600 M without and 672.179200 M with backward (millions of bytes). The
tool is not on PyPI: `modelsize` follows its rule as its source has it. The graph of a forward pass is alive while the
target waits, and what that really keeps is in `graph`.
"""
import argparse

import handshake
import scene_graphs
import scene_truth
import torch
from torch import nn


def modelsize(model, given, type_size=4):
    """It really runs the modules, one after the other on what the one before returned; those that are
    `ReLU(inplace=True)` are left out, and "with backward" is twice the sum."""
    elements, shapes = 0, []
    for module in list(model.modules())[1:]:
        if isinstance(module, nn.ReLU) and module.inplace:
            continue
        with torch.no_grad():
            given = module(given)
        shapes.append(list(given.size()))
        elements += given.numel()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"params": parameters * type_size / 1000 / 1000, "without_backward": elements * type_size / 1000 / 1000,
            "with_backward": elements * type_size * 2 / 1000 / 1000, "shapes": shapes}


class Unordered(nn.Module):
    """The tool fails on it: its modules do not follow each other."""

    def __init__(self):
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5)
        self.fc = nn.Linear(16 * 25, 10)

    def forward(self, x):
        x = self.pool(self.conv2(self.pool(self.conv1(x)).relu()).relu())
        return self.fc(x.flatten(1))


def mixed():
    return nn.Sequential(
        nn.Identity(), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(),
        nn.Conv2d(8, 4, 3, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 36, 20), nn.GELU(),
        nn.Dropout(), nn.Linear(20, 5, bias=False), nn.Softmax(1)).eval()


def frozen():
    """The first layer leaves no trace: nothing after it saves what it returned."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Conv2d(4, 2, 3))
    for parameter in [*model[0].parameters(), *model[2].parameters()]:
        parameter.requires_grad_(False)
    return model


def middle():
    """What a frozen layer after one that is trained returned is in the graph."""
    model = mixed()
    for parameter in [*model[6].parameters(), *model[10].parameters()]:
        parameter.requires_grad_(False)
    return model


def nested():
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), nn.Conv2d(3, 3, 3, padding=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=["readme", "mixed", "frozen", "middle", "nested", "unordered"], default="readme")
    words = parser.parse_args()
    device = words.device
    if words.model != "readme":
        model = {**globals(), "unordered": Unordered}[words.model]().to(device)
        picture = torch.zeros(2, 3, 32, 32, device=device)
        try:
            estimate = modelsize(model, picture)
        except RuntimeError as error:
            estimate = {"error": str(error)}
        loss = model(picture).square().mean()
        handshake.ready({"estimate": estimate, "loss": loss.item()})
        handshake.hold()
        return
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1),
                          nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1)).to(device)
    # The README does not say which input: these sizes give its figures.
    picture = torch.zeros(1, 3, 620, 770, device=device)
    estimate = modelsize(model, picture)
    assert [f"{estimate[key]:f}" for key in ("params", "without_backward", "with_backward")] == [
        "0.450304", "336.089600", "672.179200"], estimate
    out = model(picture)
    handshake.ready({"estimate": estimate, "out": id(out), "out_bytes": out.numel() * 4, "cuda": scene_truth.cuda(),
                     "graph": scene_truth.in_child(scene_graphs.of, [out.grad_fn])})
    handshake.hold()


if __name__ == "__main__":
    main()
