"""The README program of gpu_mem_track, and what its rule prints at every `gpu_tracker.track()`.

The tool is not on PyPI: `track` follows its rule as the tool's source has it. At each point the target prints what it would
have logged, then READY, and waits for a line.
"""
import gc

import handshake
import torch
from torch import nn

SIZES = {torch.float64: 8, torch.float32: 4, torch.int64: 8}


class Vgg19(nn.Module):
    """As torchvision builds it."""

    def __init__(self):
        super().__init__()
        layers, width_in = [], 3
        for width in (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M"):
            if width == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(inplace=True)]
                width_in = width
        self.features = nn.Sequential(*layers)

    def forward(self, x):
        return self.features(x)


class Tracker:
    def __init__(self):
        self.last = set()

    def track(self):
        tensors = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.is_cuda]
        like = lambda a, b: a.size() == b.size() and a.dtype == b.dtype  # noqa: E731
        rows = {(type(t).__name__, tuple(t.size()), sum(like(t, other) for other in tensors),
                 t.numel() * SIZES[t.dtype] / 1024 ** 2, str(t.dtype)) for t in tensors}
        came, went = sorted(rows - self.last), sorted(self.last - rows)
        self.last = rows
        used = sum(t.numel() * SIZES[t.dtype] for t in tensors)
        del tensors
        handshake.ready({"came": came, "went": went, "used": used, "allocated": torch.cuda.memory_allocated()})
        handshake.hold()


def main():
    tracker = Tracker()
    tracker.track()
    cnn = Vgg19().to("cuda")
    tracker.track()
    dummy_tensor_1 = torch.randn(30, 3, 512, 512).float().to("cuda")
    dummy_tensor_2 = torch.randn(40, 3, 512, 512).float().to("cuda")
    dummy_tensor_3 = torch.randn(60, 3, 512, 512).float().to("cuda")
    tracker.track()
    dummy_tensor_4 = torch.randn(120, 3, 512, 512).float().to("cuda")
    dummy_tensor_5 = torch.randn(80, 3, 512, 512).float().to("cuda")
    tracker.track()
    dummy_tensor_4 = dummy_tensor_4.cpu()
    dummy_tensor_2 = dummy_tensor_2.cpu()
    torch.cuda.empty_cache()
    tracker.track()
    handshake.ready({"last": True})
    handshake.hold()
    del cnn, dummy_tensor_1, dummy_tensor_2, dummy_tensor_3, dummy_tensor_4, dummy_tensor_5


if __name__ == "__main__":
    main()
