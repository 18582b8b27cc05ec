"""The examples of pytorch_memlab's README, and what its MemReporter (0.3.0) says of them from inside.

    python tests/targets/oracle_memlab.py minimal|linear|backward|tied|lstm|lost [--device cpu|cuda]

Prints {"rows": [{"name", "alias_of", "id", "size", "numel", "memory"}], "text", "allocated", ...} and READY. The
reporter looks at gradients, which gives them Python objects that stay: it is run before anybody else looks. The
README has the LSTM with its weights in one storage, as cuDNN wants them; here each has its own.
"""
import argparse
import contextlib
import io
import sys
import warnings

import handshake
import scene_truth
import torch
from pytorch_memlab import MemReporter
from torch import nn


def minimal(device, report):
    linear = nn.Linear(1024, 1024).to(device)
    report(None)
    del linear


def linear(device, report):
    model = nn.Linear(1024, 1024).to(device)
    inp = torch.ones(512, 1024, device=device)
    out = model(inp).mean()
    report(model, "model")
    del out


def backward(device, report):
    model = nn.Linear(1024, 1024).to(device)
    inp = torch.ones(512, 1024, device=device)
    out = model(inp).mean()
    out.backward()
    report(model, "model")


def tied(device, report):
    first, second = nn.Linear(1024, 1024).to(device), nn.Linear(1024, 1024).to(device)
    second.weight = first.weight
    container = nn.Sequential(first, second)
    inp = torch.ones(512, 1024, device=device)
    out = container(inp).mean()
    out.backward()
    report(container, "container")


def lstm(device, report):
    model = nn.LSTM(1024, 1024).to(device)
    inp = torch.ones(10, 10, 1024, device=device)
    out, _ = model(inp)
    out.mean().backward()
    report(model, "model")


def lost(device, report):
    """6.00M in the README. Since PyTorch keeps the Python objects of tensors that autograd holds, the reporter sees
    all of it: 8,393,216 bytes."""
    model = nn.Linear(1024, 1024).to(device)
    inp = torch.ones(512, 1024, device=device)
    out = model(inp * (inp + 2)).mean()
    report(model, "model")
    del out


SCENES = {scene.__name__: scene for scene in (minimal, linear, backward, tied, lstm, lost)}


def rows_of(reporter, device):
    """The reporter knows names by `id`; a row has the name, and after it that of the tensor whose storage it shares."""
    ids = {name: one for one, name in reporter.tensor_name.items()}
    for named, size, numel, memory in reporter.device_tensor_stat[device]:
        name, _, alias_of = named.removesuffix(")").partition("(->")
        yield {"name": name, "alias_of": alias_of or None, "id": ids[name], "size": list(size), "numel": numel, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=sorted(SCENES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    args = parser.parse_args()
    if args.scene == "lstm" and args.device == "cuda":
        torch.backends.cudnn.enabled = False  # the simulated device has no recurrent networks of cuDNN

    warnings.simplefilter("ignore")  # the reporter uses what is deprecated

    def report(model, *expressions):
        reporter = MemReporter(model)
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            reporter.report(verbose=True)
        device = torch.device("cuda:0" if args.device == "cuda" else "cpu")
        rows = list(rows_of(reporter, device))
        del reporter
        truth = {"scene": args.scene, "rows": rows, "total_numel": sum(row["numel"] for row in rows),
                 "total_memory": sum(row["memory"] for row in rows), "text": text.getvalue().splitlines(),
                 "allocated": torch.cuda.memory_allocated() if args.device == "cuda" else None}
        handshake.ready({**truth, **scene_truth.of(sys._getframe(1), expressions)})
        handshake.hold()

    SCENES[args.scene](args.device, report)


if __name__ == "__main__":
    main()
