"""The model of Pytorch-Memory-Utils' README, and what its modelsize_estimate says of it.

    python tests/targets/oracle_modelsize.py [--device cpu|cuda]

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
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
