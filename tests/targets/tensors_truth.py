"""Tensors and autograd graphs of many kinds, and what PyTorch says of them.

    python tests/targets/tensors_truth.py [--device cpu|cuda]

Prints one line of JSON: every tensor that Python knows, with all that memspy reads of it; for each scene the classes of the
nodes that its loss leads to and the storages that they keep; then READY.
"""
import argparse
import gc
import json

import handshake
import kinds
from scene_graphs import nodes_from
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x, x * 2)
        context.kept = x * 3
        return x ** 3

    @staticmethod
    def backward(context, gradient):
        x, _ = context.saved_tensors
        return gradient * 3 * x * x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(8, 16, num_layers=2)

    def forward(self, x):
        return self.cell(x)[0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.out = nn.Linear(12, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


class Colored(torch.Tensor):
    pass


def odd(x):
    parts = torch.cat([x, x.sin()]) + torch.stack([x, x]).sum(0).repeat(2, 1)
    picked = parts[torch.tensor([0, 2], device=x.device)]
    return picked.exp().log_softmax(1).max(1).values.prod() + x[1:].std() + torch.einsum("ij,kj->ik", x, x).sum()


def scenes(device):
    """Name, loss, whether hooks keep what it saves (which must not be looked at from inside)."""
    def sequence(*layers):
        return nn.Sequential(*layers).to(device)

    mlp = sequence(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5), nn.Dropout(0.5))
    yield "mlp", mlp, mlp(torch.randn(7, 10, device=device)).sum(), False
    cnn = sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 10))
    loss = nn.functional.cross_entropy(cnn(torch.randn(4, 3, 16, 16, device=device)), torch.arange(4, device=device))
    yield "cnn", cnn, loss, False
    transformer = sequence(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    yield "transformer", transformer, transformer(torch.randn(2, 6, 16, device=device)).square().mean(), False
    # cuDNN 8 describes recurrent networks in another way, which the simulated one does not know.
    torch.backends.cudnn.enabled = (torch.backends.cudnn.version() or 0) >= 90000
    lstm = Recurrent().to(device)
    yield "lstm", lstm, lstm(torch.randn(5, 2, 8, device=device)).sum(), False
    tied = Tied().to(device)
    yield "tied", tied, tied(torch.arange(6, device=device)).sum(), False
    custom = torch.randn(6, 6, device=device, requires_grad=True)
    yield "custom", custom, Cube.apply(custom).sum(), False
    strange = torch.randn(6, 6, device=device, requires_grad=True)
    yield "odd", strange, odd(strange), False
    twice = torch.randn(3, 3, device=device, requires_grad=True)
    first, = torch.autograd.grad((twice ** 3).sum(), twice, create_graph=True)
    yield "double", (twice, first), first.square().sum(), False
    for reentrant in (False, True):
        point = sequence(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        start = torch.randn(4, 8, device=device, requires_grad=True)
        loss = checkpoint(point, start, use_reentrant=reentrant).sum()
        yield f"checkpoint-{reentrant}", (point, start), loss, not reentrant
    offloaded = sequence(nn.Linear(8, 8), nn.Sigmoid())
    with torch.autograd.graph.save_on_cpu():
        loss = offloaded(torch.randn(4, 8, device=device)).sum()
    yield "offload", offloaded, loss, True
    trained = sequence(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1))
    trained[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(trained.parameters())
    loss = trained(torch.randn(5, 10, device=device)).sum()
    loss.backward()
    optimizer.step()
    yield "trained", (trained, optimizer), loss, True  # Looking at what is freed is an error.


def others(device):
    base = torch.arange(24.0, device=device).reshape(2, 3, 4)
    counted = torch.zeros(3, device=device)
    counted.add_(1).mul_(2)
    with torch.inference_mode():
        inferred = torch.ones(4, device=device)
    kept = [base, base[1], base.transpose(0, 2), base[:, 1:, ::2], base[:, :1].expand(2, 5, 4), base.detach(), counted, inferred,
            torch.tensor(1.5, device=device), torch.empty(0, 3, device=device), torch.zeros(1, 2, 1, 2, 1, 2, 1, device=device),
            torch.empty(5, 5, device="meta"), base.as_subclass(Colored), nn.Parameter(base.clone(), requires_grad=False)]
    # Quantized types make tensors of another kind; the names of some types say the same.
    for dtype in {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}:
        kept.append(torch.empty(3, 5, dtype=dtype, device=device))
    sparse = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), device=device)
    kept += [sparse, sparse.to_sparse_csr(), sparse._indices(), sparse._values()]
    kept += [torch.ones(3), torch.randn(4, 4, device=device, requires_grad=True)]
    return kept + list(kinds.all_of(device).values())


def storage(tensor):
    return kinds.storage(tensor)


def tensor_truth(tensor):
    grad = tensor.grad if tensor.is_leaf else None
    return {
        "id": id(tensor), **kinds.geometry(tensor),
        "dtype": str(tensor.dtype).replace("torch.", ""), "device": kinds.device_of(tensor), "storage": storage(tensor),
        "version": None if tensor.is_inference() else tensor._version, "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf, "grad": None if grad is None else storage(grad),
        "grad_fn": None if tensor.grad_fn is None else tensor.grad_fn.name().rsplit("::", 1)[-1],
        "parameter": isinstance(tensor, nn.Parameter),
    }


def tensors():
    # Not isinstance: it asks proxies for their class, and some warn.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def saved_by(node):
    for name in dir(node):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            for one in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(one, torch.Tensor):
                    yield one
    for one in getattr(node, "saved_tensors", ()):
        if one is not None:
            yield one


def graph_truth(loss, hooked):
    nodes = nodes_from([loss.grad_fn])
    classes = {}
    for node in nodes:
        name = node.name().rsplit("::", 1)[-1]
        classes[name] = classes.get(name, 0) + 1
    saved = None if hooked else sorted({tuple(storage(t)) for node in nodes for t in saved_by(node) if storage(t)})
    return {"loss": id(loss), "classes": classes, "saved": saved}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    kept = others(device)
    built = list(scenes(device))
    graphs = {name: graph_truth(loss, hooked) for name, _, loss, hooked in built}
    gc.collect()
    # Looking at a gradient gives it a Python object that stays: first for all, then the list is what it is.
    for tensor in tensors():
        tensor_truth(tensor)
    truth = {"version": torch.__version__, "graphs": graphs, "tensors": [tensor_truth(t) for t in tensors()]}
    handshake.ready(truth)
    handshake.hold()
    del kept


if __name__ == "__main__":
    main()
