"""Models whose loss is kept, and what trumpy says the backward pass will need.

    python tests/targets/trumpy_scenes.py mlp|cnn|transformer|resnet50|several|changed|checkpointed

"several": two nets, three losses, one of them of both. "changed": a saved tensor was changed in place. Truth: what it says by loss and net,
null where it raises an error.
"""
import sys

import handshake
import torch
from torch import nn
from trumpy import memory_for_backward


class Bottleneck(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or width_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(width_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def resnet50():
    """As torchvision builds it."""
    layers, width_in = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(count):
            layers.append(Bottleneck(width_in, width, stride if block == 0 else 1))
            width_in = 4 * width
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(2048, 1000))
    # trumpy's README takes a batch of 16 pictures and the sum as loss.
    return net, net(torch.randn(16, 3, 224, 224)).sum()


def mlp():
    net = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10))
    return net, net(torch.randn(32, 100)).sum()


def cnn():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(8 * 225, 10))
    return net, nn.functional.cross_entropy(net(torch.randn(8, 3, 32, 32)), torch.arange(8))


def transformer():
    net = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    y = net(torch.randn(4, 10, 32))
    odd = torch.cat([y, y.sin()]).sum(0)[torch.tensor([0, 2])].exp().log_softmax(1)
    return net, odd.max(1).values.prod() + y[1:].std()


def several():
    """Two nets and three losses, which is what training a GAN looks like."""
    first, second = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10)), nn.Linear(10, 7)
    between = first(torch.randn(32, 100))
    one, both = between.square().mean(), second(between).exp().sum()
    alone = second(torch.randn(5, 10)).sigmoid().sum()
    return {"first": first, "second": second}, {"one": one, "both": both, "alone": alone}


def changed():
    net = nn.Linear(100, 64)
    y = net(torch.randn(32, 100)).exp()
    loss = y.sum()
    y.add_(1)
    return {"net": net}, {"loss": loss}


def checkpointed():
    net = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10))
    loss = torch.utils.checkpoint.checkpoint(net, torch.randn(32, 100), use_reentrant=False).square().sum()
    return {"net": net}, {"loss": loss}


def by_loss_and_net(nets, losses):
    said = {}
    for loss_name, loss in losses.items():
        for net_name, net in nets.items():
            try:
                said[f"{loss_name} {net_name}"] = memory_for_backward(net, loss)
            except RuntimeError:
                said[f"{loss_name} {net_name}"] = None
    return said


def main():
    torch.manual_seed(0)
    if sys.argv[1] in ("several", "changed", "checkpointed"):
        nets, losses = globals()[sys.argv[1]]()
        truth = {}
        if sys.argv[1] != "checkpointed":  # which it would run anew
            truth = by_loss_and_net(nets, losses)
        first, second, one, both, alone, net, loss = map({**nets, **losses}.get, (
            "first", "second", "one", "both", "alone", "net", "loss"))
        nets = losses = None
        handshake.ready(truth)
        handshake.hold()
        return
    net, loss = globals()[sys.argv[1]]()
    truth = {"memory_for_backward": memory_for_backward(net, loss)}
    handshake.ready(truth)
    handshake.hold()


if __name__ == "__main__":
    main()
