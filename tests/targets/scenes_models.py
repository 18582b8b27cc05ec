"""Scenes of models and training: what modules, gradients and optimizers hold.

Each is a function that builds its state in local variables and calls `show` while they are alive; the names after
`device` in that call are what the scene is about.
"""
import torch
from torch import nn
from torch.nn import functional as F


def mlp(device, show):
    model = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)).to(device)
    batch = torch.randn(32, 100, device=device)
    loss = model(batch).sum()
    show("model", "batch", "loss")


def cnn(device, show):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, bias=False),
        nn.GroupNorm(4, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).to(device)
    batch = torch.randn(4, 3, 32, 32, device=device)
    target = torch.arange(4, device=device)
    loss = F.cross_entropy(model(batch), target)
    show("model", "batch", "target", "loss")


class Attention(nn.Module):
    """q, k and v are views of one storage; the mask is a buffer that is not saved in checkpoints."""

    def __init__(self, width, length):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("mask", torch.ones(length, length).tril(), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2)).masked_fill(self.mask == 0, -1e9)
        return scores.softmax(-1) @ v


class Transformer(nn.Module):
    def __init__(self, width=32, length=12):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(2))
        self.heads = nn.ModuleDict({"own": Attention(width, length)})
        self.scale = nn.Parameter(torch.ones(()))
        self.register_parameter("absent", None)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.heads["own"](x) * self.scale


def transformer(device, show):
    """Also the operations that keep vectors of tensors, and several outputs."""
    model = Transformer().to(device)
    tokens = torch.arange(24, device=device).reshape(2, 12)
    y = model(tokens)
    odd = torch.cat([y, y.sin()]).sum(0)[torch.tensor([0, 2], device=device)].exp().log_softmax(1)
    loss = odd.max(1).values.prod() + y[1:].std() + torch.einsum("bij,bkj->", y, y)
    show("model", "tokens", "y", "odd", "loss")


def lstm(device, show):
    # The simulated device has no recurrent networks of cuDNN.
    torch.backends.cudnn.enabled = False
    model = nn.LSTM(16, 24, num_layers=2, bidirectional=True).to(device)
    batch = torch.randn(5, 3, 16, device=device)
    out, (hidden, cell) = model(batch)
    loss = out.mean()
    show("model", "batch", "out", "hidden", "cell", "loss")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.first = nn.Linear(12, 12)
        self.again = self.first
        self.out = nn.Linear(12, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.again(self.first(self.embed(tokens))))


def tied(device, show):
    """One parameter in two modules, and one module under two names."""
    model = Tied().to(device)
    loss = model(torch.arange(6, device=device)).sum()
    show("model", "loss")


def trained(model, optimizer, batch, steps=2):
    """Leaves gradients and optimizer state, and no graph."""
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()


def adam(device, show):
    """Gradients that Python never looked at: the optimizer reads them without keeping an object."""
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    batch = torch.randn(7, 20, device=device)
    trained(model, optimizer, batch)
    show("model", "optimizer", "batch")


def sgd_momentum(device, show):
    """Two models, so that names need the variable; a parameter of no model in the optimizer."""
    generator = nn.Linear(10, 12).to(device)
    critic = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 1)).to(device)
    temperature = nn.Parameter(torch.ones(3, device=device))
    both = torch.optim.SGD([{"params": generator.parameters()}, {"params": critic.parameters(), "lr": 0.01},
                            {"params": [temperature]}], lr=0.1, momentum=0.9)
    batch = torch.randn(4, 10, device=device)
    trained(lambda x: critic(generator(x)) * temperature, both, batch)
    show("generator", "critic", "temperature", "both", "batch")


def frozen(device, show):
    """The first half is not trained: it has no gradients, and its activations are not kept."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4)).to(device)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    batch = torch.randn(9, 40, device=device)
    trained(model, optimizer, batch)
    loss = model(batch).sum()
    show("model", "optimizer", "batch", "loss")


def ddp(device, show, views=False):
    """One process of a group of one. The reducer's buckets are tensors that no Python object knows; with `views`
    the gradients lie in them."""
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3)).to(device)
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views)
    optimizer = torch.optim.AdamW(wrapped.parameters())
    batch = torch.randn(8, 30, device=device)
    trained(wrapped, optimizer, batch)
    loss = wrapped(batch).sum()
    show("wrapped", "model", "optimizer", "batch", "loss")
    dist.destroy_process_group()


def ddp_views(device, show):
    ddp(device, show, views=True)


SCENES = (mlp, cnn, transformer, lstm, tied, adam, sgd_momentum, frozen, ddp, ddp_views)
